#include "common/data/pipeline/rewrite.h"

#include <algorithm>
#include <functional>

#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

// The node with f(input) in the place of each input.
NodePtr OverInputs(const NodePtr& node, const std::function<NodePtr(const NodePtr&)>& f) {
  std::vector<NodePtr> inputs;
  for (const NodePtr& input : node->inputs()) inputs.push_back(f(input));
  return node->WithInputs(std::move(inputs));
}

// Whether a step works the same on fewer files.
bool PassesShard(const Node& node) {
  switch (node.kind()) {
    case NodeKind::kShuffle:
    case NodeKind::kMap:
    case NodeKind::kPrefetch:
    case NodeKind::kCache:
    case NodeKind::kOptions:
    case NodeKind::kRepeat:
      return true;
    default:
      return false;
  }
}

// A shard goes below every step that works the same on fewer files, so next to their source where
// it can: a shuffle above it then orders each worker's own files, whatever its seed.
NodePtr ShardNames(const NodePtr& node, const Shard& shard) {
  if (!PassesShard(*node)) {
    return MakeShard(node, shard.workers, shard.index, /*checked=*/false);
  }
  return OverInputs(node, [&](const NodePtr& input) { return ShardNames(input, shard); });
}

// The step whose order was drawn, so that whoever builds the pipeline has another; empty: there is
// none.
std::string DrawnOrder(const Node& node) {
  const bool orders = node.kind() == NodeKind::kShuffle || node.kind() == NodeKind::kSample;
  if (orders && node.drawn_seed()) return node.Describe();
  for (const NodePtr& input : node.inputs()) {
    if (std::string step = DrawnOrder(*input); !step.empty()) return step;
  }
  return "";
}

// The same of what ShardFiles() shares out. `names`: `node` makes names for a reader above it.
std::string DrawnOrderOfFiles(const Node& node, bool names = false) {
  if (names && !PassesShard(node)) return DrawnOrder(node);
  for (const NodePtr& input : node.inputs()) {
    std::string step = DrawnOrderOfFiles(*input, names || node.facts().reads_files);
    if (!step.empty()) return step;
  }
  return "";
}

bool HidesFiles(const Node& node) {
  return node.kind() == NodeKind::kCustom && !node.facts().passes_files;
}

bool ReadsFiles(const Node& node) {
  return node.facts().reads_files ||
         std::any_of(node.inputs().begin(), node.inputs().end(),
                     [](const NodePtr& input) { return ReadsFiles(*input); });
}

// The step over a reader of file names through which policy FILE cannot go; empty: there is none.
std::string HiderOfFiles(const Node& node) {
  if (HidesFiles(node) && ReadsFiles(node)) return node.Describe();
  for (const NodePtr& input : node.inputs()) {
    if (std::string hider = HiderOfFiles(*input); !hider.empty()) return hider;
  }
  return "";
}

// Null: no reader of file names, or a step that hides whether there is one.
NodePtr ShardFiles(const NodePtr& node, const Shard& shard) {
  if (node->facts().reads_files) {
    return OverInputs(node, [&](const NodePtr& input) { return ShardNames(input, shard); });
  }
  if (node->inputs().empty() || HidesFiles(*node)) return nullptr;
  std::vector<NodePtr> inputs;
  for (const NodePtr& input : node->inputs()) {
    inputs.push_back(ShardFiles(input, shard));
    if (inputs.back() == nullptr) return nullptr;
  }
  return node->WithInputs(std::move(inputs));
}

// How many workers there are files for; -1: not known. `names`: `node` makes names for a
// reader above it; they are counted where ShardNames() shares them out.
std::int64_t FilesToShare(const Node& node, bool names = false) {
  if (names && !PassesShard(node)) return std::max<std::int64_t>(node.cardinality(), -1);
  std::optional<std::int64_t> files;
  for (const NodePtr& input : node.inputs()) {
    const std::int64_t some = FilesToShare(*input, names || node.facts().reads_files);
    if (!files) {
      files = some;
    } else if (node.kind() == NodeKind::kZip) {
      // It ends with its shortest branch.
      files = *files < 0 || some < 0 ? std::max(*files, some) : std::min(*files, some);
    } else {
      files = *files < 0 || some < 0 ? -1 : std::max(*files, some);
    }
  }
  return files.value_or(-1);
}

// At the end, but below a trailing prefetch: what is read ahead is then this worker's.
NodePtr ShardData(const NodePtr& node, const Shard& shard) {
  if (node->kind() == NodeKind::kPrefetch || node->kind() == NodeKind::kOptions) {
    return OverInputs(node, [&](const NodePtr& input) { return ShardData(input, shard); });
  }
  // The pieces of each batch go round the workers: a cut across batches would give a worker
  // elements of another's.
  const NodePtr even = node->kind() == NodeKind::kRebatch
                           ? MakeEvenRebatch(node->inputs().front(), node->facts().pieces)
                           : node;
  return MakeShard(even, shard.workers, shard.index, /*checked=*/true);
}

NodePtr FillIn(const NodePtr& node, const Shard& shard) {
  const NodePtr filled =
      OverInputs(node, [&](const NodePtr& input) { return FillIn(input, shard); });
  if (!filled->facts().shard_placeholder) return filled;
  return MakeShard(filled->inputs().front(), shard.workers, shard.index, /*checked=*/false);
}

bool HasPlaceholder(const Node& node) {
  if (node.facts().shard_placeholder) return true;
  for (const NodePtr& input : node.inputs()) {
    if (HasPlaceholder(*input)) return true;
  }
  return false;
}

// Why the elements of a step cannot be found by their number; null: they can.
const char* WhyNotIndexed(const Node& node) {
  switch (node.kind()) {
    case NodeKind::kGenerator:
      return "only calling it tells what comes next";
    case NodeKind::kFilter:
      return "only running it tells which elements it lets through";
    case NodeKind::kFlatMap:
    case NodeKind::kInterleave:
      return "only running it tells how many elements each of its inputs becomes";
    case NodeKind::kSample:
      return "only drawing tells which of its inputs comes next";
    case NodeKind::kCustom:
      return "only running it tells where its elements begin";
    case NodeKind::kShard:
      return node.facts().shard_placeholder ? "its numbers are not filled in" : nullptr;
    default:
      return nullptr;
  }
}

Result<NodePtr> IndexedNode(const NodePtr& node) {
  if (const char* why = WhyNotIndexed(*node)) {
    return InvalidArgument(
        "elements of {} have no numbers that are known before: {}. Sources with numbered records, "
        "map, batch, shard, take, skip, repeat, zip, concatenate, enumerate and shuffle have",
        node->Describe(), why);
  }
  if (node->inputs().empty()) return node;
  std::vector<NodePtr> inputs;
  for (const NodePtr& input : node->inputs()) {
    MUSTER_TRY_ASSIGN(inputs.emplace_back(), IndexedNode(input));
  }
  return node->InStep(std::move(inputs));
}

std::optional<AutoShardPolicy> PolicyOf(const Node& node) {
  if (node.facts().policy) return node.facts().policy;
  for (const NodePtr& input : node.inputs()) {
    if (const auto policy = PolicyOf(*input)) return policy;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t StaticBatchSize(const Node& node) {
  const ElementSpec spec = node.spec();
  if (!spec || spec->empty()) return -1;
  std::int64_t size = -1;
  for (const ColumnInfo& info : *spec) {
    const std::int64_t rows = info.shape.empty() ? -1 : info.shape[0];
    if (rows < 1 || (size > 0 && rows != size)) return -1;
    size = rows;
  }
  return size;
}

std::int64_t InferBatchSize(const Node& node) {
  if (const std::int64_t size = StaticBatchSize(node); size > 0) return size;
  switch (node.kind()) {
    case NodeKind::kBatch:
      return node.facts().batch_size;
    case NodeKind::kTake:
    case NodeKind::kSkip:
    case NodeKind::kPrefetch:
    case NodeKind::kOptions:
    case NodeKind::kRepeat:
    case NodeKind::kShuffle:
    case NodeKind::kShard:
    case NodeKind::kCache:
    case NodeKind::kFilter:
      return InferBatchSize(*node.inputs().front());
    case NodeKind::kZip:
    case NodeKind::kSample:
    case NodeKind::kConcatenate: {
      std::int64_t size = InferBatchSize(*node.inputs().front());
      for (const NodePtr& input : node.inputs()) {
        if (InferBatchSize(*input) != size) size = -1;
      }
      return size;
    }
    default:
      return -1;
  }
}

Result<Pipeline> RebatchForReplicas(const Pipeline& pipeline, const Shard& shard,
                                    int replicas_per_worker) {
  MUSTER_TRY(pipeline.status());
  if (const ElementSpec spec = pipeline.node()->spec()) MUSTER_TRY(Rows(EmptyRows(*spec)).status());
  const std::int64_t batch = InferBatchSize(*pipeline.node());
  // Checks the numbers also where the sizes are not used.
  MUSTER_TRY_ASSIGN(std::vector<std::int64_t> sizes,
                    RebatchSizes(std::max<std::int64_t>(batch, 1), shard, replicas_per_worker));
  if (batch > 0) return pipeline.Rebatch(std::move(sizes));
  return pipeline.EvenRebatch(static_cast<int>(sizes.size()));
}

Result<Sharded> AutoShard(const Pipeline& pipeline, const Shard& shard,
                          std::optional<AutoShardPolicy> policy) {
  MUSTER_TRY(pipeline.status());
  const NodePtr& node = pipeline.node();
  if (!policy) policy = PolicyOf(*node).value_or(AutoShardPolicy::kAuto);
  MUSTER_TRY(CheckShard(shard));
  const NodePtr by_file = ShardFiles(node, shard);
  MUSTER_TRY_ASSIGN(ShardChoice choice, ChooseSharding(*policy, shard,
                                                       {.has_file_names = by_file != nullptr,
                                                        .hider_of_files = HiderOfFiles(*node),
                                                        .has_placeholder = HasPlaceholder(*node)}));
  switch (choice.by) {
    case ShardBy::kFile:
      choice.files = FilesToShare(*node);
      return Sharded{by_file, choice, DrawnOrderOfFiles(*node)};
    case ShardBy::kData:
      return Sharded{ShardData(node, shard), choice, DrawnOrder(*node)};
    case ShardBy::kPlaceholder:
      return Sharded{FillIn(node, shard), choice};
    case ShardBy::kNothing:
      break;
  }
  return Sharded{pipeline, choice};
}

Result<Pipeline> Indexed(const Pipeline& pipeline) {
  MUSTER_TRY(pipeline.status());
  MUSTER_TRY_ASSIGN(NodePtr node, IndexedNode(pipeline.node()));
  return Pipeline(std::move(node));
}

}  // namespace muster::data
