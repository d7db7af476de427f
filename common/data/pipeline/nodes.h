// Makers of the nodes that Pipeline's steps stand for; private to common/data/pipeline. They expect
// arguments that Pipeline has checked.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/data/pipeline/node.h"
#include "common/data/pipeline/pipeline.h"

namespace muster::data {

// sources.cc
NodePtr MakeRange(std::int64_t start, std::int64_t stop, std::int64_t step);
NodePtr MakeSlices(Element rows, std::int64_t count);
NodePtr MakeElements(std::vector<Element> elements);
NodePtr MakeGenerator(GeneratorFunction function, Pipeline::GeneratorOptions options);
NodePtr MakeFileNames(std::vector<std::string> names);
NodePtr MakeRecords(std::shared_ptr<const Reader> reader, std::string name);
// map.cc
NodePtr MakeMap(NodePtr input, MapFunction function, Pipeline::MapOptions options);
// expand.cc
NodePtr MakeFlatMap(NodePtr input, ExpandFunction function, Pipeline::FlatMapOptions options,
                    std::uint64_t seed);
NodePtr MakeInterleave(NodePtr input, ExpandFunction function, Pipeline::InterleaveOptions options,
                       std::uint64_t seed);
// shuffle.cc
NodePtr MakeShuffle(NodePtr input, std::int64_t buffer, Pipeline::ShuffleOptions options,
                    std::uint64_t drawn);
// sample.cc
NodePtr MakeSample(std::vector<NodePtr> inputs, Pipeline::SampleOptions options,
                   std::uint64_t drawn);
// steps.cc
NodePtr MakeFilter(NodePtr input, FilterFunction function);
NodePtr MakeRepeat(NodePtr input, std::optional<std::int64_t> count);
NodePtr MakeZip(std::vector<NodePtr> inputs);
NodePtr MakeConcatenate(NodePtr first, NodePtr second);
NodePtr MakeTake(NodePtr input, std::int64_t count);
NodePtr MakeSkip(NodePtr input, std::int64_t count);
NodePtr MakeOptions(NodePtr input, AutoShardPolicy policy);
NodePtr MakeCustom(NodePtr input, std::string name, CustomFunction function,
                   Pipeline::CustomOptions options);
// shard.cc. `checked`: fewer elements than shards (but some) are an error.
NodePtr MakeShard(NodePtr input, std::int64_t shards, std::int64_t index, bool checked);
NodePtr MakeShardPlaceholder(NodePtr input);
// prefetch.cc, cache_step.cc
NodePtr MakePrefetch(NodePtr input, std::int64_t count);
std::unique_ptr<NodeIterator> PrefetchOver(std::unique_ptr<NodeIterator> input, std::int64_t count,
                                           const IteratorContext& context, std::stop_source stop);
NodePtr MakeCache(NodePtr input);
// batch.cc
NodePtr MakeBatch(NodePtr input, std::int64_t size, bool drop_remainder);
NodePtr MakeRebatch(NodePtr input, std::vector<std::int64_t> sizes);
NodePtr MakeEvenRebatch(NodePtr input, int pieces);

// a + b, a * b of cardinalities that may be infinite or unknown.
std::int64_t AddCardinality(std::int64_t a, std::int64_t b);
std::int64_t MultiplyCardinality(std::int64_t a, std::int64_t b);
std::int64_t MinCardinality(std::int64_t a, std::int64_t b);

// A stop of its own that the outer one triggers too: what lies below is stopped before its threads
// are joined.
class LinkedStop {
 public:
  explicit LinkedStop(std::stop_token outer, std::stop_source source = {})
      : source_(std::move(source)), link_(std::move(outer), Stop{source_}) {}
  std::stop_token token() const { return source_.get_token(); }
  void Request() { source_.request_stop(); }

 private:
  struct Stop {
    std::stop_source source;
    void operator()() { source.request_stop(); }
  };
  std::stop_source source_;
  std::stop_callback<Stop> link_;
};

// Starts a thread of the pipeline.  kResourceExhausted: there is no further one. node.cc
Status StartThread(std::thread& thread, std::function<void()> work);

inline Status Stopped() { return Cancelled("the iterator was destroyed or cancelled"); }

}  // namespace muster::data
