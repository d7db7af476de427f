// Datasets: typed pipelines.
//
//   auto data = dataset::from_tensor_slices(std::tuple{images, labels})
//                   .shuffle(10'000).batch(64).prefetch(2);
//   for (const auto& [x, y] : data) ...
//
// T is what an element is: a tensor, a number, a string, or a nest of them (element_codec.h). A
// Dataset is a value; a step makes a new one. Tensors of an element are views of memory that other
// elements may share: do not write into them. Functions run on the pipeline's threads, without
// gradients, with one intra-op thread; one that waits may take a std::stop_token as its second
// argument. They are called as const objects, several calls at a time. Errors of functions, and of
// the pipeline, are thrown where the element is asked for, as muster::Error: an Error keeps its
// code, another exception is UNKNOWN with its text. docs/input.md has the rules.
//
// Threading: datasets from any thread; an iterator from one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/input/element_codec.h"
#include "strategy/input/graph.h"

namespace muster {

using AutoShardPolicy = data::AutoShardPolicy;

struct DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::kAuto;
};

// Dataset::cardinality() besides a number of elements.
inline constexpr std::int64_t kInfiniteCardinality = -1;
inline constexpr std::int64_t kUnknownCardinality = -2;

// One pass over a dataset.
template <class T>
class DatasetIterator {
 public:
  explicit DatasetIterator(internal::Cursor cursor) : cursor_(std::move(cursor)) {}

  // Nothing at the end.
  std::optional<T> next() { return typed(cursor_.next()); }
  // DEADLINE_EXCEEDED: not there yet; the next call gets it.
  std::optional<T> next(std::chrono::steady_clock::time_point deadline) {
    return typed(cursor_.next(deadline));
  }
  // Before the next element: for Dataset::iterator().
  std::string save_position() const { return cursor_.save_position(); }
  // The next element is this one, counted from 0; behind the last there is nothing.
  //   FAILED_PRECONDITION: next() was called with a deadline.
  void seek(std::int64_t number) { cursor_.seek(number); }

 private:
  static std::optional<T> typed(const std::optional<data::Element>& element) {
    if (!element) return std::nullopt;
    return internal::unpack<T>(*element);
  }

  internal::Cursor cursor_;
};

// For range-for over what has iterators with next().
template <class T, class Source>
class InputRange {
 public:
  using iterator_category = std::input_iterator_tag;
  using difference_type = std::ptrdiff_t;
  using value_type = T;
  using pointer = const T*;
  using reference = const T&;

  InputRange() = default;
  explicit InputRange(Source source) : source_(std::make_shared<Source>(std::move(source))) {
    ++*this;
  }
  reference operator*() const { return *value_; }
  pointer operator->() const { return &*value_; }
  InputRange& operator++() {
    value_ = source_->next();
    if (!value_) source_.reset();
    return *this;
  }
  bool operator==(const InputRange& other) const { return source_ == other.source_; }

 private:
  std::shared_ptr<Source> source_;
  std::optional<T> value_;
};

template <class T = torch::Tensor>
class Dataset {
  static_assert(
      internal::IsElement<T>::value,
      "an element of a dataset is made of tensors, numbers and strings, in tuples, pairs, "
      "vectors, maps, or a struct with NestFields (strategy/values/nest.h)");

 public:
  using value_type = T;

  // For the code of strategy/input.
  explicit Dataset(internal::Graph graph) : graph_(std::move(graph)) {}
  const internal::Graph& graph() const { return graph_; }

  // Steps throw INVALID_ARGUMENT for a number that cannot be.

  // F: T -> U, or (T, std::stop_token) -> U. `num_parallel_calls` threads; order is kept.
  template <class F>
  auto map(F function, int num_parallel_calls = 1) const {
    using U = std::decay_t<decltype(call_with_stop(std::as_const(function), std::declval<T>(),
                                                   std::stop_token()))>;
    return Dataset<U>(graph_.map(
        [function](const data::Element& element, const std::stop_token& stop) {
          return internal::pack<U>(call_with_stop(function, internal::unpack<T>(element), stop));
        },
        num_parallel_calls));
  }
  // F: T -> bool.
  template <class F>
  Dataset filter(F function) const {
    return Dataset(graph_.filter([function](const data::Element& element) {
      return static_cast<bool>(function(internal::unpack<T>(element)));
    }));
  }
  // F: T -> Dataset<U>.
  template <class F>
  auto flat_map(F function) const {
    using U = typename std::invoke_result_t<const F&, T>::value_type;
    return Dataset<U>(graph_.flat_map(expanding(std::move(function))));
  }
  // As flat_map, with `cycle_length` of the datasets open at a time, which give `block_length`
  // elements in turn; `parallel`: each reads ahead on a thread of its own, in the same order.
  template <class F>
  auto interleave(F function, std::int64_t cycle_length = 16, std::int64_t block_length = 1,
                  bool parallel = false) const {
    using U = typename std::invoke_result_t<const F&, T>::value_type;
    return Dataset<U>(
        graph_.interleave(expanding(std::move(function)), cycle_length, block_length, parallel));
  }
  // Draws from a buffer; without a seed the order is another in each program run.
  Dataset shuffle(std::int64_t buffer_size, std::optional<std::uint64_t> seed = std::nullopt,
                  bool reshuffle_each_iteration = true) const {
    return Dataset(graph_.shuffle(buffer_size, seed, reshuffle_each_iteration));
  }
  // Without a count: for ever.
  Dataset repeat(std::optional<std::int64_t> count = std::nullopt) const {
    return Dataset(graph_.repeat(count));
  }
  // Elements of `options.size` elements: std::vector<T>, fewer at the end.
  Dataset<std::vector<T>> window(const WindowOptions& options) const {
    return Dataset<std::vector<T>>(graph_.window(options));
  }
  // (start, element), (start + 1, element), ...
  Dataset<std::tuple<std::int64_t, T>> enumerate(std::int64_t start = 0) const {
    return Dataset<std::tuple<std::int64_t, T>>(
        internal::Graph::zip({internal::Graph::range(start, std::int64_t{1} << 61, 1), graph_}));
  }
  // Ends before the first element that F: T -> bool is false for.
  template <class F>
  Dataset take_while(F function) const {
    return Dataset(graph_.take_while([function](const data::Element& element) {
      return static_cast<bool>(function(internal::unpack<T>(element)));
    }));
  }
  // The rows of each element. INVALID_ARGUMENT, from next(): leaves without rows, or different
  // numbers of them.
  Dataset unbatch() const { return Dataset(graph_.unbatch()); }
  // As batch(), of leaves of different shapes: shorter ones are filled up behind. Leaves are
  // numbers and tensors.
  Dataset padded_batch(std::int64_t batch_size, const PaddedBatchOptions& options = {}) const {
    return Dataset(graph_.padded_batch(batch_size, options));
  }
  // Leaves get a first dimension.
  Dataset batch(std::int64_t batch_size, bool drop_remainder = false) const {
    return Dataset(graph_.batch(batch_size, drop_remainder));
  }
  // Elements index, index + num_shards, ...
  Dataset shard(std::int64_t num_shards, std::int64_t index) const {
    return Dataset(graph_.shard(num_shards, index));
  }
  // Filled in under auto-shard policy HINT.
  Dataset shard_placeholder() const { return Dataset(graph_.shard_placeholder()); }
  Dataset concatenate(const Dataset& next) const {
    return Dataset(graph_.concatenate(next.graph_));
  }
  Dataset take(std::int64_t count) const { return Dataset(graph_.take(count)); }
  Dataset skip(std::int64_t count) const { return Dataset(graph_.skip(count)); }
  // A thread reads up to `buffer_size` elements ahead.
  Dataset prefetch(std::int64_t buffer_size) const { return Dataset(graph_.prefetch(buffer_size)); }
  // Keeps the first whole pass in memory; later passes are the same.
  Dataset cache() const { return Dataset(graph_.cache()); }
  Dataset with_options(const DatasetOptions& options) const {
    return Dataset(graph_.with_policy(options.auto_shard_policy));
  }

  // Elements, kInfiniteCardinality or kUnknownCardinality.
  std::int64_t cardinality() const { return graph_.cardinality(); }
  // One for each leaf; nothing where only running the pipeline tells (behind map).
  std::optional<std::vector<TensorSpec>> element_spec() const { return graph_.element_spec(); }
  // The steps, one a line, inputs indented below.
  std::string to_string() const { return graph_.to_string(); }
  // Copies of one dataset are equal.
  bool operator==(const Dataset&) const = default;

  // From the beginning, or from a position of an iterator of a dataset that was built in the same
  // way, in this process or another: the passes that follow are those that would have followed it.
  //   INVALID_ARGUMENT: no position.  FAILED_PRECONDITION: of another dataset.
  DatasetIterator<T> iterator(std::optional<std::string> position = std::nullopt) const {
    return DatasetIterator<T>(internal::Cursor(graph_, std::move(position)));
  }
  InputRange<T, DatasetIterator<T>> begin() const {
    return InputRange<T, DatasetIterator<T>>(iterator());
  }
  InputRange<T, DatasetIterator<T>> end() const { return {}; }

 private:
  template <class F>
  static decltype(auto) call_with_stop(const F& function, T value, const std::stop_token& stop) {
    if constexpr (std::is_invocable_v<const F&, T, std::stop_token>) {
      return function(std::move(value), stop);
    } else {
      return function(std::move(value));
    }
  }
  template <class F>
  static internal::Graph::ExpandFunction expanding(F function) {
    return [function](const data::Element& element) {
      return function(internal::unpack<T>(element)).graph();
    };
  }

  internal::Graph graph_;
};

namespace dataset {

// Scalars of int64.
inline Dataset<torch::Tensor> range(std::int64_t start, std::int64_t stop, std::int64_t step = 1) {
  return Dataset<torch::Tensor>(internal::Graph::range(start, stop, step));
}
inline Dataset<torch::Tensor> range(std::int64_t stop) { return range(0, stop); }

// The rows of all leaves. INVALID_ARGUMENT: a leaf without rows, or different numbers of them.
template <class T>
Dataset<T> from_tensor_slices(const T& rows) {
  return Dataset<T>(internal::Graph::slices(internal::pack(rows)));
}
// One element.
template <class T>
Dataset<T> from_tensors(const T& value) {
  return Dataset<T>(internal::Graph::of({internal::pack(value)}));
}
template <class T>
Dataset<T> from_elements(const std::vector<T>& values) {
  std::vector<data::Element> elements;
  for (const T& value : values) elements.push_back(internal::pack<T>(value));
  return Dataset<T>(internal::Graph::of(std::move(elements)));
}
// `start` begins a pass: it returns a function that returns std::optional<T>, nothing at the end.
template <class F>
auto from_generator(F start, std::int64_t cardinality = kUnknownCardinality) {
  using Pass = std::decay_t<std::invoke_result_t<const F&>>;
  using T = typename std::invoke_result_t<Pass&>::value_type;
  return Dataset<T>(internal::Graph::generator(
      [start]() -> internal::Graph::GeneratorPass {
        return [pass = start()]() mutable -> std::optional<data::Element> {
          const std::optional<T> value = pass();
          if (!value) return std::nullopt;
          return internal::pack<T>(*value);
        };
      },
      cardinality));
}
// Names of files; what is made of them by flat_map or interleave can be sharded by file.
inline Dataset<std::string> file_names(std::vector<std::string> names) {
  return Dataset<std::string>(internal::Graph::file_names(std::move(names)));
}
// What the patterns (`*`, `?`) match now, one after another, each sorted; files of any content.
// NOT_FOUND: one of them matches nothing.
inline Dataset<std::string> list_files(const std::vector<std::string>& patterns) {
  return Dataset<std::string>(internal::Graph::list_files(patterns));
}
// Ends with the shortest.
template <class... T>
Dataset<std::tuple<T...>> zip(const Dataset<T>&... inputs) {
  return Dataset<std::tuple<T...>>(internal::Graph::zip({inputs.graph()...}));
}

// Elements of the datasets, each next one of a dataset that is drawn by weight (all alike without
// any), until all have ended; with `stop_on_empty_dataset` until one has that is drawn. Every pass
// draws the same; without a seed every program run draws others.
//   INVALID_ARGUMENT: no datasets, or weights that do not fit.
template <class T>
Dataset<T> sample_from_datasets(const std::vector<Dataset<T>>& datasets,
                                std::vector<double> weights = {},
                                std::optional<std::uint64_t> seed = std::nullopt,
                                bool stop_on_empty_dataset = false) {
  std::vector<internal::Graph> graphs;
  for (const Dataset<T>& one : datasets) graphs.push_back(one.graph());
  return Dataset<T>(
      internal::Graph::sample(graphs, std::move(weights), seed, stop_on_empty_dataset));
}

// For functions of a dataset that wait: `length`, or until told to stop (false).
bool wait_for(const std::stop_token& stop, std::chrono::nanoseconds length);

}  // namespace dataset
}  // namespace muster
