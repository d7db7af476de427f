// Steps of datasets that need no node of their own: over functions, generators and custom steps.
#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/pipeline.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/input/element_codec.h"
#include "strategy/input/graph.h"
#include "strategy/input/internal/pipelines.h"

namespace muster::internal {
namespace {

using data::Element;
using data::Item;
using Input = std::unique_ptr<data::NodeIterator>;

// Several elements at a time. An input is not asked again after its end: prefetch() below it would
// wait for ever.
class Runs {
 public:
  explicit Runs(Input input) : input_(std::move(input)) {}

  // Up to `most` elements; fewer at the end.
  Result<std::vector<Element>> Take(std::int64_t most) {
    std::vector<Element> taken;
    while (!over_ && static_cast<std::int64_t>(taken.size()) < most) {
      MUSTER_TRY_ASSIGN(std::optional<Element> one, input_->Next());
      over_ = !one;
      if (one) taken.push_back(*std::move(one));
    }
    return taken;
  }
  Status Skip(std::int64_t count) {
    if (over_ || count <= 0) return Ok();
    MUSTER_TRY_ASSIGN(const std::int64_t passed, input_->Skip(count));
    over_ = passed < count;
    return Ok();
  }

 private:
  const Input input_;
  bool over_ = false;
};

class WhileTrue final : public data::NodeIterator {
 public:
  WhileTrue(Input input, const Graph::FilterFunction& function)
      : input_(std::move(input)), function_(function) {}
  Item Next() override {
    if (over_) return std::nullopt;
    MUSTER_TRY_ASSIGN(std::optional<Element> one, input_->Next());
    if (!one) return std::nullopt;
    MUSTER_TRY_ASSIGN(const bool goes_on, call_user<bool>([&] { return function_(*one); }));
    over_ = !goes_on;
    if (over_) return std::nullopt;
    return one;
  }

 private:
  const Input input_;
  const Graph::FilterFunction function_;
  bool over_ = false;
};

class Windows final : public data::NodeIterator {
 public:
  Windows(Input input, const WindowOptions& options) : input_(std::move(input)), how_(options) {}

  Item Next() override {
    const std::int64_t reach = (how_.size - 1) * how_.stride + 1;
    MUSTER_TRY_ASSIGN(std::vector<Element> more,
                      input_.Take(reach - static_cast<std::int64_t>(ahead_.size())));
    for (Element& one : more) ahead_.push_back(std::move(one));
    const auto there = static_cast<std::int64_t>(ahead_.size());
    if (there == 0 || (how_.drop_remainder && there < reach)) return std::nullopt;
    Element window;
    for (std::int64_t i = 0; i * how_.stride < std::min(there, reach); ++i) {
      for (data::Column column : ahead_[static_cast<std::size_t>(i * how_.stride)].columns) {
        const std::string place = std::to_string(i);
        column.info.name =
            column.info.name == kOnlyColumn ? place : join_path(place, column.info.name);
        window.columns.push_back(std::move(column));
      }
    }
    const std::int64_t kept = std::min(how_.shift, there);
    ahead_.erase(ahead_.begin(), ahead_.begin() + kept);
    MUSTER_TRY(input_.Skip(how_.shift - kept));
    return window;
  }

 private:
  Runs input_;
  const WindowOptions how_;
  std::deque<Element> ahead_;
};

class PaddedBatches final : public data::NodeIterator {
 public:
  PaddedBatches(Input input, std::int64_t size, const PaddedBatchOptions& how)
      : input_(std::move(input)), size_(size), how_(how) {}

  Item Next() override {
    MUSTER_TRY_ASSIGN(const std::vector<Element> rows, input_.Take(size_));
    const auto count = static_cast<std::int64_t>(rows.size());
    if (count == 0 || (how_.drop_remainder && count < size_)) return std::nullopt;
    return call_user<std::optional<Element>>([&] { return Padded(rows); });
  }

 private:
  std::optional<Element> Padded(const std::vector<Element>& rows) const {
    Element batch;
    for (std::size_t column = 0; column < rows[0].columns.size(); ++column) {
      std::vector<torch::Tensor> parts;
      for (const Element& row : rows) {
        if (row.columns.size() != rows[0].columns.size()) {
          raise(InvalidArgument("padded_batch(): elements have {} and {} leaves",
                                rows[0].columns.size(), row.columns.size()));
        }
        const data::ColumnInfo& first = rows[0].columns[column].info;
        const data::ColumnInfo& own = row.columns[column].info;
        if (own.name != first.name || own.dtype != first.dtype) {
          raise(InvalidArgument(
              "padded_batch(): elements have leaves {} and {}: names and types must be equal",
              data::ToText(first), data::ToText(own)));
        }
        parts.push_back(to_tensor(row.columns[column]));
      }
      const std::string& name = rows[0].columns[column].info.name;
      batch.columns.push_back(to_column(name, Stacked(parts, ShapeOf(parts, column, name))));
    }
    return batch;
  }

  // The longest in each dimension, or what was asked for.
  std::vector<std::int64_t> ShapeOf(const std::vector<torch::Tensor>& parts, std::size_t column,
                                    const std::string& name) const {
    std::vector<std::int64_t> shape = parts[0].sizes().vec();
    for (const torch::Tensor& part : parts) {
      if (part.dim() != parts[0].dim()) {
        raise(InvalidArgument("padded_batch(): leaf {} has shapes {} and {}: ranks must be equal",
                              name, ShapeText(parts[0]), ShapeText(part)));
      }
      for (std::size_t d = 0; d < shape.size(); ++d) {
        shape[d] = std::max(shape[d], part.size(static_cast<std::int64_t>(d)));
      }
    }
    if (column >= how_.shapes.size()) return shape;
    const std::vector<std::int64_t>& wanted = how_.shapes[column];
    if (wanted.size() != shape.size()) {
      raise(InvalidArgument("padded_batch(): leaf {} has rank {}, its padded shape {}", name,
                            shape.size(), wanted.size()));
    }
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (wanted[d] < 0) continue;
      if (shape[d] > wanted[d]) {
        raise(
            InvalidArgument("padded_batch(): leaf {} has {} in dimension {}, more than the {} "
                            "that it is padded to",
                            name, shape[d], d, wanted[d]));
      }
      shape[d] = wanted[d];
    }
    return shape;
  }

  torch::Tensor Stacked(const std::vector<torch::Tensor>& parts,
                        std::vector<std::int64_t> shape) const {
    shape.insert(shape.begin(), static_cast<std::int64_t>(parts.size()));
    const torch::Tensor all = torch::full(shape, how_.padding, parts[0].options());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      torch::Tensor place = all[static_cast<std::int64_t>(i)];
      for (std::int64_t d = 0; d < parts[i].dim(); ++d) {
        place = place.narrow(d, 0, parts[i].size(d));
      }
      place.copy_(parts[i]);
    }
    return all;
  }

  Runs input_;
  const std::int64_t size_;
  const PaddedBatchOptions how_;
};

void require_positive(const char* step, const char* what, std::int64_t value) {
  if (value > 0) return;
  raise(InvalidArgument("{}: {} is {}; 1 and more are allowed", step, what, value));
}

// A shard of the data has fewer elements: a number would be wrong there.
std::int64_t LikeInput(const data::Pipeline& pipeline) {
  return pipeline.node()->cardinality() == data::kInfinite ? data::kInfinite
                                                           : data::kUnknownCardinality;
}

}  // namespace

Graph Graph::unbatch() const {
  return flat_map([](const Element& element) { return Graph::slices(element); });
}

Graph Graph::take_while(FilterFunction function) const {
  const auto make = [function = std::move(function)](
                        Input input, const data::IteratorContext&) -> Result<Input> {
    return std::make_unique<WhileTrue>(std::move(input), function);
  };
  return Graph(pipeline().Custom("take_while", make, {.spec = pipeline().node()->spec()}));
}

Graph Graph::window(const WindowOptions& options) const {
  WindowOptions how = options;
  if (how.shift == 0) how.shift = how.size;
  require_positive("window()", "size", how.size);
  require_positive("window()", "shift", how.shift);
  require_positive("window()", "stride", how.stride);
  if (how.size - 1 > (std::numeric_limits<std::int64_t>::max() - 1) / how.stride) {
    raise(
        InvalidArgument("window(): size {} with stride {} reaches over more elements than can be "
                        "counted",
                        how.size, how.stride));
  }
  const auto make = [how](Input input, const data::IteratorContext&) -> Result<Input> {
    return std::make_unique<Windows>(std::move(input), how);
  };
  return Graph(pipeline().Custom(
      "window", make, {.spec = {}, .cardinality = LikeInput(pipeline()), .passes_files = true}));
}

Graph Graph::padded_batch(std::int64_t size, const PaddedBatchOptions& options) const {
  require_positive("padded_batch()", "the batch size", size);
  const auto make = [size, options](Input input, const data::IteratorContext&) -> Result<Input> {
    return std::make_unique<PaddedBatches>(std::move(input), size, options);
  };
  return Graph(
      pipeline().Custom("padded_batch", make,
                        {.spec = {}, .cardinality = LikeInput(pipeline()), .passes_files = true}));
}

Graph Graph::sample(const std::vector<Graph>& inputs, std::vector<double> weights,
                    std::optional<std::uint64_t> seed, bool stop_on_empty) {
  if (inputs.empty()) raise(InvalidArgument("sample_from_datasets(): no datasets"));
  if (weights.empty()) weights.assign(inputs.size(), 1.0);
  std::vector<data::Pipeline> pipelines;
  for (const Graph& input : inputs) pipelines.push_back(input.pipeline());
  return Graph(data::Pipeline::Sample(
      pipelines, {.weights = std::move(weights), .seed = seed, .stop_on_empty = stop_on_empty}));
}

}  // namespace muster::internal
