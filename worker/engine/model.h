// A job's model on one worker: forward, loss, gradients and metrics of one batch, over parameter
// memory that the caller owns. libtorch stays behind this header.
//
// The order of a step (step.h): FindRows() says which embedding rows the batch needs; the caller
// puts parameters and rows into their places; TrainStep() writes the gradients into theirs.
//
// Threading: one thread makes and uses it. Lifetime: bound memory must outlive it; a batch and its
// lookups only their call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"
#include "worker/engine/lookup.h"

namespace muster::v1 {
class JobSpec;
class MetricSums;
class ModelValues;
class TensorSet;
}  // namespace muster::v1

namespace muster::engine {

struct ParameterInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
};

// What one replica, or one logical shard of a deterministic job, computes of a step.
struct Part {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
  // Its share of the step's examples: gradients are those of the mean loss times this, so that the
  // sum over all parts is the gradient of the step's mean loss.
  double weight = 1;
};

class Model {
 public:
  struct Options {
    // The job's archive on this host; empty without one.
    std::string archive_path;
    // What the data holds. Empty: taken from spec.data as far as it says.
    std::vector<data::ColumnInfo> columns;
  };

  //   kInvalidArgument: everything that is wrong with the program, one problem a line: forward or
  //   loss does not compile (line and column), an argument that is no column and no embedding...
  //   kNotFound: no such archive.
  static Result<std::unique_ptr<Model>> Create(const v1::JobSpec& spec, const Options& options);
  virtual ~Model() = default;

  // Dense parameters, sorted by name; and embeddings, sorted by name.
  virtual std::span<const ParameterInfo> parameters() const = 0;
  virtual std::span<const EmbeddingInfo> embeddings() const = 0;
  // Columns that it reads: forward's, features of embeddings, the loss's; sorted.
  virtual std::vector<std::string> columns() const = 0;

  // An archive's value of the parameter, valid until it is bound; empty for source.
  virtual std::span<const float> InitialValue(std::size_t parameter) = 0;
  // The parameter lives at `value`, its gradient goes to `gradient`; both hold elements floats.
  // Every parameter must be bound before a step.
  virtual Status Bind(std::size_t parameter, float* value, float* gradient) = 0;

  // The archive's buffers as they are now and, with `frozen`, its parameters that do not train.
  // Tensors of a type that no DType names, sparse and empty ones are left out.
  virtual v1::ModelValues Values(bool frozen) const = 0;
  // Buffers to go on with (SetBuffers) or to evaluate with in place of the own ones
  // (EvaluateWith). Buffers that the set does not name stay as they are.
  //   kFailedPrecondition: another shape or type than this model's buffer of that name.
  virtual Status SetBuffers(const v1::TensorSet& buffers) = 0;
  virtual Status EvaluateWith(const v1::TensorSet& buffers) = 0;

  // What the batch needs of each embedding, in the order of embeddings().
  //   kInvalidArgument: an id beyond the table, a feature of the wrong type.
  virtual Result<std::vector<Lookup>> FindRows(const data::Element& batch) = 0;

  // Seeds libtorch's default generator for this step: a stream of (spec.seed, step), so that a step
  // that runs again draws the same. TrainStep() of a step in one part does it; for one in several
  // parts it is called once, before them.
  virtual void SeedStep(std::uint64_t step) const = 0;

  // Forward, loss, backward: fills every bound gradient and every lookup's row_gradients, and
  // returns this batch's sums. `batch` is the part's.
  //   kInvalidArgument: the user's error: TorchScript's message with line and column, a loss or
  //   gradient that is not finite (names step and parameter), a buffer that changed against the
  //   policy. Gradients are then not to be used.
  virtual Result<v1::MetricSums> TrainStep(std::uint64_t step, const Part& part,
                                           const data::Element& batch,
                                           std::span<Lookup> lookups) = 0;
  // Forward and metrics with self.training false; changes nothing. `label` names the batch in
  // errors ("evaluation batch 3").
  virtual Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                          std::span<const Lookup> lookups) = 0;
};

}  // namespace muster::engine
