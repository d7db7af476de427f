// flat_map() and interleave(): a pipeline for each element.
#include <algorithm>

#include "common/base/split_mix.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

// Whether the elements of `node` come from a list of file names.
bool FromFileNames(const Node& node) {
  if (node.kind() == NodeKind::kFileNames) return true;
  switch (node.kind()) {
    case NodeKind::kFlatMap:
    case NodeKind::kInterleave:
    case NodeKind::kBatch:
    case NodeKind::kCustom:
    case NodeKind::kZip:
    case NodeKind::kSample:
      return false;
    default:
      return !node.inputs().empty() && FromFileNames(*node.inputs().front());
  }
}

// A pipeline that the user's function made, and its iterator.
struct Opened {
  NodePtr node;
  std::unique_ptr<NodeIterator> iterator;
};

// Opens one pipeline after another.
class Opener {
 public:
  Opener(std::unique_ptr<NodeIterator> input, ExpandFunction function, const char* where,
         std::uint64_t seed, IteratorContext context)
      : input_(std::move(input)),
        function_(std::move(function)),
        where_(where),
        seed_(seed),
        context_(std::move(context)) {}

  // Nothing at the end of the input. `ahead` > 0: read on a thread of its own.
  Result<std::optional<Opened>> Open(std::int64_t ahead) {
    if (context_.stop.stop_requested()) return Stopped();
    MUSTER_TRY_ASSIGN(const std::optional<Element> element, input_->Next());
    if (!element) return std::nullopt;
    MUSTER_TRY_ASSIGN(const Pipeline pipeline,
                      Guarded(where_, [&] { return function_(*element); }));
    MUSTER_TRY(Annotate(pipeline.status(), where_));
    IteratorContext context = NestedContext(context_, *pipeline.node(), Mix(seed_ + opened_++));
    Opened opened{.node = pipeline.node(), .iterator = nullptr};
    std::stop_source stop;
    const IteratorContext outer = context;
    if (ahead > 0) context.stop = stop.get_token();
    MUSTER_TRY_ASSIGN(opened.iterator, opened.node->MakeIterator(context));
    if (ahead > 0) {
      opened.iterator = PrefetchOver(std::move(opened.iterator), ahead, outer, std::move(stop));
    }
    return opened;
  }

 private:
  std::unique_ptr<NodeIterator> input_;
  ExpandFunction function_;
  const char* where_;
  std::uint64_t seed_;
  IteratorContext context_;
  std::uint64_t opened_ = 0;
};

class FlatMap final : public NodeIterator {
 public:
  explicit FlatMap(Opener opener) : opener_(std::move(opener)) {}

  Item Next() override {
    while (true) {
      MUSTER_TRY_ASSIGN(const bool more, Begin());
      if (!more) return std::nullopt;
      MUSTER_TRY_ASSIGN(std::optional<Element> element, current_->iterator->Next());
      if (element) return element;
      current_.reset();
    }
  }
  Result<std::int64_t> Skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      MUSTER_TRY_ASSIGN(const bool more, Begin());
      if (!more) break;
      MUSTER_TRY_ASSIGN(const std::int64_t here, current_->iterator->Skip(count - skipped));
      skipped += here;
      if (skipped < count) current_.reset();
    }
    return skipped;
  }

 private:
  Result<bool> Begin() {
    if (current_) return true;
    MUSTER_TRY_ASSIGN(current_, opener_.Open(0));
    return current_.has_value();
  }

  Opener opener_;
  std::optional<Opened> current_;
};

// `cycle` pipelines are open at a time; each gives `block` elements, then the next one's turn
// comes. One that has ended is followed by the next of the input when its turn comes again.
class Interleave final : public NodeIterator {
 public:
  Interleave(Opener opener, std::int64_t cycle, std::int64_t block, bool parallel)
      : opener_(std::move(opener)),
        open_(static_cast<std::size_t>(cycle)),
        block_(block),
        ahead_(parallel ? block : 0) {}

  Item Next() override {
    while (true) {
      MUSTER_TRY_ASSIGN(const bool more, Approach());
      if (!more) return std::nullopt;
      MUSTER_TRY_ASSIGN(std::optional<Element> element, open_[turn_]->iterator->Next());
      if (element) {
        Given(1);
        return element;
      }
      Close();
    }
  }
  Result<std::int64_t> Skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      MUSTER_TRY_ASSIGN(const bool more, Approach());
      if (!more) break;
      const std::int64_t want = std::min(count - skipped, block_ - given_);
      MUSTER_TRY_ASSIGN(const std::int64_t here, open_[turn_]->iterator->Skip(want));
      skipped += here;
      if (here < want) {
        Close();
      } else {
        Given(here);
      }
    }
    return skipped;
  }

 private:
  // Goes to the next open pipeline, opening those whose turn it is. False: all have ended.
  Result<bool> Approach() {
    while (!over_ || opened_ > 0) {
      if (open_[turn_]) return true;
      if (!over_) {
        MUSTER_TRY_ASSIGN(open_[turn_], opener_.Open(ahead_));
        over_ = !open_[turn_];
        opened_ += over_ ? 0 : 1;
      } else {
        PassOn();
      }
    }
    return false;
  }
  void Given(std::int64_t elements) {
    given_ += elements;
    if (given_ == block_) PassOn();
  }
  void Close() {
    open_[turn_].reset();
    --opened_;
    PassOn();
  }
  void PassOn() {
    turn_ = (turn_ + 1) % open_.size();
    given_ = 0;
  }

  Opener opener_;
  std::vector<std::optional<Opened>> open_;
  const std::int64_t block_;
  const std::int64_t ahead_;
  std::size_t turn_ = 0;
  std::int64_t given_ = 0;
  int opened_ = 0;
  bool over_ = false;
};

class ExpandNode : public Node {
 public:
  ExpandNode(NodePtr input, ExpandFunction function, std::optional<bool> reads_files,
             std::uint64_t seed)
      : Node({std::move(input)}),
        function_(std::move(function)),
        reads_files_(reads_files),
        seed_(seed) {}
  ElementSpec spec() const override { return std::nullopt; }
  std::int64_t cardinality() const override {
    return input().cardinality() == 0 ? 0 : kUnknownCardinality;
  }
  NodeFacts facts() const override {
    return {.reads_files = reads_files_ ? *reads_files_ : FromFileNames(input())};
  }
  std::optional<std::uint64_t> drawn_seed() const override { return seed_; }

 protected:
  Result<Opener> MakeOpener(const IteratorContext& context, const char* where) const {
    MUSTER_TRY_ASSIGN(std::unique_ptr<NodeIterator> from, input().MakeIterator(context));
    return Opener(std::move(from), function_, where, SeedOf(*this, context), context);
  }
  const ExpandFunction& function() const { return function_; }
  std::uint64_t seed() const { return seed_; }

 private:
  const ExpandFunction function_;
  const std::optional<bool> reads_files_;
  const std::uint64_t seed_;
};

class FlatMapNode final : public ExpandNode {
 public:
  FlatMapNode(NodePtr input, ExpandFunction function, Pipeline::FlatMapOptions options,
              std::uint64_t seed)
      : ExpandNode(std::move(input), std::move(function), options.reads_files, seed),
        options_(std::move(options)) {}
  NodeKind kind() const override { return NodeKind::kFlatMap; }
  std::string Describe() const override { return fmt::format("flat_map({})", options_.name); }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeFlatMap(std::move(inputs.front()), function(), options_, seed());
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(Opener opener, MakeOpener(context, "flat_map"));
    return std::make_unique<FlatMap>(std::move(opener));
  }

 private:
  const Pipeline::FlatMapOptions options_;
};

class InterleaveNode final : public ExpandNode {
 public:
  InterleaveNode(NodePtr input, ExpandFunction function, Pipeline::InterleaveOptions options,
                 std::uint64_t seed)
      : ExpandNode(std::move(input), std::move(function), options.reads_files, seed),
        options_(std::move(options)) {}
  NodeKind kind() const override { return NodeKind::kInterleave; }
  std::string Describe() const override {
    return fmt::format("interleave({}, cycle={}, block={})", options_.name, options_.cycle_length,
                       options_.block_length);
  }
  std::string Tuning() const override { return options_.parallel ? " parallel" : ""; }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeInterleave(std::move(inputs.front()), function(), options_, seed());
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(Opener opener, MakeOpener(context, "interleave"));
    return std::make_unique<Interleave>(std::move(opener), options_.cycle_length,
                                        options_.block_length, options_.parallel);
  }

 private:
  const Pipeline::InterleaveOptions options_;
};

}  // namespace

NodePtr MakeFlatMap(NodePtr input, ExpandFunction function, Pipeline::FlatMapOptions options,
                    std::uint64_t seed) {
  return std::make_shared<FlatMapNode>(std::move(input), std::move(function), std::move(options),
                                       seed);
}
NodePtr MakeInterleave(NodePtr input, ExpandFunction function, Pipeline::InterleaveOptions options,
                       std::uint64_t seed) {
  return std::make_shared<InterleaveNode>(std::move(input), std::move(function), std::move(options),
                                          seed);
}

}  // namespace muster::data
