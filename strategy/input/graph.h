// Datasets without their types: what Dataset<T> stands on. Programs use dataset.h.
//
// Functions get and give elements (named columns). They are called on the pipeline's threads, and
// may throw: a muster::Error keeps its code, another exception is UNKNOWN with its text.
//
// Threading: a Graph is a value, shared and never changed; any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/data/auto_shard_policy.h"
#include "common/data/element.h"
#include "strategy/base/torch.h"

namespace muster {
namespace data {
class Iterator;
class Pipeline;
}  // namespace data

// A leaf of an element: -1 for sizes that vary; dtype Undefined for strings.
struct TensorSpec {
  std::string name;
  torch::ScalarType dtype = torch::ScalarType::Undefined;
  std::vector<std::int64_t> shape;
  bool operator==(const TensorSpec&) const = default;
};
// "image Float [?, 28, 28]"
std::ostream& operator<<(std::ostream& out, const TensorSpec& spec);

struct WindowOptions {
  std::int64_t size = 1;
  // From one window's first element to the next one's; 0: `size`.
  std::int64_t shift = 0;
  // From one element of a window to the next.
  std::int64_t stride = 1;
  bool drop_remainder = false;
};

struct PaddedBatchOptions {
  bool drop_remainder = false;
  double padding = 0;
  // For each leaf; -1: as long as the longest of the batch. Empty: all so.
  std::vector<std::vector<std::int64_t>> shapes = {};
};

namespace internal {

// The passes over one dataset, numbered from 0. Threading: any thread.
class Passes {
 public:
  std::uint64_t begin() { return next_++; }
  // A position goes on with `pass`: those that begin now come after it, as they would have there.
  void go_on(std::uint64_t pass);

 private:
  std::atomic<std::uint64_t> next_ = 0;
};

// A value, as Dataset is: a step makes a new one. Errors of all of them are thrown: the steps'
// INVALID_ARGUMENT, NOT_FOUND of list_files().
class Graph {
 public:
  using MapFunction = std::function<data::Element(const data::Element&, const std::stop_token&)>;
  using FilterFunction = std::function<bool(const data::Element&)>;
  using ExpandFunction = std::function<Graph(const data::Element&)>;
  // One pass: the next element, nothing at the end.
  using GeneratorPass = std::function<std::optional<data::Element>()>;
  using Generator = std::function<GeneratorPass()>;

  explicit Graph(data::Pipeline pipeline);

  static Graph range(std::int64_t start, std::int64_t stop, std::int64_t step);
  static Graph slices(data::Element rows);
  static Graph of(std::vector<data::Element> elements);
  static Graph generator(Generator start, std::int64_t cardinality);
  static Graph file_names(std::vector<std::string> names);
  static Graph list_files(const std::vector<std::string>& patterns);
  static Graph zip(const std::vector<Graph>& inputs);
  static Graph sample(const std::vector<Graph>& inputs, std::vector<double> weights,
                      std::optional<std::uint64_t> seed, bool stop_on_empty);

  Graph map(MapFunction function, int num_parallel_calls) const;
  Graph filter(FilterFunction function) const;
  Graph flat_map(ExpandFunction function) const;
  Graph interleave(ExpandFunction function, std::int64_t cycle_length, std::int64_t block_length,
                   bool parallel) const;
  Graph shuffle(std::int64_t buffer_size, std::optional<std::uint64_t> seed, bool reshuffle) const;
  Graph repeat(std::optional<std::int64_t> count) const;
  Graph batch(std::int64_t batch_size, bool drop_remainder) const;
  Graph shard(std::int64_t num_shards, std::int64_t index) const;
  Graph shard_placeholder() const;
  Graph concatenate(const Graph& next) const;
  Graph take(std::int64_t count) const;
  Graph skip(std::int64_t count) const;
  Graph prefetch(std::int64_t buffer_size) const;
  Graph cache() const;
  Graph unbatch() const;
  Graph take_while(FilterFunction function) const;
  Graph window(const WindowOptions& options) const;
  Graph padded_batch(std::int64_t size, const PaddedBatchOptions& options) const;
  Graph with_policy(data::AutoShardPolicy policy) const;

  std::int64_t cardinality() const;
  std::optional<std::vector<TensorSpec>> element_spec() const;
  std::string to_string() const;
  // Copies of one graph are equal.
  bool operator==(const Graph& other) const { return state_ == other.state_; }

  // For Cursor::seek(); the place before its first element, with the seeds that were drawn.
  //   INVALID_ARGUMENT: elements that cannot be found by their number, and why.
  Graph indexed() const;
  std::string start() const;

  const data::Pipeline& pipeline() const;
  Passes& passes() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// One pass over a graph.
class Cursor {
 public:
  // INVALID_ARGUMENT, FAILED_PRECONDITION, DATA_LOSS: of the position (Dataset::iterator()).
  Cursor(const Graph& graph, std::optional<std::string> position);
  ~Cursor();
  Cursor(Cursor&&) noexcept;
  Cursor& operator=(Cursor&&) noexcept;

  std::optional<data::Element> next();
  std::optional<data::Element> next(std::chrono::steady_clock::time_point deadline);
  std::string save_position() const;
  // The next element is this one, counted from 0.
  void seek(std::int64_t number);

 private:
  std::unique_ptr<data::Iterator> iterator_;
};

}  // namespace internal
}  // namespace muster
