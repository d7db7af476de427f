#include "worker/engine/step.h"

#include <chrono>
#include <vector>

#include "muster/v1/common.pb.h"

namespace muster::engine {
namespace {

// Adds what its life has taken.
class Timed {
 public:
  explicit Timed(std::uint64_t& sum) : sum_(sum) {}
  ~Timed() {
    const auto took = std::chrono::steady_clock::now() - begin_;
    sum_ += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::uint64_t& sum_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

Result<v1::MetricSums> Train(Model& model, ParameterSource& source, std::uint64_t step,
                             const Part& part, const data::Element& batch, StepTimes& times) {
  MUSTER_TRY_ASSIGN(std::vector<Lookup> lookups, model.FindRows(batch));
  {
    const Timed timed(times.fetch_us);
    MUSTER_TRY(source.Fetch(/*train=*/true, lookups));
  }
  v1::MetricSums sums;
  {
    const Timed timed(times.compute_us);
    MUSTER_TRY_ASSIGN(sums, model.TrainStep(step, part, batch, lookups));
  }
  const Timed timed(times.give_us);
  MUSTER_TRY(source.Give(step, lookups, sums));
  return sums;
}

Result<v1::MetricSums> Evaluate(Model& model, ParameterSource& source, const std::string& label,
                                const data::Element& batch, StepTimes& times) {
  MUSTER_TRY_ASSIGN(std::vector<Lookup> lookups, model.FindRows(batch));
  {
    const Timed timed(times.fetch_us);
    MUSTER_TRY(source.Fetch(/*train=*/false, lookups));
  }
  const Timed timed(times.compute_us);
  return model.Evaluate(label, batch, lookups);
}

}  // namespace muster::engine
