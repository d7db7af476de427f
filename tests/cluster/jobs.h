// Job files and data that the cluster tests share.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/cluster/harness.h"

namespace muster::testing {

// examples/fashion.yaml with the run's length replaced by "steps: N".
std::string FashionJob(std::uint64_t steps, const std::string& more = "");

// The same with another strategy, in YAML: "kind: mirrored\n  devices: 2".
std::string FashionJobUnder(const std::string& strategy, std::uint64_t steps,
                            const std::string& more = "");

// What makes each step of a job slow: small matrix products, as many as a file says that each step
// reads. A test makes a job last until it has seen what it must, and then lets it end.
class Work {
 public:
  Work(const TempFolder& folder, int products);

  // Lines of forward(): `slow` is 0 in the end. `input` is a tensor of records.
  std::string Lines(const std::string& input) const;
  void Set(int products) const;

 private:
  std::string file_;
};

// Integers in, integers out: forward is (w * x).sum() over eight columns, SGD with learning rate 1,
// so w ends as its start minus the exact column sums times the epochs, if and only if every update
// was applied exactly once.
struct SumJob {
  // Writes sums.csv and sums.yaml into `folder`. `products` make a step slower.
  SumJob(const TempFolder& folder, int rows, int batch, int epochs, int products,
         const std::string& more = "");

  // From now on a step takes no longer than it must: what the test had to see has happened, and the
  // rest of the job is only to end.
  void Hurry() const { work.Set(0); }

  std::string file;
  std::uint64_t steps = 0;
  // What w must be in the end.
  std::vector<float> expected;
  Work work;
};

// Replaces the first occurrence in a file; fails the test when there is none.
void ReplaceInFile(const std::string& path, const std::string& from, const std::string& to);

// The tensors of a safetensors file, float32 only.
std::map<std::string, std::vector<float>> ReadSafetensors(const std::string& path);

}  // namespace muster::testing
