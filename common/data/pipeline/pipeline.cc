#include "common/data/pipeline/pipeline.h"

#include <algorithm>

#include "common/base/words.h"
#include "common/data/open_reader.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/nodes.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

constexpr int kMostThreads = 256;
constexpr std::int64_t kMostBuffered = std::int64_t{1} << 32;

// OK when min <= value <= max.
Status CheckWithin(const char* what, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value >= min && value <= max) return Ok();
  return InvalidArgument("{}: {}; {} to {} is allowed", what, value, min, max);
}

Result<std::vector<NodePtr>> NodesOf(const std::vector<Pipeline>& pipelines) {
  std::vector<NodePtr> nodes;
  for (const Pipeline& one : pipelines) {
    MUSTER_TRY(one.status());
    nodes.push_back(one.node());
  }
  return nodes;
}

}  // namespace

// The step's node, unless what it stands on, or an argument, is wrong.
#define MUSTER_PIPELINE_TRY(expression)                                              \
  do {                                                                               \
    if (Status wrong = (expression); !wrong.ok()) return Pipeline(std::move(wrong)); \
  } while (false)

Pipeline Pipeline::Range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  constexpr std::int64_t kMost = std::int64_t{1} << 61;
  MUSTER_PIPELINE_TRY(CheckWithin("range: start", start, -kMost, kMost));
  MUSTER_PIPELINE_TRY(CheckWithin("range: stop", stop, -kMost, kMost));
  MUSTER_PIPELINE_TRY(CheckWithin("range: step", step, -kMost, kMost));
  if (step == 0) return InvalidArgument("range: a step of 0 leads nowhere");
  return MakeRange(start, stop, step);
}

Pipeline Pipeline::Slices(Element rows) {
  const Result<std::int64_t> count = Rows(rows);
  if (!count.ok()) return Annotate(count.status(), "slices");
  return MakeSlices(std::move(rows), *count);
}

Pipeline Pipeline::Of(std::vector<Element> elements) { return MakeElements(std::move(elements)); }

Pipeline Pipeline::Generator(GeneratorFunction function, GeneratorOptions options) {
  if (!function) return InvalidArgument("generator: no function");
  return MakeGenerator(std::move(function), std::move(options));
}

Pipeline Pipeline::FileNames(std::vector<std::string> names) {
  return MakeFileNames(std::move(names));
}

Pipeline Pipeline::ListFiles(const std::vector<std::string>& patterns) {
  const Result<std::vector<SourceFile>> files = FindFiles(patterns, FileContents::kAny);
  if (!files.ok()) return files.status();
  std::vector<std::string> names;
  for (const SourceFile& file : *files) names.push_back(file.path);
  return FileNames(std::move(names));
}

Pipeline Pipeline::Records(const v1::DataSpec& spec, const std::string& cache_directory) {
  const std::uint64_t limit = spec.cache_bytes();
  data::Cache::Options options{.directory = cache_directory};
  if (limit > 0) options.limit_bytes = limit;
  const Result<data::Cache> cache = data::Cache::Open(std::move(options));
  if (!cache.ok()) return cache.status();
  Result<std::unique_ptr<Reader>> reader = OpenReader(spec, *cache);
  if (!reader.ok()) return reader.status();
  const std::string name = spec.has_idx()        ? "idx"
                           : spec.has_csv()      ? "csv"
                           : spec.has_criteo()   ? "criteo"
                           : spec.has_tfrecord() ? "tfrecord"
                                                 : "text";
  return Records(*std::move(reader), name);
}

Pipeline Pipeline::Records(std::shared_ptr<const Reader> reader, const std::string& name) {
  if (!reader) return InvalidArgument("records: no reader");
  return MakeRecords(std::move(reader), name);
}

Pipeline Pipeline::Map(MapFunction function, MapOptions options) const {
  MUSTER_PIPELINE_TRY(status_);
  if (!function) return InvalidArgument("map: no function");
  MUSTER_PIPELINE_TRY(CheckWithin("map: parallel", options.parallel, 1, kMostThreads));
  return MakeMap(node_, std::move(function), std::move(options));
}

Pipeline Pipeline::FlatMap(ExpandFunction function, FlatMapOptions options) const {
  MUSTER_PIPELINE_TRY(status_);
  if (!function) return InvalidArgument("flat_map: no function");
  return MakeFlatMap(node_, std::move(function), std::move(options), DrawSeed());
}

Pipeline Pipeline::Interleave(ExpandFunction function, InterleaveOptions options) const {
  MUSTER_PIPELINE_TRY(status_);
  if (!function) return InvalidArgument("interleave: no function");
  const std::int64_t most = options.parallel ? kMostThreads : 65536;
  MUSTER_PIPELINE_TRY(CheckWithin("interleave: cycle_length", options.cycle_length, 1, most));
  MUSTER_PIPELINE_TRY(
      CheckWithin("interleave: block_length", options.block_length, 1, kMostBuffered));
  return MakeInterleave(node_, std::move(function), std::move(options), DrawSeed());
}

Pipeline Pipeline::Filter(FilterFunction function) const {
  MUSTER_PIPELINE_TRY(status_);
  if (!function) return InvalidArgument("filter: no function");
  return MakeFilter(node_, std::move(function));
}

Pipeline Pipeline::Shuffle(std::int64_t buffer, ShuffleOptions options) const {
  MUSTER_PIPELINE_TRY(status_);
  MUSTER_PIPELINE_TRY(CheckWithin("shuffle: buffer", buffer, 1, kMostBuffered));
  return MakeShuffle(node_, buffer, options, DrawSeed());
}

Pipeline Pipeline::Repeat(std::optional<std::int64_t> count) const {
  MUSTER_PIPELINE_TRY(status_);
  if (count && *count < 0) {
    return InvalidArgument("repeat: {} times; give no count to repeat for ever", *count);
  }
  return MakeRepeat(node_, count);
}

Pipeline Pipeline::Batch(std::int64_t size, bool drop_remainder) const {
  MUSTER_PIPELINE_TRY(status_);
  MUSTER_PIPELINE_TRY(CheckWithin("batch: size", size, 1, kMostBuffered));
  return MakeBatch(node_, size, drop_remainder);
}

Pipeline Pipeline::Shard(std::int64_t shards, std::int64_t index) const {
  MUSTER_PIPELINE_TRY(status_);
  MUSTER_PIPELINE_TRY(CheckWithin("shard: shards", shards, 1, std::int64_t{1} << 30));
  MUSTER_PIPELINE_TRY(CheckWithin("shard: index", index, 0, shards - 1));
  return MakeShard(node_, shards, index, /*checked=*/false);
}

Pipeline Pipeline::ShardPlaceholder() const {
  MUSTER_PIPELINE_TRY(status_);
  return MakeShardPlaceholder(node_);
}

Pipeline Pipeline::Zip(const std::vector<Pipeline>& inputs) {
  if (inputs.empty()) return InvalidArgument("zip: of no pipelines");
  Result<std::vector<NodePtr>> nodes = NodesOf(inputs);
  MUSTER_PIPELINE_TRY(nodes.status());
  return MakeZip(*std::move(nodes));
}

Pipeline Pipeline::Sample(const std::vector<Pipeline>& inputs, SampleOptions options) {
  if (inputs.empty()) return InvalidArgument("sample: of no pipelines");
  Result<std::vector<NodePtr>> nodes = NodesOf(inputs);
  MUSTER_PIPELINE_TRY(nodes.status());
  const std::vector<double>& weights = options.weights;
  const bool good = std::all_of(weights.begin(), weights.end(), [](double w) { return w >= 0; });
  if (weights.size() != inputs.size() || !good ||
      std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0; })) {
    return InvalidArgument("sample: {} for {}; each has one of 0 or more, not all 0",
                           Counted(weights.size(), "weight"), Counted(inputs.size(), "dataset"));
  }
  return MakeSample(*std::move(nodes), std::move(options), DrawSeed());
}

Pipeline Pipeline::Concatenate(const Pipeline& next) const {
  MUSTER_PIPELINE_TRY(status_);
  MUSTER_PIPELINE_TRY(next.status());
  return MakeConcatenate(node_, next.node());
}

Pipeline Pipeline::Take(std::int64_t count) const {
  MUSTER_PIPELINE_TRY(status_);
  if (count < 0) return InvalidArgument("take: {} elements; at least 0 are wanted", count);
  return MakeTake(node_, count);
}

Pipeline Pipeline::Skip(std::int64_t count) const {
  MUSTER_PIPELINE_TRY(status_);
  if (count < 0) return InvalidArgument("skip: {} elements; at least 0 are wanted", count);
  return MakeSkip(node_, count);
}

Pipeline Pipeline::Prefetch(std::int64_t count) const {
  MUSTER_PIPELINE_TRY(status_);
  MUSTER_PIPELINE_TRY(CheckWithin("prefetch: count", count, 1, kMostBuffered));
  return MakePrefetch(node_, count);
}

Pipeline Pipeline::Cache() const {
  MUSTER_PIPELINE_TRY(status_);
  return MakeCache(node_);
}

Pipeline Pipeline::WithPolicy(AutoShardPolicy policy) const {
  MUSTER_PIPELINE_TRY(status_);
  return MakeOptions(node_, policy);
}

Pipeline Pipeline::Rebatch(std::vector<std::int64_t> sizes) const {
  MUSTER_PIPELINE_TRY(status_);
  bool any = false;
  for (const std::int64_t size : sizes) {
    MUSTER_PIPELINE_TRY(CheckWithin("rebatch: size", size, 0, kMostBuffered));
    any = any || size > 0;
  }
  if (!any) return InvalidArgument("rebatch: into pieces of nothing");
  return MakeRebatch(node_, std::move(sizes));
}

Pipeline Pipeline::EvenRebatch(int pieces) const {
  MUSTER_PIPELINE_TRY(status_);
  MUSTER_PIPELINE_TRY(CheckWithin("rebatch: pieces", pieces, 1, 1 << 20));
  return MakeEvenRebatch(node_, pieces);
}

Pipeline Pipeline::Custom(const std::string& name, CustomFunction function,
                          CustomOptions options) const {
  MUSTER_PIPELINE_TRY(status_);
  if (!function) return InvalidArgument("{}: no function", name);
  return MakeCustom(node_, name, std::move(function), std::move(options));
}

#undef MUSTER_PIPELINE_TRY

}  // namespace muster::data
