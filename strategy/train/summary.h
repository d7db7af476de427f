// Curves for TensorBoard. Every replica may call; the first one alone writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "strategy/base/torch.h"

namespace muster {

namespace telemetry {
class EventFile;
}

// Copies write to the same file. Threading: any thread.
class SummaryWriter {
 public:
  // A new event file in `directory`, which is made if need be; none, and nothing is written, when
  // the current strategy has no summaries to save here. Error: the file system's.
  explicit SummaryWriter(const std::string& directory);

  // One point of the curve `tag`; nothing in replicas but the first.
  //   INVALID_ARGUMENT: not exactly one element.   FAILED_PRECONDITION: closed.
  void scalar(const std::string& tag, const torch::Tensor& value, std::int64_t step);
  void scalar(const std::string& tag, double value, std::int64_t step);
  // Files are flushed every ten seconds of writing, and when the last copy goes.
  void flush();
  void close();
  // Empty: it writes nothing.
  std::string path() const;

 private:
  std::shared_ptr<telemetry::EventFile> file_;
};

}  // namespace muster
