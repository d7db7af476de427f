// shard(): elements index, index + shards, ...
#include <algorithm>
#include <limits>

#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

class ShardIterator final : public NodeIterator {
 public:
  ShardIterator(std::unique_ptr<NodeIterator> input, std::int64_t shards, std::int64_t index,
                bool checked)
      : input_(std::move(input)), shards_(shards), index_(index), checked_(checked) {}

  Item Next() override {
    if (first_ && checked_) {
      first_ = false;
      return FirstRound();
    }
    MUSTER_TRY_ASSIGN(const bool more, Approach());
    if (!more) return std::nullopt;
    return input_->Next();
  }

  Result<std::int64_t> Skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    if (count > 0 && first_ && checked_) {
      MUSTER_TRY_ASSIGN(const std::optional<Element> element, Next());
      if (!element) return std::int64_t{0};
      skipped = 1;
    }
    if (skipped == count) return skipped;
    MUSTER_TRY_ASSIGN(const bool more, Approach());
    if (!more) return skipped;
    // More rounds than these no data have.
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() - 1;
    const std::int64_t rounds = std::min(count - skipped - 1, kMost / shards_);
    MUSTER_TRY_ASSIGN(const std::int64_t passed, input_->Skip(rounds * shards_ + 1));
    return skipped + (passed + shards_ - 1) / shards_;
  }

 private:
  // The first element for each of the shards: there must be as many, or none at all.
  Item FirstRound() {
    std::optional<Element> mine;
    for (std::int64_t i = 0; i < shards_; ++i) {
      MUSTER_TRY_ASSIGN(std::optional<Element> element, input_->Next());
      if (!element) {
        MUSTER_TRY(CheckEnoughElements(
            i, {.workers = static_cast<int>(shards_), .index = static_cast<int>(index_)}));
        return std::nullopt;
      }
      if (i == index_) mine = std::move(element);
    }
    before_ = index_;
    return mine;
  }

  // Passes over what belongs to others. False: the data ended there.
  Result<bool> Approach() {
    const std::int64_t others = first_ ? index_ : before_ >= 0 ? before_ : shards_ - 1;
    first_ = false;
    before_ = -1;
    MUSTER_TRY_ASSIGN(const std::int64_t passed, input_->Skip(others));
    return passed == others;
  }

  const std::unique_ptr<NodeIterator> input_;
  const std::int64_t shards_;
  const std::int64_t index_;
  const bool checked_;
  bool first_ = true;
  std::int64_t before_ = -1;  // after the first round: others' elements before the next of ours
};

class ShardNode final : public Node {
 public:
  ShardNode(NodePtr input, std::int64_t shards, std::int64_t index, bool checked)
      : Node({std::move(input)}), shards_(shards), index_(index), checked_(checked) {}

  NodeKind kind() const override { return NodeKind::kShard; }
  std::string Describe() const override { return fmt::format("shard({}, {})", shards_, index_); }
  ElementSpec spec() const override { return input().spec(); }
  std::int64_t cardinality() const override {
    const std::int64_t all = input().cardinality();
    if (all < 0) return all;
    return all <= index_ ? 0 : (all - index_ - 1) / shards_ + 1;
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeShard(std::move(inputs.front()), shards_, index_, checked_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(std::unique_ptr<NodeIterator> from, input().MakeIterator(context));
    return std::make_unique<ShardIterator>(std::move(from), shards_, index_, checked_);
  }

 private:
  const std::int64_t shards_;
  const std::int64_t index_;
  const bool checked_;
};

class PlaceholderNode final : public Node {
 public:
  explicit PlaceholderNode(NodePtr input) : Node({std::move(input)}) {}

  NodeKind kind() const override { return NodeKind::kShard; }
  std::string Describe() const override { return "shard(?, ?)"; }
  ElementSpec spec() const override { return input().spec(); }
  std::int64_t cardinality() const override {
    return input().cardinality() == kInfinite ? kInfinite : kUnknownCardinality;
  }
  NodeFacts facts() const override { return {.shard_placeholder = true}; }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeShardPlaceholder(std::move(inputs.front()));
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const override {
    return InvalidArgument(
        "a shard placeholder was not filled in: distribute the dataset with auto-shard policy "
        "HINT, or say shard(shards, index)");
  }
};

}  // namespace

NodePtr MakeShard(NodePtr input, std::int64_t shards, std::int64_t index, bool checked) {
  return std::make_shared<ShardNode>(std::move(input), shards, index, checked);
}
NodePtr MakeShardPlaceholder(NodePtr input) {
  return std::make_shared<PlaceholderNode>(std::move(input));
}

}  // namespace muster::data
