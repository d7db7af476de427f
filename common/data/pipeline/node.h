// The graph of a pipeline: immutable nodes, each over the ones that it reads from. A graph can be
// looked at (kind(), inputs(), ToText()), rewritten (WithInputs(), rewrite.h) and iterated
// (iterator.h). Build one through Pipeline (pipeline.h).
//
// Threading: nodes are immutable and may be shared; iterators belong to one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"
#include "common/data/rebatch.h"

namespace muster::data {

class Node;
using NodePtr = std::shared_ptr<const Node>;

// An element; nothing at the end of the data.
using Item = Result<std::optional<Element>>;
// Columns of the elements, -1 for sizes that differ; nothing when only running it can tell.
using ElementSpec = std::optional<std::vector<ColumnInfo>>;

// What cardinality() says beside a number of elements.
inline constexpr std::int64_t kInfinite = -1;
inline constexpr std::int64_t kUnknownCardinality = -2;

enum class NodeKind {
  kRange,
  kSlices,
  kElements,
  kGenerator,
  kFileNames,
  kRecords,
  kMap,
  kFlatMap,
  kInterleave,
  kFilter,
  kShuffle,
  kRepeat,
  kBatch,
  kShard,
  kZip,
  kSample,
  kConcatenate,
  kTake,
  kSkip,
  kPrefetch,
  kCache,
  kOptions,
  kRebatch,      // cut into sizes, across the borders of batches
  kEvenRebatch,  // each batch by itself into equal pieces
  kCustom,       // a transformation that only its author understands
};

// Reads the elements of one node, one after another.
//   After the end or an error it is not asked again.
class NodeIterator {
 public:
  virtual ~NodeIterator() = default;
  virtual Item Next() = 0;
  // The next `rows` elements stacked into one, fewer at the end; nothing when there is none.
  virtual Item NextBatch(std::int64_t rows);
  // Passes over `count` elements, without computing them where that is possible. Returns how many
  // there were.
  virtual Result<std::int64_t> Skip(std::int64_t count);
};

// Which seed a node without one of its own uses, in one iterator.
using SeedTable = std::map<const Node*, std::uint64_t>;

struct IteratorContext {
  // Ends every wait of the iterator.
  std::stop_token stop;
  // Differs from one pass over the data to the next.
  std::uint64_t pass = 0;
  std::shared_ptr<const SeedTable> seeds;
  // Called first on each thread that the pipeline starts; may be empty.
  std::function<void()> on_thread_start;
};

// What the rewrites ask of a node.
struct NodeFacts {
  // How many elements a batch step joins; -1 for other steps.
  std::int64_t batch_size = -1;
  // Into how many pieces a rebatch step cuts a global batch.
  int pieces = 0;
  // Elements of its input are names of files, which it reads.
  bool reads_files = false;
  // Policy FILE may shard below this custom step.
  bool passes_files = false;
  // shard() whose numbers are still to be filled in.
  bool shard_placeholder = false;
  std::optional<AutoShardPolicy> policy = std::nullopt;
};

class Node {
 public:
  explicit Node(std::vector<NodePtr> inputs) : inputs_(std::move(inputs)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::vector<NodePtr>& inputs() const { return inputs_; }
  virtual NodeKind kind() const = 0;
  // "batch(4)": all that decides which elements come out, but not the user's functions.
  virtual std::string Describe() const = 0;
  // What changes only how fast they come: " parallel=4". Empty for most.
  virtual std::string Tuning() const { return ""; }
  virtual ElementSpec spec() const = 0;
  virtual std::int64_t cardinality() const = 0;
  virtual NodeFacts facts() const { return {}; }
  // The seed that was drawn when the node was made, because the user gave none.
  virtual std::optional<std::uint64_t> drawn_seed() const { return std::nullopt; }
  // The same step over other inputs (as many as now).
  virtual NodePtr WithInputs(std::vector<NodePtr> inputs) const = 0;
  // The same elements without reading ahead of who asks: for iterators that leave elements out.
  virtual NodePtr InStep(std::vector<NodePtr> inputs) const {
    return WithInputs(std::move(inputs));
  }
  virtual Result<std::unique_ptr<NodeIterator>> MakeIterator(const IteratorContext&) const = 0;

 protected:
  const Node& input() const { return *inputs_.front(); }

 private:
  const std::vector<NodePtr> inputs_;
};

// The graph as text, one node a line, inputs indented below.
std::string ToText(const Node& node);
// Equal for graphs that give the same elements (with equal functions and files): kinds, their
// arguments and the source's sizes; not seeds that were drawn, parallelism and prefetching.
std::uint64_t Fingerprint(const Node& node);

// The nodes with a drawn seed in the order of ToText(), and their seeds.
std::vector<const Node*> DrawnNodes(const Node& node);
// What a node with a drawn seed uses under `context`.
std::uint64_t SeedOf(const Node& node, const IteratorContext& context);
// For a pipeline made while another runs: its drawn seeds follow from `base`, so that a second run
// makes the same elements.
IteratorContext NestedContext(const IteratorContext& outer, const Node& inner, std::uint64_t base);
// A number that nobody can guess.
std::uint64_t DrawSeed();

// What an exception of a user's function becomes: std::invalid_argument and std::out_of_range keep
// their kind, others are kUnknown.
Status FromException(const std::exception& error, const std::string& where);
// Calls a user's function; none of its exceptions passes.
template <class F>
auto Guarded(const char* where, F&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return FromException(error, where);
  } catch (...) {
    return Unknown("{}: the function threw what is no std::exception", where);
  }
}

}  // namespace muster::data
