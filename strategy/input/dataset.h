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

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/data/pipeline/iterator.h"
#include "common/data/pipeline/pipeline.h"
#include "strategy/input/element_codec.h"

namespace muster {

using AutoShardPolicy = data::AutoShardPolicy;

// A leaf of an element: -1 for sizes that vary; dtype Undefined for strings.
struct TensorSpec {
  std::string name;
  torch::ScalarType dtype = torch::ScalarType::Undefined;
  std::vector<std::int64_t> shape;
  bool operator==(const TensorSpec&) const = default;
};
// "image Float [?, 28, 28]"
std::ostream& operator<<(std::ostream& out, const TensorSpec& spec);

struct DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::kAuto;
};

// dataset::cardinality() besides a number of elements.
inline constexpr std::int64_t kInfiniteCardinality = data::kInfinite;
inline constexpr std::int64_t kUnknownCardinality = data::kUnknownCardinality;

namespace internal {

// Throws, unless `status` is OK.
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
std::optional<std::vector<TensorSpec>> tensor_specs(const data::ElementSpec& spec);
// For each thread of a pipeline: its functions do not compete for cores with the replicas.
void on_pipeline_thread();
// Calls a user's function on elements: without gradients; an Error becomes its status.
Status run_user_function(const std::function<void()>& call);

template <class R>
Result<R> call_user(const std::function<R()>& call) {
  std::optional<R> result;
  if (Status failed = run_user_function([&] { result.emplace(call()); }); !failed.ok()) {
    return failed;
  }
  return *std::move(result);
}

}  // namespace internal

template <class T>
class Dataset;

// One pass over a dataset.
template <class T>
class DatasetIterator {
 public:
  explicit DatasetIterator(std::unique_ptr<data::Iterator> iterator)
      : iterator_(std::move(iterator)) {}

  // Nothing at the end.
  std::optional<T> next() { return convert(iterator_->Next()); }
  // DEADLINE_EXCEEDED: not there yet; the next call gets it.
  std::optional<T> next(std::chrono::steady_clock::time_point deadline) {
    return convert(iterator_->Next(deadline));
  }
  // Before the next element: for Dataset::iterator().
  std::string save_position() const { return iterator_->Position(); }

 private:
  static std::optional<T> convert(const data::Item& item) {
    if (!item.ok()) raise(item.status());
    if (!item->has_value()) return std::nullopt;
    return internal::unpack<T>(**item);
  }

  std::unique_ptr<data::Iterator> iterator_;
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
 public:
  using value_type = T;

  // For the code of strategy/input. INVALID_ARGUMENT and the like: why the pipeline cannot be.
  explicit Dataset(data::Pipeline pipeline) : core_(std::make_shared<Core>(std::move(pipeline))) {
    internal::check(core_->pipeline.status());
  }
  const data::Pipeline& pipeline() const { return core_->pipeline; }

  // F: T -> U, or (T, std::stop_token) -> U. `num_parallel_calls` threads; order is kept.
  template <class F>
  auto map(F function, int num_parallel_calls = 1) const {
    using U =
        decltype(call_with_stop(std::as_const(function), std::declval<T>(), std::stop_token()));
    data::Pipeline::MapOptions options;
    options.parallel = num_parallel_calls;
    return Dataset<std::decay_t<U>>(pipeline().Map(
        [function](const data::Element& element,
                   const std::stop_token& stop) -> Result<data::Element> {
          return internal::call_user<data::Element>([&] {
            return internal::pack<std::decay_t<U>>(
                call_with_stop(function, internal::unpack<T>(element), stop));
          });
        },
        std::move(options)));
  }
  // F: T -> bool.
  template <class F>
  Dataset filter(F function) const {
    return Dataset(pipeline().Filter([function](const data::Element& element) -> Result<bool> {
      return internal::call_user<bool>(
          [&] { return static_cast<bool>(function(internal::unpack<T>(element))); });
    }));
  }
  // F: T -> Dataset<U>.
  template <class F>
  auto flat_map(F function) const {
    using U = typename std::invoke_result_t<const F&, T>::value_type;
    return Dataset<U>(pipeline().FlatMap(expand(std::move(function))));
  }
  template <class F>
  auto interleave(F function, std::int64_t cycle_length = 16, std::int64_t block_length = 1,
                  bool parallel = false) const {
    using U = typename std::invoke_result_t<const F&, T>::value_type;
    data::Pipeline::InterleaveOptions options;
    options.cycle_length = cycle_length;
    options.block_length = block_length;
    options.parallel = parallel;
    return Dataset<U>(pipeline().Interleave(expand(std::move(function)), std::move(options)));
  }
  // Draws from a buffer; without a seed the order is another in each program run.
  Dataset shuffle(std::int64_t buffer_size, std::optional<std::uint64_t> seed = std::nullopt,
                  bool reshuffle_each_iteration = true) const {
    return Dataset(pipeline().Shuffle(
        buffer_size, {.seed = seed, .reshuffle_each_iteration = reshuffle_each_iteration}));
  }
  // Without a count: for ever.
  Dataset repeat(std::optional<std::int64_t> count = std::nullopt) const {
    return Dataset(pipeline().Repeat(count));
  }
  // Leaves get a first dimension.
  Dataset batch(std::int64_t batch_size, bool drop_remainder = false) const {
    return Dataset(pipeline().Batch(batch_size, drop_remainder));
  }
  Dataset shard(std::int64_t num_shards, std::int64_t index) const {
    return Dataset(pipeline().Shard(num_shards, index));
  }
  // Filled in under auto-shard policy HINT.
  Dataset shard_placeholder() const { return Dataset(pipeline().ShardPlaceholder()); }
  Dataset concatenate(const Dataset& next) const {
    return Dataset(pipeline().Concatenate(next.pipeline()));
  }
  Dataset take(std::int64_t count) const { return Dataset(pipeline().Take(count)); }
  Dataset skip(std::int64_t count) const { return Dataset(pipeline().Skip(count)); }
  Dataset prefetch(std::int64_t buffer_size) const {
    return Dataset(pipeline().Prefetch(buffer_size));
  }
  Dataset cache() const { return Dataset(pipeline().Cache()); }
  Dataset with_options(const DatasetOptions& options) const {
    return Dataset(pipeline().WithPolicy(options.auto_shard_policy));
  }

  // Elements, kInfiniteCardinality or kUnknownCardinality.
  std::int64_t cardinality() const { return pipeline().node()->cardinality(); }
  // One for each leaf; nothing where only running the pipeline tells (behind map).
  std::optional<std::vector<TensorSpec>> element_spec() const {
    return internal::tensor_specs(pipeline().node()->spec());
  }

  // From the beginning, or from a position of an iterator of a dataset that was built in the same
  // way, in this process or another.
  //   INVALID_ARGUMENT: no position.  FAILED_PRECONDITION: of another dataset.
  DatasetIterator<T> iterator(std::optional<std::string> position = std::nullopt) const {
    auto made = data::Iterator::Make(pipeline(), {.pass = core_->passes++,
                                                  .position = std::move(position),
                                                  .on_thread_start = internal::on_pipeline_thread});
    internal::check(made.status());
    return DatasetIterator<T>(*std::move(made));
  }
  InputRange<T, DatasetIterator<T>> begin() const {
    return InputRange<T, DatasetIterator<T>>(iterator());
  }
  InputRange<T, DatasetIterator<T>> end() const { return {}; }

 private:
  struct Core {
    explicit Core(data::Pipeline p) : pipeline(std::move(p)) {}
    const data::Pipeline pipeline;
    std::atomic<std::uint64_t> passes = 0;  // that were begun
  };

  template <class F>
  static decltype(auto) call_with_stop(const F& function, T value, const std::stop_token& stop) {
    if constexpr (std::is_invocable_v<const F&, T, std::stop_token>) {
      return function(std::move(value), stop);
    } else {
      return function(std::move(value));
    }
  }
  template <class F>
  static data::ExpandFunction expand(F function) {
    return [function](const data::Element& element) -> Result<data::Pipeline> {
      return internal::call_user<data::Pipeline>(
          [&] { return function(internal::unpack<T>(element)).pipeline(); });
    };
  }

  std::shared_ptr<Core> core_;
};

namespace dataset {

// Scalars of int64.
inline Dataset<torch::Tensor> range(std::int64_t start, std::int64_t stop, std::int64_t step = 1) {
  return Dataset<torch::Tensor>(data::Pipeline::Range(start, stop, step));
}
inline Dataset<torch::Tensor> range(std::int64_t stop) { return range(0, stop); }

// The rows of all leaves. INVALID_ARGUMENT: a leaf without rows, or different numbers of them.
template <class T>
Dataset<T> from_tensor_slices(const T& rows) {
  return Dataset<T>(data::Pipeline::Slices(internal::pack(rows)));
}
// One element.
template <class T>
Dataset<T> from_tensors(const T& value) {
  return Dataset<T>(data::Pipeline::Of({internal::pack(value)}));
}
template <class T>
Dataset<T> from_elements(const std::vector<T>& values) {
  std::vector<data::Element> elements;
  for (const T& value : values) elements.push_back(internal::pack<T>(value));
  return Dataset<T>(data::Pipeline::Of(std::move(elements)));
}
// `start` begins a pass: it returns a function that returns std::optional<T>, nothing at the end.
template <class F>
auto from_generator(F start, std::int64_t cardinality = kUnknownCardinality) {
  using Pass = std::decay_t<std::invoke_result_t<const F&>>;
  using T = typename std::invoke_result_t<Pass&>::value_type;
  data::Pipeline::GeneratorOptions options;
  options.cardinality = cardinality;
  return Dataset<T>(data::Pipeline::Generator(
      [start]() -> data::GeneratorPass {
        return [pass = start()](const std::stop_token&) mutable -> data::Item {
          return internal::call_user<std::optional<data::Element>>(
              [&]() -> std::optional<data::Element> {
                const std::optional<T> value = pass();
                if (!value) return std::nullopt;
                return internal::pack<T>(*value);
              });
        };
      },
      std::move(options)));
}
// Names of files; what is made of them by flat_map or interleave can be sharded by file.
inline Dataset<std::string> file_names(std::vector<std::string> names) {
  return Dataset<std::string>(data::Pipeline::FileNames(std::move(names)));
}
// NOT_FOUND: a pattern matches nothing.
inline Dataset<std::string> list_files(const std::vector<std::string>& patterns) {
  return Dataset<std::string>(data::Pipeline::ListFiles(patterns));
}
// Ends with the shortest.
template <class... T>
Dataset<std::tuple<T...>> zip(const Dataset<T>&... inputs) {
  return Dataset<std::tuple<T...>>(data::Pipeline::Zip({inputs.pipeline()...}));
}

}  // namespace dataset
}  // namespace muster
