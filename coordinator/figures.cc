#include "coordinator/figures.h"

namespace muster::coordinator {

std::vector<Figure> FiguresOf(const v1::JobProgress& progress) {
  const std::uint64_t step = progress.step();
  if (step == 0) return {};
  std::vector<Figure> figures{{"loss", step, progress.loss()}};
  if (progress.has_accuracy()) figures.push_back({"accuracy", step, progress.accuracy()});
  // The first report has nothing before it to count from.
  if (progress.examples_per_second() > 0) {
    figures.push_back({"rate/examples_per_second", step, progress.examples_per_second()});
  }
  figures.push_back({"step_ms/read", step, progress.read_us() / 1'000});
  figures.push_back({"step_ms/pull", step, progress.pull_us() / 1'000});
  figures.push_back({"step_ms/compute", step, progress.compute_us() / 1'000});
  figures.push_back({"step_ms/push", step, progress.push_us() / 1'000});
  return figures;
}

std::vector<Figure> FiguresOf(const v1::EvaluationResult& result) {
  std::vector<Figure> figures{{"evaluation/loss", result.step(), result.loss()}};
  if (result.has_accuracy()) {
    figures.push_back({"evaluation/accuracy", result.step(), result.accuracy()});
  }
  if (result.has_auc()) figures.push_back({"evaluation/auc", result.step(), result.auc()});
  return figures;
}

}  // namespace muster::coordinator
