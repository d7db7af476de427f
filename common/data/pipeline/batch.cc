// batch(), and the two ways to cut batches anew.
#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>

#include "common/base/words.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/nodes.h"
#include "common/data/pipeline/rewrite.h"

namespace muster::data {
namespace {

using IteratorPtr = std::unique_ptr<NodeIterator>;

// `spec` with another first dimension.
ElementSpec WithRows(ElementSpec spec, std::int64_t rows) {
  if (!spec) return spec;
  for (ColumnInfo& info : *spec) {
    if (!info.shape.empty()) info.shape[0] = rows;
  }
  return spec;
}

class BatchNode final : public Node {
 public:
  BatchNode(NodePtr input, std::int64_t size, bool drop_remainder)
      : Node({std::move(input)}), size_(size), drop_remainder_(drop_remainder) {}

  NodeKind kind() const override { return NodeKind::kBatch; }
  std::string Describe() const override {
    return fmt::format("batch({}{})", size_, drop_remainder_ ? ", drop_remainder" : "");
  }
  ElementSpec spec() const override {
    ElementSpec spec = input().spec();
    if (!spec) return spec;
    const bool full = drop_remainder_ || input().cardinality() == kInfinite;
    for (ColumnInfo& info : *spec) info.shape.insert(info.shape.begin(), full ? size_ : -1);
    return spec;
  }
  std::int64_t cardinality() const override {
    const std::int64_t all = input().cardinality();
    if (all < 0) return all;
    return all / size_ + (drop_remainder_ || all % size_ == 0 ? 0 : 1);
  }
  NodeFacts facts() const override { return {.batch_size = size_}; }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeBatch(std::move(inputs.front()), size_, drop_remainder_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    return std::make_unique<Iterator>(std::move(from), size_, drop_remainder_);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr input, std::int64_t size, bool drop_remainder)
        : input_(std::move(input)), size_(size), drop_remainder_(drop_remainder) {}

    Item Next() override {
      if (over_) return std::nullopt;
      MUSTER_TRY_ASSIGN(std::optional<Element> batch, input_->NextBatch(size_));
      if (!batch) return std::nullopt;
      MUSTER_TRY_ASSIGN(const std::int64_t rows, Rows(*batch));
      over_ = rows < size_;
      if (over_ && drop_remainder_) return std::nullopt;
      return batch;
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      if (over_) return std::int64_t{0};
      count = std::min(count, std::numeric_limits<std::int64_t>::max() / size_);
      MUSTER_TRY_ASSIGN(const std::int64_t rows, input_->Skip(count * size_));
      over_ = rows < count * size_;
      return rows / size_ + (drop_remainder_ || rows % size_ == 0 ? 0 : 1);
    }

   private:
    const IteratorPtr input_;
    const std::int64_t size_;
    const bool drop_remainder_;
    bool over_ = false;
  };

  const std::int64_t size_;
  const bool drop_remainder_;
};

// Whether only the last batch of `node` can be smaller than the others.
bool FullButTheLast(const Node& node) {
  switch (node.kind()) {
    case NodeKind::kBatch:
      return true;
    case NodeKind::kPrefetch:
    case NodeKind::kOptions:
    case NodeKind::kCache:
    case NodeKind::kTake:
    case NodeKind::kSkip:
    case NodeKind::kShard:
      return FullButTheLast(*node.inputs().front());
    default:
      return false;
  }
}

class RebatchNode final : public Node {
 public:
  RebatchNode(NodePtr input, std::vector<std::int64_t> sizes)
      : Node({std::move(input)}), sizes_(std::move(sizes)) {}

  NodeKind kind() const override { return NodeKind::kRebatch; }
  std::string Describe() const override { return "rebatch(" + Joined(sizes_) + ")"; }
  ElementSpec spec() const override {
    const bool even = std::equal(sizes_.begin() + 1, sizes_.end(), sizes_.begin());
    const bool full = StaticBatchSize(input()) == Sum();
    return WithRows(input().spec(), even && full ? sizes_[0] : -1);
  }
  std::int64_t cardinality() const override {
    return input().cardinality() == kInfinite ? kInfinite : kUnknownCardinality;
  }
  NodeFacts facts() const override { return {.pieces = static_cast<int>(sizes_.size())}; }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeRebatch(std::move(inputs.front()), sizes_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    // Batches that Skip() need not look at.
    const std::int64_t full =
        FullButTheLast(input()) ? InferBatchSize(input()) : StaticBatchSize(input());
    return std::make_unique<Iterator>(std::move(from), sizes_, full);
  }

 private:
  std::int64_t Sum() const {
    return std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
  }

  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr input, std::vector<std::int64_t> sizes, std::int64_t full)
        : input_(std::move(input)), sizes_(std::move(sizes)), full_(full) {}

    Item Next() override {
      const std::int64_t size = sizes_[next_];
      // An empty piece too stands only where there is more to come.
      MUSTER_TRY_ASSIGN(const std::int64_t ready, Await(std::max<std::int64_t>(size, 1)));
      if (ready == 0) return std::nullopt;
      next_ = (next_ + 1) % sizes_.size();
      return TakeRows(std::min(size, ready));
    }

    Result<std::int64_t> Skip(std::int64_t count) override {
      if (full_ < 1 || !pending_.empty() || over_) return NodeIterator::Skip(count);
      // Never past the last but one: whether the last is there, and whole, has to be seen.
      std::int64_t rows = 0;
      std::int64_t pieces = 0;
      for (; pieces + 1 < count; ++pieces) {
        rows += sizes_[next_];
        next_ = (next_ + 1) % sizes_.size();
      }
      MUSTER_TRY_ASSIGN(const std::int64_t batches, input_->Skip(rows / full_));
      if (batches < rows / full_) {
        over_ = true;
        return DataLoss("rebatch: {} of {} {} wanted, {} there", Counted(rows / full_, "batch"),
                        full_, Agreeing(rows / full_, "was", "were"),
                        batches == 1 ? "1 is" : fmt::format("{} are", batches));
      }
      MUSTER_TRY_ASSIGN(const std::int64_t ready, Await(rows % full_));
      if (ready >= rows % full_ && rows % full_ > 0) {
        MUSTER_TRY(TakeRows(rows % full_).status());
      }
      MUSTER_TRY_ASSIGN(const std::int64_t rest, NodeIterator::Skip(count - pieces));
      return pieces + rest;
    }

   private:
    // Reads until `rows` are there or the data ends; how many there are.
    Result<std::int64_t> Await(std::int64_t rows) {
      while (pending_rows_ < rows && !over_) {
        MUSTER_TRY_ASSIGN(std::optional<Element> batch, input_->Next());
        if (!batch) {
          over_ = true;
          break;
        }
        MUSTER_TRY_ASSIGN(const std::int64_t more, Rows(*batch));
        if (more == 0) continue;
        pending_rows_ += more;
        pending_.push_back(*std::move(batch));
      }
      return pending_rows_;
    }

    // The next `rows` of those that are there; for none, a piece of the right columns.
    Item TakeRows(std::int64_t rows) {
      if (rows == 0) return SliceRows(pending_.front(), 0, 0);
      std::vector<Element> parts;
      for (std::int64_t left = rows; left > 0;) {
        Element& front = pending_.front();
        const std::int64_t here = front.columns[0].info.shape[0];
        const std::int64_t take = std::min(left, here);
        parts.push_back(SliceRows(front, 0, take));
        left -= take;
        if (take == here) {
          pending_.pop_front();
        } else {
          front = SliceRows(front, take, here);
        }
      }
      pending_rows_ -= rows;
      MUSTER_TRY_ASSIGN(Element piece, JoinRows(parts));
      return piece;
    }

    const IteratorPtr input_;
    const std::vector<std::int64_t> sizes_;
    const std::int64_t full_;  // rows of every batch but the last; -1: not known
    std::size_t next_ = 0;
    std::deque<Element> pending_;
    std::int64_t pending_rows_ = 0;
    bool over_ = false;
  };

  const std::vector<std::int64_t> sizes_;
};

class EvenRebatchNode final : public Node {
 public:
  EvenRebatchNode(NodePtr input, int pieces) : Node({std::move(input)}), pieces_(pieces) {}

  NodeKind kind() const override { return NodeKind::kEvenRebatch; }
  std::string Describe() const override { return fmt::format("even_rebatch({})", pieces_); }
  ElementSpec spec() const override {
    const std::int64_t size = StaticBatchSize(input());
    const bool even = size > 0 && size % pieces_ == 0;
    return WithRows(input().spec(), even ? size / pieces_ : -1);
  }
  std::int64_t cardinality() const override {
    return MultiplyCardinality(input().cardinality(), pieces_);
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeEvenRebatch(std::move(inputs.front()), pieces_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    return std::make_unique<Iterator>(std::move(from), pieces_);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr input, int pieces) : input_(std::move(input)), pieces_(pieces) {}

    Item Next() override {
      if (next_ == sizes_.size()) {
        MUSTER_TRY_ASSIGN(std::optional<Element> batch, input_->Next());
        if (!batch) return std::nullopt;
        MUSTER_TRY_ASSIGN(const std::int64_t rows, Rows(*batch));
        MUSTER_TRY_ASSIGN(sizes_, EvenSplit(rows, pieces_));
        batch_ = *std::move(batch);
        next_ = 0;
        at_ = 0;
      }
      const std::int64_t begin = at_;
      at_ += sizes_[next_++];
      return SliceRows(batch_, begin, at_);
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      std::int64_t skipped = 0;
      while (skipped < count && next_ < sizes_.size()) {
        at_ += sizes_[next_++];
        ++skipped;
      }
      const std::int64_t batches = (count - skipped) / pieces_;
      MUSTER_TRY_ASSIGN(const std::int64_t passed, input_->Skip(batches));
      skipped += passed * pieces_;
      if (passed < batches || skipped == count) return skipped;
      MUSTER_TRY_ASSIGN(const std::int64_t rest, NodeIterator::Skip(count - skipped));
      return skipped + rest;
    }

   private:
    const IteratorPtr input_;
    const int pieces_;
    Element batch_;
    std::vector<std::int64_t> sizes_;
    std::size_t next_ = 0;
    std::int64_t at_ = 0;
  };

  const int pieces_;
};

}  // namespace

NodePtr MakeBatch(NodePtr input, std::int64_t size, bool drop_remainder) {
  return std::make_shared<BatchNode>(std::move(input), size, drop_remainder);
}
NodePtr MakeRebatch(NodePtr input, std::vector<std::int64_t> sizes) {
  return std::make_shared<RebatchNode>(std::move(input), std::move(sizes));
}
NodePtr MakeEvenRebatch(NodePtr input, int pieces) {
  return std::make_shared<EvenRebatchNode>(std::move(input), pieces);
}

}  // namespace muster::data
