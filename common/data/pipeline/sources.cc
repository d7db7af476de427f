// Where elements come from.
#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "common/base/words.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/nodes.h"
#include "common/data/reader.h"

namespace muster::data {
namespace {

// Elements 0..count-1, each found from its number alone.
class NumberedIterator : public NodeIterator {
 public:
  explicit NumberedIterator(std::int64_t count) : count_(count) {}

  Item Next() override {
    if (next_ >= count_) return std::nullopt;
    return At(next_++);
  }
  Result<std::int64_t> Skip(std::int64_t count) override {
    const std::int64_t skipped = std::min(count, count_ - next_);
    next_ += skipped;
    return skipped;
  }

 protected:
  virtual Item At(std::int64_t number) = 0;
  // The next `most` numbers or fewer: first and count.
  std::pair<std::int64_t, std::int64_t> TakeNumbers(std::int64_t most) {
    const std::int64_t first = next_;
    next_ += std::min(most, count_ - next_);
    return {first, next_ - first};
  }
  std::int64_t count() const { return count_; }

 private:
  const std::int64_t count_;
  std::int64_t next_ = 0;
};

class Source : public Node {
 public:
  Source() : Node({}) {}
};

std::vector<ColumnInfo> RowSpec(const Element& rows) {
  std::vector<ColumnInfo> spec;
  for (const Column& column : rows.columns) {
    spec.push_back(column.info);
    spec.back().shape.erase(spec.back().shape.begin());
  }
  return spec;
}

std::string ToText(const std::vector<ColumnInfo>& spec) {
  return Joined(spec, kMostNamed, [](const ColumnInfo& info) { return ToText(info); });
}

class RangeNode final : public Source {
 public:
  RangeNode(std::int64_t start, std::int64_t stop, std::int64_t step)
      : start_(start), stop_(stop), step_(step) {}

  NodeKind kind() const override { return NodeKind::kRange; }
  std::string Describe() const override {
    return fmt::format("range({}, {}, {})", start_, stop_, step_);
  }
  ElementSpec spec() const override {
    return std::vector<ColumnInfo>{{.name = kValueColumn, .dtype = DType::kInt64, .shape = {}}};
  }
  std::int64_t cardinality() const override {
    if (step_ > 0 ? start_ >= stop_ : start_ <= stop_) return 0;
    const std::int64_t width = step_ > 0 ? stop_ - start_ : start_ - stop_;
    const std::int64_t step = step_ > 0 ? step_ : -step_;
    return (width - 1) / step + 1;
  }
  NodePtr WithInputs(std::vector<NodePtr>) const override {
    return MakeRange(start_, stop_, step_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const override {
    return std::make_unique<Iterator>(start_, step_, cardinality());
  }

 private:
  class Iterator final : public NumberedIterator {
   public:
    Iterator(std::int64_t start, std::int64_t step, std::int64_t count)
        : NumberedIterator(count), start_(start), step_(step) {}
    Item At(std::int64_t number) override { return Scalar<std::int64_t>(start_ + number * step_); }

   private:
    const std::int64_t start_, step_;
  };

  const std::int64_t start_, stop_, step_;
};

class SlicesNode final : public Source {
 public:
  SlicesNode(Element rows, std::int64_t count)
      : rows_(std::make_shared<const Element>(std::move(rows))), count_(count) {}

  NodeKind kind() const override { return NodeKind::kSlices; }
  std::string Describe() const override {
    return fmt::format("slices({} of {})", count_, ToText(RowSpec(*rows_)));
  }
  ElementSpec spec() const override { return RowSpec(*rows_); }
  std::int64_t cardinality() const override { return count_; }
  NodePtr WithInputs(std::vector<NodePtr>) const override { return MakeSlices(*rows_, count_); }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const override {
    return std::make_unique<Iterator>(rows_, count_);
  }

 private:
  class Iterator final : public NumberedIterator {
   public:
    Iterator(std::shared_ptr<const Element> rows, std::int64_t count)
        : NumberedIterator(count), rows_(std::move(rows)) {}
    Item At(std::int64_t number) override { return Row(*rows_, number); }
    // A copy: what is done to a batch must not reach the source.
    Item NextBatch(std::int64_t rows) override {
      const auto [first, count] = TakeNumbers(rows);
      if (count == 0) return std::nullopt;
      MUSTER_TRY_ASSIGN(Element batch, Copy(SliceRows(*rows_, first, first + count)));
      return batch;
    }

   private:
    const std::shared_ptr<const Element> rows_;
  };

  const std::shared_ptr<const Element> rows_;
  const std::int64_t count_;
};

class ElementsNode final : public Source {
 public:
  explicit ElementsNode(std::shared_ptr<const std::vector<Element>> elements)
      : elements_(std::move(elements)) {}

  NodeKind kind() const override { return NodeKind::kElements; }
  std::string Describe() const override {
    const ElementSpec columns = spec();
    return fmt::format("elements({} of {})", elements_->size(), columns ? ToText(*columns) : "?");
  }
  ElementSpec spec() const override {
    if (elements_->empty()) return std::nullopt;
    std::vector<ColumnInfo> common;
    for (const Column& column : elements_->front().columns) common.push_back(column.info);
    for (const Element& element : *elements_) {
      if (element.columns.size() != common.size()) return std::nullopt;
      for (std::size_t c = 0; c < common.size(); ++c) {
        const ColumnInfo& other = element.columns[c].info;
        if (other.name != common[c].name || other.dtype != common[c].dtype ||
            other.shape.size() != common[c].shape.size()) {
          return std::nullopt;
        }
        for (std::size_t d = 0; d < other.shape.size(); ++d) {
          if (other.shape[d] != common[c].shape[d]) common[c].shape[d] = -1;
        }
      }
    }
    return common;
  }
  std::int64_t cardinality() const override { return static_cast<std::int64_t>(elements_->size()); }
  NodePtr WithInputs(std::vector<NodePtr>) const override {
    return std::make_shared<ElementsNode>(elements_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const override {
    return std::make_unique<Iterator>(elements_);
  }

 private:
  class Iterator final : public NumberedIterator {
   public:
    explicit Iterator(std::shared_ptr<const std::vector<Element>> elements)
        : NumberedIterator(static_cast<std::int64_t>(elements->size())),
          elements_(std::move(elements)) {}
    Item At(std::int64_t number) override { return (*elements_)[static_cast<std::size_t>(number)]; }

   private:
    const std::shared_ptr<const std::vector<Element>> elements_;
  };

  const std::shared_ptr<const std::vector<Element>> elements_;
};

class FileNamesNode final : public Source {
 public:
  explicit FileNamesNode(std::shared_ptr<const std::vector<std::string>> names)
      : names_(std::move(names)) {}

  NodeKind kind() const override { return NodeKind::kFileNames; }
  std::string Describe() const override {
    std::string all;
    for (const std::string& name : *names_) all += name + "\n";
    return fmt::format("file_names({}, {:016x})", names_->size(),
                       XXH3_64bits(all.data(), all.size()));
  }
  ElementSpec spec() const override {
    return std::vector<ColumnInfo>{{.name = kValueColumn, .dtype = DType::kString, .shape = {}}};
  }
  std::int64_t cardinality() const override { return static_cast<std::int64_t>(names_->size()); }
  NodePtr WithInputs(std::vector<NodePtr>) const override {
    return std::make_shared<FileNamesNode>(names_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const override {
    return std::make_unique<Iterator>(names_);
  }

 private:
  class Iterator final : public NumberedIterator {
   public:
    explicit Iterator(std::shared_ptr<const std::vector<std::string>> names)
        : NumberedIterator(static_cast<std::int64_t>(names->size())), names_(std::move(names)) {}
    Item At(std::int64_t number) override {
      return Scalar<std::string>((*names_)[static_cast<std::size_t>(number)]);
    }

   private:
    const std::shared_ptr<const std::vector<std::string>> names_;
  };

  const std::shared_ptr<const std::vector<std::string>> names_;
};

class GeneratorNode final : public Source {
 public:
  GeneratorNode(GeneratorFunction function, Pipeline::GeneratorOptions options)
      : function_(std::move(function)), options_(std::move(options)) {}

  NodeKind kind() const override { return NodeKind::kGenerator; }
  std::string Describe() const override { return fmt::format("generator({})", options_.name); }
  ElementSpec spec() const override { return options_.spec; }
  std::int64_t cardinality() const override { return options_.cardinality; }
  NodePtr WithInputs(std::vector<NodePtr>) const override {
    return MakeGenerator(function_, options_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    return std::make_unique<Iterator>(function_, context.stop);
  }

 private:
  class Iterator final : public NodeIterator {
   public:
    Iterator(GeneratorFunction function, std::stop_token stop)
        : function_(std::move(function)), stop_(std::move(stop)) {}
    Item Next() override {
      return Guarded("generator", [&]() -> Item {
        if (!pass_) pass_ = function_();
        return pass_(stop_);
      });
    }

   private:
    const GeneratorFunction function_;
    const std::stop_token stop_;
    GeneratorPass pass_;  // empty before the first element
  };

  const GeneratorFunction function_;
  const Pipeline::GeneratorOptions options_;
};

class RecordsNode final : public Source {
 public:
  RecordsNode(std::shared_ptr<const Reader> reader, std::string name)
      : reader_(std::move(reader)), name_(std::move(name)) {}

  NodeKind kind() const override { return NodeKind::kRecords; }
  std::string Describe() const override {
    return fmt::format("records({}, {} of {})", name_, reader_->records(), ToText(*spec()));
  }
  ElementSpec spec() const override {
    std::vector<ColumnInfo> columns = reader_->columns();
    for (ColumnInfo& info : columns) info.shape.erase(info.shape.begin());
    return columns;
  }
  std::int64_t cardinality() const override {
    return static_cast<std::int64_t>(reader_->records());
  }
  NodePtr WithInputs(std::vector<NodePtr>) const override { return MakeRecords(reader_, name_); }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const override {
    return std::make_unique<Iterator>(reader_);
  }

 private:
  class Iterator final : public NumberedIterator {
   public:
    explicit Iterator(std::shared_ptr<const Reader> reader)
        : NumberedIterator(static_cast<std::int64_t>(reader->records())),
          reader_(std::move(reader)) {}
    Item At(std::int64_t number) override {
      if (number < block_first_ || number >= block_first_ + block_rows_) {
        block_rows_ = 0;
        const std::int64_t rows = std::min(kBlock, count() - number);
        MUSTER_TRY_ASSIGN(block_, Read(number, rows));
        block_first_ = number;
        block_rows_ = rows;
      }
      return Row(block_, number - block_first_);
    }
    Item NextBatch(std::int64_t rows) override {
      const auto [first, count] = TakeNumbers(rows);
      if (count == 0) return std::nullopt;
      MUSTER_TRY_ASSIGN(Element batch, Read(first, count));
      return batch;
    }

   private:
    // Records that are parsed at a time.
    static constexpr std::int64_t kBlock = 64;

    Result<Element> Read(std::int64_t first, std::int64_t rows) const {
      std::vector<std::uint64_t> numbers(static_cast<std::size_t>(rows));
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<std::uint64_t>(first) + i;
      }
      return reader_->Read(numbers);
    }

    const std::shared_ptr<const Reader> reader_;
    Element block_;
    std::int64_t block_first_ = 0;
    std::int64_t block_rows_ = 0;
  };

  const std::shared_ptr<const Reader> reader_;
  const std::string name_;
};

}  // namespace

NodePtr MakeRange(std::int64_t start, std::int64_t stop, std::int64_t step) {
  return std::make_shared<RangeNode>(start, stop, step);
}
NodePtr MakeSlices(Element rows, std::int64_t count) {
  return std::make_shared<SlicesNode>(std::move(rows), count);
}
NodePtr MakeElements(std::vector<Element> elements) {
  return std::make_shared<ElementsNode>(
      std::make_shared<const std::vector<Element>>(std::move(elements)));
}
NodePtr MakeGenerator(GeneratorFunction function, Pipeline::GeneratorOptions options) {
  return std::make_shared<GeneratorNode>(std::move(function), std::move(options));
}
NodePtr MakeFileNames(std::vector<std::string> names) {
  return std::make_shared<FileNamesNode>(
      std::make_shared<const std::vector<std::string>>(std::move(names)));
}
NodePtr MakeRecords(std::shared_ptr<const Reader> reader, std::string name) {
  return std::make_shared<RecordsNode>(std::move(reader), std::move(name));
}

}  // namespace muster::data
