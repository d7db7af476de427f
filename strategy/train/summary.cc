#include "strategy/train/summary.h"

#include "common/telemetry/event_file.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "strategy/core/strategy.h"
#include "strategy/values/distributed_values.h"

namespace muster {
namespace {
// Outside run() there is one caller.
bool FirstReplica() { return detail::current_replica() <= 0; }
}  // namespace

SummaryWriter::SummaryWriter(const std::string& directory) {
  if (!get_strategy().should_save_summary()) return;
  file_ = value_of(telemetry::EventFile::Create(directory));
}

void SummaryWriter::scalar(const std::string& tag, const torch::Tensor& value, std::int64_t step) {
  if (file_ == nullptr || !FirstReplica()) return;
  if (!value.defined() || value.numel() != 1) {
    raise(InvalidArgument("summary {}: a scalar has one element, this has {}", tag,
                          value.defined() ? value.numel() : 0));
  }
  scalar(tag, value.item<double>(), step);
}

void SummaryWriter::scalar(const std::string& tag, double value, std::int64_t step) {
  if (file_ == nullptr || !FirstReplica()) return;
  if (const Status written = file_->Scalar(tag, step, static_cast<float>(value)); !written.ok()) {
    raise(written);
  }
}

void SummaryWriter::flush() {
  if (file_ == nullptr || !FirstReplica()) return;
  if (const Status flushed = file_->Flush(); !flushed.ok()) raise(flushed);
}

void SummaryWriter::close() {
  if (file_ == nullptr || !FirstReplica()) return;
  if (const Status closed = file_->Close(); !closed.ok()) raise(closed);
}

std::string SummaryWriter::path() const { return file_ == nullptr ? "" : file_->path(); }

}  // namespace muster
