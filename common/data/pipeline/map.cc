// map(): on the consumer's thread, or on several at once with order kept.
#include <deque>
#include <thread>

#include "common/base/mutex.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

class SerialMap final : public NodeIterator {
 public:
  SerialMap(std::unique_ptr<NodeIterator> input, MapFunction function, std::stop_token stop)
      : input_(std::move(input)), function_(std::move(function)), stop_(std::move(stop)) {}

  Item Next() override {
    MUSTER_TRY_ASSIGN(const std::optional<Element> element, input_->Next());
    if (!element) return std::nullopt;
    MUSTER_TRY_ASSIGN(Element mapped, Guarded("map", [&] { return function_(*element, stop_); }));
    return mapped;
  }
  Result<std::int64_t> Skip(std::int64_t count) override { return input_->Skip(count); }

 private:
  const std::unique_ptr<NodeIterator> input_;
  const MapFunction function_;
  const std::stop_token stop_;
};

// Each thread takes the next element of the input and a slot at the end of the queue, computes, and
// fills its slot; the consumer waits for the slot in front. At most two elements a thread are in
// the queue.
class ParallelMap final : public NodeIterator {
 public:
  ParallelMap(const Node& input, MapFunction function, int parallel, const IteratorContext& context)
      : function_(std::move(function)),
        parallel_(parallel),
        window_(2 * static_cast<std::size_t>(parallel)),
        stop_(context.stop),
        context_(context) {
    context_.stop = stop_.token();
    made_ = input.MakeIterator(context_);
  }
  ~ParallelMap() override {
    stop_.Request();
    for (std::thread& thread : threads_) thread.join();
  }
  Status status() const { return made_.status(); }

  Item Next() override {
    if (threads_.empty()) {
      for (int i = 0; i < parallel_; ++i) {
        std::thread thread;
        MUSTER_TRY(StartThread(thread, [this] { Work(); }));
        threads_.push_back(std::move(thread));
      }
    }
    const MutexLock lock(mutex_);
    const bool ready = filled_.wait(mutex_, stop_.token(), [this]() MUSTER_REQUIRES(mutex_) {
      return slots_.empty() ? input_over_ : slots_.front().result.has_value();
    });
    if (!ready) return Stopped();
    if (slots_.empty()) return std::nullopt;
    Result<Element> result = *std::move(slots_.front().result);
    slots_.pop_front();
    room_.notify_one();
    if (!result.ok()) return result.status();
    return *std::move(result);
  }
  Result<std::int64_t> Skip(std::int64_t count) override {
    // Before the threads have taken anything the function need not run.
    if (threads_.empty()) return (*made_)->Skip(count);
    return NodeIterator::Skip(count);
  }

 private:
  struct Slot {
    std::optional<Result<Element>> result;
  };

  // Takes the next element that nobody has, computes it without the lock, and puts it in its place.
  void Work() {
    if (context_.on_thread_start) context_.on_thread_start();
    const std::stop_token stop = stop_.token();
    MutexLock lock(mutex_);
    while (true) {
      const bool go = room_.wait(mutex_, stop, [this]() MUSTER_REQUIRES(mutex_) {
        return input_over_ || (!reading_ && slots_.size() < window_);
      });
      if (!go || input_over_) return;
      reading_ = true;
      lock.unlock();
      Item element = (*made_)->Next();
      lock.lock();
      reading_ = false;
      if (!element.ok() || !element->has_value()) {
        if (!element.ok()) slots_.push_back({.result = element.status()});
        input_over_ = true;
        room_.notify_all();
        filled_.notify_all();
        return;
      }
      Slot& slot = slots_.emplace_back();  // a deque's elements stay where they are
      room_.notify_one();
      lock.unlock();
      Result<Element> result = Guarded("map", [&] { return function_(**element, stop); });
      element = std::nullopt;  // its memory goes outside the lock
      lock.lock();
      slot.result = std::move(result);
      filled_.notify_one();
    }
  }

  const MapFunction function_;
  const int parallel_;
  const std::size_t window_;
  LinkedStop stop_;
  IteratorContext context_;
  Result<std::unique_ptr<NodeIterator>> made_ = Status(StatusCode::kUnknown, "not made yet");
  Mutex mutex_;
  std::condition_variable_any room_, filled_;
  std::deque<Slot> slots_ MUSTER_GUARDED_BY(mutex_);
  bool reading_ MUSTER_GUARDED_BY(mutex_) = false;  // one thread takes an element from the input
  bool input_over_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // the consumer's
};

class MapNode final : public Node {
 public:
  MapNode(NodePtr input, MapFunction function, Pipeline::MapOptions options)
      : Node({std::move(input)}), function_(std::move(function)), options_(std::move(options)) {}

  NodeKind kind() const override { return NodeKind::kMap; }
  std::string Describe() const override { return fmt::format("map({})", options_.name); }
  std::string Tuning() const override {
    return options_.parallel > 1 ? fmt::format(" parallel={}", options_.parallel) : "";
  }
  ElementSpec spec() const override { return options_.spec; }
  std::int64_t cardinality() const override { return input().cardinality(); }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeMap(std::move(inputs.front()), function_, options_);
  }
  NodePtr InStep(std::vector<NodePtr> inputs) const override {
    Pipeline::MapOptions serial = options_;
    serial.parallel = 1;
    return MakeMap(std::move(inputs.front()), function_, std::move(serial));
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    if (options_.parallel > 1) {
      auto map = std::make_unique<ParallelMap>(input(), function_, options_.parallel, context);
      MUSTER_TRY(map->status());
      return map;
    }
    MUSTER_TRY_ASSIGN(std::unique_ptr<NodeIterator> from, input().MakeIterator(context));
    return std::make_unique<SerialMap>(std::move(from), function_, context.stop);
  }

 private:
  const MapFunction function_;
  const Pipeline::MapOptions options_;
};

}  // namespace

NodePtr MakeMap(NodePtr input, MapFunction function, Pipeline::MapOptions options) {
  return std::make_shared<MapNode>(std::move(input), std::move(function), std::move(options));
}

}  // namespace muster::data
