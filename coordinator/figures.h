// Where the figures of model jobs go as they come: into event files, onto the page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/v1/driver.pb.h"

namespace muster::coordinator {

// One point of a curve.
struct Figure {
  std::string tag;  // "loss", "evaluation/accuracy"
  std::uint64_t step = 0;
  double value = 0;
};

// Empty before the first step.
std::vector<Figure> FiguresOf(const v1::JobProgress& progress);
std::vector<Figure> FiguresOf(const v1::EvaluationResult& result);

// Threading: the coordinator's strand; nothing here waits.
class Figures {
 public:
  virtual ~Figures() = default;
  // The job goes on after `step`: what was said of later steps is void, and will be said again.
  virtual void GoOn(const std::string& job_id, const std::string& folder, std::uint64_t step) = 0;
  // `folder`: where the job's event files are. Of a tag, steps that are not above the last one are
  // passed over.
  virtual void Add(const std::string& job_id, const std::string& folder,
                   const std::vector<Figure>& figures) = 0;
  // The job has ended; it may go on later.
  virtual void End(const std::string& job_id) = 0;
};

}  // namespace muster::coordinator
