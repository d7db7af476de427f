// The steps that need no thread and no buffer.
#include <algorithm>
#include <limits>

#include "common/base/split_mix.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

using IteratorPtr = std::unique_ptr<NodeIterator>;

// Over one input whose elements it passes on as they are.
class PassNode : public Node {
 public:
  explicit PassNode(NodePtr input) : Node({std::move(input)}) {}
  ElementSpec spec() const override { return input().spec(); }
};

class FilterNode final : public PassNode {
 public:
  FilterNode(NodePtr input, FilterFunction function)
      : PassNode(std::move(input)), function_(std::move(function)) {}
  NodeKind kind() const override { return NodeKind::kFilter; }
  std::string Describe() const override { return "filter"; }
  std::int64_t cardinality() const override {
    return input().cardinality() == 0 ? 0 : kUnknownCardinality;
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeFilter(std::move(inputs.front()), function_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    return std::make_unique<Iterator>(std::move(from), function_, context.stop);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr input, FilterFunction function, std::stop_token stop)
        : input_(std::move(input)), function_(std::move(function)), stop_(std::move(stop)) {}
    Item Next() override {
      // It may never let one through.
      while (!stop_.stop_requested()) {
        MUSTER_TRY_ASSIGN(std::optional<Element> element, input_->Next());
        if (!element) return std::nullopt;
        MUSTER_TRY_ASSIGN(const bool keep, Guarded("filter", [&] { return function_(*element); }));
        if (keep) return element;
      }
      return Stopped();
    }

   private:
    const IteratorPtr input_;
    const FilterFunction function_;
    const std::stop_token stop_;
  };
  const FilterFunction function_;
};

class RepeatNode final : public PassNode {
 public:
  RepeatNode(NodePtr input, std::optional<std::int64_t> count)
      : PassNode(std::move(input)), count_(count) {}
  NodeKind kind() const override { return NodeKind::kRepeat; }
  std::string Describe() const override {
    return count_ ? fmt::format("repeat({})", *count_) : "repeat()";
  }
  std::int64_t cardinality() const override {
    return MultiplyCardinality(input().cardinality(), count_ ? *count_ : kInfinite);
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeRepeat(std::move(inputs.front()), count_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    return std::make_unique<Iterator>(inputs().front(), count_, context);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(NodePtr source, std::optional<std::int64_t> count, IteratorContext context)
        : source_(std::move(source)), count_(count), context_(std::move(context)) {}

    Item Next() override {
      while (true) {
        MUSTER_TRY_ASSIGN(const bool more, Begin());
        if (!more) return std::nullopt;
        MUSTER_TRY_ASSIGN(std::optional<Element> element, input_->Next());
        if (element) {
          any_ = true;
          return element;
        }
        End();
      }
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      std::int64_t skipped = 0;
      const std::int64_t length = source_->cardinality();
      if (input_ == nullptr && length > 0) {
        // Whole passes cost nothing.
        std::int64_t passes = count / length;
        if (count_) passes = std::min(passes, *count_ - pass_);
        pass_ += passes;
        any_ = any_ || passes > 0;
        skipped = passes * length;
      }
      while (skipped < count) {
        MUSTER_TRY_ASSIGN(const bool more, Begin());
        if (!more) break;
        MUSTER_TRY_ASSIGN(const std::int64_t here, input_->Skip(count - skipped));
        skipped += here;
        any_ = any_ || here > 0;
        if (skipped < count) End();
      }
      return skipped;
    }

   private:
    // False: there is no further pass.
    Result<bool> Begin() {
      if (input_ != nullptr) return true;
      if (count_ && pass_ >= *count_) return false;
      // For ever nothing is nothing.
      if (!count_ && pass_ > 0 && !any_) return false;
      if (context_.stop.stop_requested()) return Stopped();
      IteratorContext context = context_;
      context.pass = Mix(context_.pass) + static_cast<std::uint64_t>(pass_);
      MUSTER_TRY_ASSIGN(input_, source_->MakeIterator(context));
      any_ = false;
      return true;
    }
    void End() {
      input_.reset();
      ++pass_;
    }

    const NodePtr source_;
    const std::optional<std::int64_t> count_;
    const IteratorContext context_;
    IteratorPtr input_;
    std::int64_t pass_ = 0;
    bool any_ = true;  // the pass before this one, or this one, had an element
  };
  const std::optional<std::int64_t> count_;
};

class TakeNode final : public PassNode {
 public:
  TakeNode(NodePtr input, std::int64_t count) : PassNode(std::move(input)), count_(count) {}
  NodeKind kind() const override { return NodeKind::kTake; }
  std::string Describe() const override { return fmt::format("take({})", count_); }
  std::int64_t cardinality() const override {
    return MinCardinality(input().cardinality(), count_);
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeTake(std::move(inputs.front()), count_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    return std::make_unique<Iterator>(std::move(from), count_);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr input, std::int64_t left) : input_(std::move(input)), left_(left) {}
    Item Next() override {
      if (left_ == 0) return std::nullopt;
      --left_;
      return input_->Next();
    }
    Item NextBatch(std::int64_t rows) override {
      if (left_ == 0) return std::nullopt;
      rows = std::min(rows, left_);
      left_ -= rows;
      return input_->NextBatch(rows);
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      count = std::min(count, left_);
      left_ -= count;
      return input_->Skip(count);
    }

   private:
    const IteratorPtr input_;
    std::int64_t left_;
  };
  const std::int64_t count_;
};

class SkipNode final : public PassNode {
 public:
  SkipNode(NodePtr input, std::int64_t count) : PassNode(std::move(input)), count_(count) {}
  NodeKind kind() const override { return NodeKind::kSkip; }
  std::string Describe() const override { return fmt::format("skip({})", count_); }
  std::int64_t cardinality() const override {
    const std::int64_t all = input().cardinality();
    return all < 0 ? all : std::max<std::int64_t>(0, all - count_);
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeSkip(std::move(inputs.front()), count_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    return std::make_unique<Iterator>(std::move(from), count_);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr input, std::int64_t before) : input_(std::move(input)), before_(before) {}
    Item Next() override {
      MUSTER_TRY_ASSIGN(const bool more, Begin());
      if (!more) return std::nullopt;
      return input_->Next();
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      MUSTER_TRY_ASSIGN(const bool more, Begin());
      if (!more) return std::int64_t{0};
      return input_->Skip(count);
    }

   private:
    Result<bool> Begin() {
      const std::int64_t before = std::exchange(before_, 0);
      if (before == 0) return true;
      MUSTER_TRY_ASSIGN(const std::int64_t skipped, input_->Skip(before));
      return skipped == before;
    }

    const IteratorPtr input_;
    std::int64_t before_;
  };
  const std::int64_t count_;
};

class ConcatenateNode final : public Node {
 public:
  ConcatenateNode(NodePtr first, NodePtr second) : Node({std::move(first), std::move(second)}) {}
  NodeKind kind() const override { return NodeKind::kConcatenate; }
  std::string Describe() const override { return "concatenate"; }
  ElementSpec spec() const override {
    ElementSpec first = inputs()[0]->spec();
    const ElementSpec second = inputs()[1]->spec();
    if (!first || !second || first->size() != second->size()) return std::nullopt;
    for (std::size_t c = 0; c < first->size(); ++c) {
      ColumnInfo& mine = (*first)[c];
      const ColumnInfo& other = (*second)[c];
      if (mine.dtype != other.dtype || mine.shape.size() != other.shape.size()) return std::nullopt;
      for (std::size_t d = 0; d < mine.shape.size(); ++d) {
        if (mine.shape[d] != other.shape[d]) mine.shape[d] = -1;
      }
    }
    return first;
  }
  std::int64_t cardinality() const override {
    return AddCardinality(inputs()[0]->cardinality(), inputs()[1]->cardinality());
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeConcatenate(std::move(inputs[0]), std::move(inputs[1]));
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr first, inputs()[0]->MakeIterator(context));
    MUSTER_TRY_ASSIGN(IteratorPtr second, inputs()[1]->MakeIterator(context));
    return std::make_unique<Iterator>(std::move(first), std::move(second));
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(IteratorPtr first, IteratorPtr second)
        : first_(std::move(first)), second_(std::move(second)) {}
    Item Next() override {
      if (first_ != nullptr) {
        MUSTER_TRY_ASSIGN(std::optional<Element> element, first_->Next());
        if (element) return element;
        first_.reset();
      }
      return second_->Next();
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      std::int64_t skipped = 0;
      if (first_ != nullptr) {
        MUSTER_TRY_ASSIGN(skipped, first_->Skip(count));
        if (skipped == count) return count;
        first_.reset();
      }
      MUSTER_TRY_ASSIGN(const std::int64_t more, second_->Skip(count - skipped));
      return skipped + more;
    }

   private:
    IteratorPtr first_;  // null: at its end
    const IteratorPtr second_;
  };
};

// Columns of input i get the prefix "i": its only value is called "i", its column x "i/x".
std::string ZippedName(std::size_t input, const std::string& name) {
  return name == "value" ? fmt::format("{}", input) : fmt::format("{}/{}", input, name);
}

class ZipNode final : public Node {
 public:
  explicit ZipNode(std::vector<NodePtr> inputs) : Node(std::move(inputs)) {}
  NodeKind kind() const override { return NodeKind::kZip; }
  std::string Describe() const override { return "zip"; }
  ElementSpec spec() const override {
    std::vector<ColumnInfo> all;
    for (std::size_t i = 0; i < inputs().size(); ++i) {
      const ElementSpec one = inputs()[i]->spec();
      if (!one) return std::nullopt;
      for (ColumnInfo info : *one) {
        info.name = ZippedName(i, info.name);
        all.push_back(std::move(info));
      }
    }
    return all;
  }
  std::int64_t cardinality() const override {
    std::int64_t least = kInfinite;
    for (const NodePtr& input : inputs()) least = MinCardinality(least, input->cardinality());
    return least;
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeZip(std::move(inputs));
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    std::vector<IteratorPtr> all;
    for (const NodePtr& input : inputs()) {
      MUSTER_TRY_ASSIGN(IteratorPtr one, input->MakeIterator(context));
      all.push_back(std::move(one));
    }
    return std::make_unique<Iterator>(std::move(all));
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    explicit Iterator(std::vector<IteratorPtr> inputs) : inputs_(std::move(inputs)) {}
    Item Next() override {
      Element zipped;
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        MUSTER_TRY_ASSIGN(std::optional<Element> element, inputs_[i]->Next());
        if (!element) return std::nullopt;
        for (Column& column : element->columns) {
          column.info.name = ZippedName(i, column.info.name);
          zipped.columns.push_back(std::move(column));
        }
      }
      return zipped;
    }
    Result<std::int64_t> Skip(std::int64_t count) override {
      for (const IteratorPtr& input : inputs_) {
        MUSTER_TRY_ASSIGN(count, input->Skip(count));
      }
      return count;
    }

   private:
    const std::vector<IteratorPtr> inputs_;
  };
};

class OptionsNode final : public PassNode {
 public:
  OptionsNode(NodePtr input, AutoShardPolicy policy)
      : PassNode(std::move(input)), policy_(policy) {}
  NodeKind kind() const override { return NodeKind::kOptions; }
  std::string Describe() const override {
    static constexpr const char* kNames[] = {"OFF", "AUTO", "FILE", "DATA", "HINT"};
    return fmt::format("options(auto_shard={})", kNames[static_cast<int>(policy_)]);
  }
  std::int64_t cardinality() const override { return input().cardinality(); }
  NodeFacts facts() const override { return {.policy = policy_}; }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeOptions(std::move(inputs.front()), policy_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    return input().MakeIterator(context);
  }

 private:
  const AutoShardPolicy policy_;
};

class CustomNode final : public Node {
 public:
  CustomNode(NodePtr input, std::string name, CustomFunction function,
             Pipeline::CustomOptions options)
      : Node({std::move(input)}),
        name_(std::move(name)),
        function_(std::move(function)),
        options_(std::move(options)) {}
  NodeKind kind() const override { return NodeKind::kCustom; }
  std::string Describe() const override { return fmt::format("custom({})", name_); }
  NodeFacts facts() const override { return {.passes_files = options_.passes_files}; }
  ElementSpec spec() const override { return options_.spec; }
  std::int64_t cardinality() const override { return options_.cardinality; }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeCustom(std::move(inputs.front()), name_, function_, options_);
  }
  Result<IteratorPtr> MakeIterator(const IteratorContext& context) const override {
    MUSTER_TRY_ASSIGN(IteratorPtr from, input().MakeIterator(context));
    return Guarded("custom step", [&] { return function_(std::move(from), context); });
  }

 private:
  const std::string name_;
  const CustomFunction function_;
  const Pipeline::CustomOptions options_;
};

}  // namespace

std::int64_t AddCardinality(std::int64_t a, std::int64_t b) {
  if (a == kInfinite || b == kInfinite) return kInfinite;
  if (a == kUnknownCardinality || b == kUnknownCardinality) return kUnknownCardinality;
  return a > std::numeric_limits<std::int64_t>::max() - b ? kInfinite : a + b;
}

std::int64_t MultiplyCardinality(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  if (a == kUnknownCardinality || b == kUnknownCardinality) return kUnknownCardinality;
  if (a == kInfinite || b == kInfinite) return kInfinite;
  return a > std::numeric_limits<std::int64_t>::max() / b ? kInfinite : a * b;
}

std::int64_t MinCardinality(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  if (a == kInfinite) return b;
  if (b == kInfinite) return a;
  if (a == kUnknownCardinality || b == kUnknownCardinality) return kUnknownCardinality;
  return std::min(a, b);
}

NodePtr MakeFilter(NodePtr input, FilterFunction function) {
  return std::make_shared<FilterNode>(std::move(input), std::move(function));
}
NodePtr MakeRepeat(NodePtr input, std::optional<std::int64_t> count) {
  return std::make_shared<RepeatNode>(std::move(input), count);
}
NodePtr MakeZip(std::vector<NodePtr> inputs) {
  return std::make_shared<ZipNode>(std::move(inputs));
}
NodePtr MakeConcatenate(NodePtr first, NodePtr second) {
  return std::make_shared<ConcatenateNode>(std::move(first), std::move(second));
}
NodePtr MakeTake(NodePtr input, std::int64_t count) {
  return std::make_shared<TakeNode>(std::move(input), count);
}
NodePtr MakeSkip(NodePtr input, std::int64_t count) {
  return std::make_shared<SkipNode>(std::move(input), count);
}
NodePtr MakeOptions(NodePtr input, AutoShardPolicy policy) {
  return std::make_shared<OptionsNode>(std::move(input), policy);
}
NodePtr MakeCustom(NodePtr input, std::string name, CustomFunction function,
                   Pipeline::CustomOptions options) {
  return std::make_shared<CustomNode>(std::move(input), std::move(name), std::move(function),
                                      std::move(options));
}

}  // namespace muster::data
