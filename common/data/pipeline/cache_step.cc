// cache(): the elements of the first whole pass, kept in memory.
#include <algorithm>
#include <deque>
#include <map>
#include <span>

#include "common/base/mutex.h"
#include "common/base/split_mix.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

using Elements = std::shared_ptr<const std::vector<Element>>;

// In a flat_map() each opening may have seeds of its own: then nobody asks for an old one again.
constexpr std::size_t kMostKept = 2;

// What is kept, by what decides it: the steps below and the seeds that they used. Shared by the
// node, its rewritten copies and their iterators.
class Store {
 public:
  Elements Find(std::uint64_t key) const {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(key);
    return found == kept_.end() ? nullptr : found->second;
  }
  void Keep(std::uint64_t key, std::vector<Element> elements) {
    auto kept = std::make_shared<const std::vector<Element>>(std::move(elements));
    const MutexLock lock(mutex_);
    if (!kept_.emplace(key, std::move(kept)).second) return;
    order_.push_back(key);
    if (order_.size() <= kMostKept) return;
    kept_.erase(order_.front());
    order_.pop_front();
  }

 private:
  mutable Mutex mutex_;
  std::map<std::uint64_t, Elements> kept_ MUSTER_GUARDED_BY(mutex_);
  std::deque<std::uint64_t> order_ MUSTER_GUARDED_BY(mutex_);  // the oldest first
};

// A copy: what is done to an element must not reach what is kept.
Item CopyOf(const Element& element) {
  MUSTER_TRY_ASSIGN(Element copy, Copy(element));
  return copy;
}

class FromStore final : public NodeIterator {
 public:
  explicit FromStore(Elements elements) : elements_(std::move(elements)) {}
  Item Next() override {
    if (next_ == elements_->size()) return std::nullopt;
    return CopyOf((*elements_)[next_++]);
  }
  // Stacking copies already.
  Item NextBatch(std::int64_t rows) override {
    const std::size_t first = next_;
    next_ += std::min(static_cast<std::size_t>(rows), elements_->size() - next_);
    if (next_ == first) return std::nullopt;
    MUSTER_TRY_ASSIGN(Element batch, Stack(std::span(*elements_).subspan(first, next_ - first)));
    return batch;
  }
  Result<std::int64_t> Skip(std::int64_t count) override {
    const std::size_t before = next_;
    next_ += std::min(static_cast<std::size_t>(count), elements_->size() - next_);
    return static_cast<std::int64_t>(next_ - before);
  }

 private:
  const Elements elements_;
  std::size_t next_ = 0;
};

class IntoStore final : public NodeIterator {
 public:
  IntoStore(std::unique_ptr<NodeIterator> input, std::shared_ptr<Store> store, std::uint64_t key)
      : input_(std::move(input)), store_(std::move(store)), key_(key) {}
  Item Next() override {
    MUSTER_TRY_ASSIGN(std::optional<Element> element, input_->Next());
    if (element && whole_) {
      elements_.push_back(*std::move(element));
      return CopyOf(elements_.back());
    }
    if (whole_) store_->Keep(key_, std::move(elements_));
    return element;
  }
  // A pass with a gap is not kept: the next one is.
  Result<std::int64_t> Skip(std::int64_t count) override {
    if (count > 0) {
      whole_ = false;
      elements_.clear();
    }
    return input_->Skip(count);
  }

 private:
  const std::unique_ptr<NodeIterator> input_;
  const std::shared_ptr<Store> store_;
  const std::uint64_t key_;
  std::vector<Element> elements_;
  bool whole_ = true;
};

class CacheNode final : public Node {
 public:
  CacheNode(NodePtr input, std::shared_ptr<Store> store)
      : Node({std::move(input)}), store_(std::move(store)) {}

  NodeKind kind() const override { return NodeKind::kCache; }
  std::string Describe() const override { return "cache"; }
  ElementSpec spec() const override { return input().spec(); }
  std::int64_t cardinality() const override { return input().cardinality(); }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<CacheNode>(std::move(inputs.front()), store_);
  }
  // What leaves elements out never has a whole pass to keep.
  NodePtr InStep(std::vector<NodePtr> inputs) const override { return std::move(inputs.front()); }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    std::uint64_t key = Fingerprint(input());
    for (const Node* node : DrawnNodes(input())) key = Mix(key) ^ SeedOf(*node, context);
    if (Elements kept = store_->Find(key)) return std::make_unique<FromStore>(std::move(kept));
    // Whichever pass fills it, it holds the first one's order: a position in a later pass means the
    // same in a process that has nothing kept yet.
    IteratorContext first = context;
    first.pass = 0;
    MUSTER_TRY_ASSIGN(std::unique_ptr<NodeIterator> from, input().MakeIterator(first));
    return std::make_unique<IntoStore>(std::move(from), store_, key);
  }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace

NodePtr MakeCache(NodePtr input) {
  return std::make_shared<CacheNode>(std::move(input), std::make_shared<Store>());
}

}  // namespace muster::data
