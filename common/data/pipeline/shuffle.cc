// shuffle(): each element is drawn from a buffer of those that come next.
#include <algorithm>
#include <unordered_map>

#include "common/base/split_mix.h"
#include "common/base/words.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

// The buffer's rule, over elements or over their numbers: fill it up, draw one, let the last one
// take its place. Part of every saved position: it must not change.
template <class T>
T Draw(std::vector<T>& buffer, SplitMix64& random) {
  const auto i = static_cast<std::size_t>(random.Below(buffer.size()));
  T drawn = std::move(buffer[i]);
  buffer[i] = std::move(buffer.back());
  buffer.pop_back();
  return drawn;
}

class Shuffle final : public NodeIterator {
 public:
  Shuffle(NodePtr source, std::int64_t buffer, std::uint64_t seed, IteratorContext context)
      : source_(std::move(source)),
        size_(static_cast<std::size_t>(buffer)),
        seed_(seed),
        random_(seed),
        context_(std::move(context)) {}

  Status Open() {
    MUSTER_TRY_ASSIGN(input_, source_->MakeIterator(context_));
    return Ok();
  }

  Item Next() override {
    MUSTER_TRY(FillUp());
    if (buffer_.empty()) return std::nullopt;
    started_ = true;
    return Draw(buffer_, random_);
  }

  // Draws numbers instead of elements, then reads only those that are in the buffer at the end.
  Result<std::int64_t> Skip(std::int64_t count) override {
    if (started_ || count == 0) return NodeIterator::Skip(count);
    std::int64_t length = source_->cardinality();
    if (length == kUnknownCardinality && size_ > kFewNumbers) {
      // A buffer may be far larger than the data: numbers of elements that there are not would fill
      // the memory.
      MUSTER_TRY(FillUp());
      if (over_ || count <= static_cast<std::int64_t>(size_)) return NodeIterator::Skip(count);
      buffer_.clear();
      MUSTER_TRY(Open());
    }
    for (int attempt = 0;; ++attempt) {
      const Replay replay = Simulate(count, length);
      MUSTER_TRY_ASSIGN(const std::optional<std::int64_t> shorter, Fill(replay));
      if (!shorter) {
        started_ = true;
        return replay.drawn;
      }
      if (attempt > 0) {
        return DataLoss("shuffle: the input had {}, and then {}", Counted(length, "element"),
                        *shorter);
      }
      // Now its length is known: once more, from its beginning.
      length = *shorter;
      buffer_.clear();
      MUSTER_TRY(Open());
    }
  }

 private:
  // A buffer of so many takes no memory to speak of.
  static constexpr std::size_t kFewNumbers = std::size_t{1} << 20;

  struct Replay {
    std::int64_t drawn = 0;
    std::int64_t consumed = 0;
    bool over = false;
    std::vector<std::int64_t> numbers;  // in the buffer's order
    SplitMix64 random{0};
  };

  Status FillUp() {
    while (!over_ && buffer_.size() < size_) {
      MUSTER_TRY_ASSIGN(std::optional<Element> element, input_->Next());
      over_ = !element.has_value();
      if (element) buffer_.push_back(*std::move(element));
    }
    return Ok();
  }

  // `length` may be infinite or unknown, which is taken for infinite.
  Replay Simulate(std::int64_t count, std::int64_t length) const {
    Replay replay;
    replay.random = SplitMix64(seed_);
    while (replay.drawn < count) {
      while (!replay.over && replay.numbers.size() < size_) {
        replay.over = replay.consumed == length;
        if (!replay.over) replay.numbers.push_back(replay.consumed++);
      }
      if (replay.numbers.empty()) break;
      Draw(replay.numbers, replay.random);
      ++replay.drawn;
    }
    return replay;
  }

  // Nothing when the buffer is as `replay` says; else how many elements the input has.
  Result<std::optional<std::int64_t>> Fill(const Replay& replay) {
    std::unordered_map<std::int64_t, std::size_t> place;
    std::int64_t at = replay.consumed;
    for (std::size_t i = 0; i < replay.numbers.size(); ++i) {
      place.emplace(replay.numbers[i], i);
      at = std::min(at, replay.numbers[i]);
    }
    MUSTER_TRY_ASSIGN(const std::int64_t skipped, input_->Skip(at));
    if (skipped < at) return std::optional(skipped);
    buffer_.assign(replay.numbers.size(), Element());
    for (; at < replay.consumed; ++at) {
      const auto found = place.find(at);
      if (found == place.end()) {
        MUSTER_TRY_ASSIGN(const std::int64_t one, input_->Skip(1));
        if (one == 0) return std::optional(at);
        continue;
      }
      MUSTER_TRY_ASSIGN(std::optional<Element> element, input_->Next());
      if (!element) return std::optional(at);
      buffer_[found->second] = *std::move(element);
    }
    random_ = replay.random;
    over_ = replay.over;
    return std::optional<std::int64_t>();
  }

  const NodePtr source_;
  const std::size_t size_;
  const std::uint64_t seed_;
  SplitMix64 random_;
  const IteratorContext context_;
  std::unique_ptr<NodeIterator> input_;
  std::vector<Element> buffer_;
  bool over_ = false;
  bool started_ = false;
};

class ShuffleNode final : public Node {
 public:
  ShuffleNode(NodePtr input, std::int64_t buffer, Pipeline::ShuffleOptions options,
              std::uint64_t drawn)
      : Node({std::move(input)}), buffer_(buffer), options_(options), drawn_(drawn) {}

  NodeKind kind() const override { return NodeKind::kShuffle; }
  std::string Describe() const override {
    return fmt::format("shuffle({}{}{})", buffer_,
                       options_.seed ? fmt::format(", seed={}", *options_.seed) : "",
                       options_.reshuffle_each_iteration ? "" : ", same order in each pass");
  }
  ElementSpec spec() const override { return input().spec(); }
  std::int64_t cardinality() const override { return input().cardinality(); }
  std::optional<std::uint64_t> drawn_seed() const override {
    if (options_.seed) return std::nullopt;
    return drawn_;
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeShuffle(std::move(inputs.front()), buffer_, options_, drawn_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    std::uint64_t seed = options_.seed ? Mix(*options_.seed) : SeedOf(*this, context);
    if (options_.reshuffle_each_iteration) seed ^= Mix(context.pass);
    auto shuffle = std::make_unique<Shuffle>(inputs().front(), buffer_, seed, context);
    MUSTER_TRY(shuffle->Open());
    return shuffle;
  }

 private:
  const std::int64_t buffer_;
  const Pipeline::ShuffleOptions options_;
  const std::uint64_t drawn_;
};

}  // namespace

NodePtr MakeShuffle(NodePtr input, std::int64_t buffer, Pipeline::ShuffleOptions options,
                    std::uint64_t drawn) {
  return std::make_shared<ShuffleNode>(std::move(input), buffer, options, drawn);
}

}  // namespace muster::data
