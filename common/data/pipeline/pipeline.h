// Builds pipelines: Pipeline::Range(100).Map(square).Shuffle(50).Batch(10). A value: a step makes a
// new pipeline and leaves the one it stands on as it is. Nothing is read before an iterator
// (iterator.h) is asked for an element.
//
// Functions of the user may be called on any thread, also several at a time in a parallel map, and
// must give the same result for the same element: positions and epochs rely on it. They return a
// Status, or throw; either reaches the consumer at the element's place. A function that waits gets
// a stop token, and should end its wait when that is stopped: an iterator that is destroyed waits
// for it. Elements are shared: a function must not write into the one that it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"
#include "common/data/pipeline/node.h"

namespace muster::v1 {
class DataSpec;
}

namespace muster::data {

class Pipeline;
class Reader;

using MapFunction = std::function<Result<Element>(const Element&, const std::stop_token&)>;
using FilterFunction = std::function<Result<bool>(const Element&)>;
using ExpandFunction = std::function<Result<Pipeline>(const Element&)>;
// One pass: gives the next element, nothing at the end.
using GeneratorPass = std::function<Item(const std::stop_token&)>;
// Starts a pass.
using GeneratorFunction = std::function<GeneratorPass()>;
using CustomFunction = std::function<Result<std::unique_ptr<NodeIterator>>(
    std::unique_ptr<NodeIterator> input, const IteratorContext&)>;

class Pipeline {
 public:
  struct GeneratorOptions {
    ElementSpec spec;
    std::int64_t cardinality = kUnknownCardinality;
    // Tells generators apart in fingerprints.
    std::string name = "generator";
  };
  struct MapOptions {
    // Calls at a time, each on a thread of its own; order is kept. 1: on the consumer's thread.
    int parallel = 1;
    // What the function returns; a pipeline cannot know it by itself.
    ElementSpec spec;
    std::string name = "map";
  };
  struct ShuffleOptions {
    // Without one it is drawn now.
    std::optional<std::uint64_t> seed;
    bool reshuffle_each_iteration = true;
  };
  struct SampleOptions {
    std::vector<double> weights;
    // Without one it is drawn now.
    std::optional<std::uint64_t> seed = std::nullopt;
    // Until one that is chosen has ended, not all.
    bool stop_on_empty = false;
  };
  struct FlatMapOptions {
    // Whether the function reads the file that its element names. By default it does when the
    // elements come from FileNames() or ListFiles().
    std::optional<bool> reads_files;
    std::string name = "flat_map";
  };
  struct InterleaveOptions {
    std::int64_t cycle_length = 16;
    std::int64_t block_length = 1;
    // Each of the open pipelines reads ahead on a thread of its own. Order is kept.
    bool parallel = false;
    std::optional<bool> reads_files;
    std::string name = "interleave";
  };
  struct CustomOptions {
    ElementSpec spec;
    std::int64_t cardinality = kUnknownCardinality;
    // Each element comes of neighbours alone, as a batch does: policy FILE may shard below it.
    bool passes_files = false;
  };

  // kInvalidArgument from any of these, and from the steps below, is reported by MakeIterator() and
  // the rewrites: a pipeline that cannot be remembers why.

  // start, start + step, ... before stop.
  static Pipeline Range(std::int64_t start, std::int64_t stop, std::int64_t step = 1);
  static Pipeline Range(std::int64_t stop) { return Range(0, stop); }
  // The rows of `rows`, one after another.
  static Pipeline Slices(Element rows);
  static Pipeline Of(std::vector<Element> elements);
  static Pipeline Generator(GeneratorFunction function, GeneratorOptions options);
  static Pipeline Generator(GeneratorFunction function) {
    return Generator(std::move(function), GeneratorOptions{});
  }
  // The names, in this order. Steps over them can be sharded by file.
  static Pipeline FileNames(std::vector<std::string> names);
  // The files that the patterns match now, as FindFiles() finds them, whatever is in them.
  static Pipeline ListFiles(const std::vector<std::string>& patterns);
  // The records of all files of `spec`, opened and indexed now; `cache_directory` is Cache's.
  static Pipeline Records(const v1::DataSpec& spec, const std::string& cache_directory);
  static Pipeline Records(std::shared_ptr<const Reader> reader, const std::string& name);

  Pipeline Map(MapFunction function, MapOptions options) const;
  Pipeline Map(MapFunction function) const { return Map(std::move(function), MapOptions{}); }
  Pipeline FlatMap(ExpandFunction function, FlatMapOptions options) const;
  Pipeline FlatMap(ExpandFunction function) const {
    return FlatMap(std::move(function), FlatMapOptions{});
  }
  Pipeline Interleave(ExpandFunction function, InterleaveOptions options) const;
  Pipeline Filter(FilterFunction function) const;
  // Draws each element from the next `buffer` ones.
  Pipeline Shuffle(std::int64_t buffer, ShuffleOptions options) const;
  Pipeline Shuffle(std::int64_t buffer) const { return Shuffle(buffer, ShuffleOptions{}); }
  // Without a count: for ever.
  Pipeline Repeat(std::optional<std::int64_t> count = std::nullopt) const;
  Pipeline Batch(std::int64_t size, bool drop_remainder = false) const;
  // Elements index, index + shards, ...
  Pipeline Shard(std::int64_t shards, std::int64_t index) const;
  // Where policy HINT puts the shard.
  Pipeline ShardPlaceholder() const;
  static Pipeline Zip(const std::vector<Pipeline>& inputs);
  // The next element of one of them, drawn by weight; `weights` has one for each, of 0 or more and
  // not all 0. Every pass makes the same choices. What has ended is not chosen again.
  static Pipeline Sample(const std::vector<Pipeline>& inputs, SampleOptions options);
  Pipeline Concatenate(const Pipeline& next) const;
  Pipeline Take(std::int64_t count) const;
  Pipeline Skip(std::int64_t count) const;
  // A thread reads up to `count` elements ahead.
  Pipeline Prefetch(std::int64_t count) const;
  // Keeps the elements of the first whole pass in memory and gives them again in every later one.
  Pipeline Cache() const;
  Pipeline WithPolicy(AutoShardPolicy policy) const;
  // The rewrites' steps: RebatchSizes()'s cut of the stream, EvenSplit()'s of each batch.
  Pipeline Rebatch(std::vector<std::int64_t> sizes) const;
  Pipeline EvenRebatch(int pieces) const;
  Pipeline Custom(const std::string& name, CustomFunction function, CustomOptions options) const;

  // Why it cannot be iterated; OK when it can.
  const Status& status() const { return status_; }
  // The last step's. Only when status() is OK.
  const NodePtr& node() const { return node_; }

  // NOLINTNEXTLINE(google-explicit-constructor): a node is a pipeline, an error is one that fails.
  Pipeline(NodePtr node) : node_(std::move(node)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Pipeline(Status error) : status_(std::move(error)) {}

 private:
  NodePtr node_;
  Status status_;
};

}  // namespace muster::data
