// prefetch(): a thread that reads ahead.
#include <deque>
#include <thread>

#include "common/base/mutex.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

class Prefetch final : public NodeIterator {
 public:
  // `stop` is what `input` was made with.
  Prefetch(std::unique_ptr<NodeIterator> input, std::int64_t count, const IteratorContext& context,
           std::stop_source stop)
      : input_(std::move(input)),
        count_(static_cast<std::size_t>(count)),
        on_thread_start_(context.on_thread_start),
        stop_(context.stop, std::move(stop)) {}
  ~Prefetch() override {
    stop_.Request();
    if (thread_.joinable()) thread_.join();
  }

  Item Next() override {
    if (!thread_.joinable()) MUSTER_TRY(StartThread(thread_, [this] { Work(); }));
    const MutexLock lock(mutex_);
    const auto some = [this]() MUSTER_REQUIRES(mutex_) { return !ready_.empty(); };
    if (!filled_.wait(mutex_, stop_.token(), some)) return Stopped();
    Ready ready = std::move(ready_.front());
    ready_.pop_front();
    room_.notify_one();
    if (!ready.error.ok()) return ready.error;
    return std::move(ready.element);
  }
  Result<std::int64_t> Skip(std::int64_t count) override {
    if (!thread_.joinable()) return input_->Skip(count);
    return NodeIterator::Skip(count);
  }

 private:
  struct Ready {
    Status error;
    std::optional<Element> element;  // nothing: the end
  };

  void Work() {
    if (on_thread_start_) on_thread_start_();
    const std::stop_token stop = stop_.token();
    bool more = true;
    MutexLock lock(mutex_);
    const auto room = [this]() MUSTER_REQUIRES(mutex_) { return ready_.size() < count_; };
    while (more && room_.wait(mutex_, stop, room)) {
      lock.unlock();
      Item item = input_->Next();
      lock.lock();
      more = item.ok() && item->has_value();
      if (item.ok()) {
        ready_.push_back({.error = Ok(), .element = *std::move(item)});
      } else {
        ready_.push_back({.error = item.status(), .element = std::nullopt});
      }
      filled_.notify_one();
    }
  }

  const std::unique_ptr<NodeIterator> input_;
  const std::size_t count_;
  const std::function<void()> on_thread_start_;
  LinkedStop stop_;
  Mutex mutex_;
  std::condition_variable_any room_, filled_;
  std::deque<Ready> ready_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;  // the consumer's
};

class PrefetchNode final : public Node {
 public:
  PrefetchNode(NodePtr input, std::int64_t count) : Node({std::move(input)}), count_(count) {}

  NodeKind kind() const override { return NodeKind::kPrefetch; }
  std::string Describe() const override { return fmt::format("prefetch({})", count_); }
  ElementSpec spec() const override { return input().spec(); }
  std::int64_t cardinality() const override { return input().cardinality(); }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakePrefetch(std::move(inputs.front()), count_);
  }
  NodePtr InStep(std::vector<NodePtr> inputs) const override { return std::move(inputs.front()); }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    std::stop_source stop;
    IteratorContext below = context;
    below.stop = stop.get_token();
    MUSTER_TRY_ASSIGN(std::unique_ptr<NodeIterator> from, input().MakeIterator(below));
    return PrefetchOver(std::move(from), count_, context, std::move(stop));
  }

 private:
  const std::int64_t count_;
};

}  // namespace

std::unique_ptr<NodeIterator> PrefetchOver(std::unique_ptr<NodeIterator> input, std::int64_t count,
                                           const IteratorContext& context, std::stop_source stop) {
  return std::make_unique<Prefetch>(std::move(input), count, context, std::move(stop));
}

NodePtr MakePrefetch(NodePtr input, std::int64_t count) {
  return std::make_shared<PrefetchNode>(std::move(input), count);
}

}  // namespace muster::data
