#include "services/executor/batch_reader.h"

#include <algorithm>
#include <utility>

namespace muster::executor {

BatchReader::BatchReader(std::unique_ptr<data::BatchSource> source)
    : source_(std::move(source)), thread_([this] { Run(); }) {}

BatchReader::~BatchReader() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchReader::Request(std::uint64_t closure) {
  {
    const MutexLock lock(mutex_);
    const bool known = reading_ == closure || ready_.contains(closure) ||
                       std::ranges::find(wanted_, closure) != wanted_.end();
    if (known || wanted_.size() + ready_.size() >= kMostAhead) return;
    wanted_.push_back(closure);
  }
  changed_.notify_all();
}

Result<data::Element> BatchReader::Take(std::uint64_t closure) {
  {
    const MutexLock lock(mutex_);
    std::erase(wanted_, closure);  // not begun: read here, ahead of the others
    // Closures come in order: those before this one have gone to another executor.
    std::erase_if(ready_, [closure](const auto& one) { return one.first < closure; });
    while (reading_ == closure) changed_.wait(mutex_);
    if (auto ready = ready_.extract(closure); !ready.empty()) return std::move(ready.mapped());
  }
  return source_->Batch(closure);
}

void BatchReader::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!stop_ && wanted_.empty()) changed_.wait(mutex_);
    if (stop_) return;
    const std::uint64_t closure = wanted_.front();
    wanted_.pop_front();
    reading_ = closure;
    lock.unlock();
    Result<data::Element> batch = source_->Batch(closure);
    lock.lock();
    reading_.reset();
    ready_.emplace(closure, std::move(batch));
    changed_.notify_all();
  }
}

}  // namespace muster::executor
