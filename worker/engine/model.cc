#include "worker/engine/model.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "common/data/declared_columns.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "worker/engine/assemble.h"
#include "worker/engine/binding.h"
#include "worker/engine/buffer_guard.h"
#include "worker/engine/buffer_values.h"
#include "worker/engine/loss.h"
#include "worker/engine/network.h"
#include "worker/engine/script_error.h"
#include "worker/engine/tensors.h"

namespace muster::engine {
namespace {

// A stream of random numbers for each (seed, step): splitmix64's finaliser.
std::uint64_t StreamOf(std::uint64_t seed, std::uint64_t step) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u + step;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

struct Place {
  float* value = nullptr;
  float* gradient = nullptr;
};

class ModelImpl final : public Model {
 public:
  ModelImpl(const v1::JobSpec& spec, bool allow_non_finite, std::unique_ptr<Network> network,
            std::unique_ptr<Loss> loss, std::vector<EmbeddingInfo> embeddings,
            std::vector<BoundArgument> arguments)
      : seed_(spec.seed()),
        source_(spec.model().forward()),
        allow_non_finite_(allow_non_finite),
        network_(std::move(network)),
        loss_(std::move(loss)),
        embeddings_(std::move(embeddings)),
        arguments_(std::move(arguments)),
        buffers_(*network_, spec.model().buffers() == v1::BUFFER_POLICY_WORKER_LOCAL) {
    for (const NamedTensor& parameter : network_->parameters()) {
      parameters_.push_back(
          {parameter.name, parameter.tensor.sizes().vec(), parameter.tensor.numel()});
    }
    places_.resize(parameters_.size());
  }

  std::span<const ParameterInfo> parameters() const override { return parameters_; }
  std::span<const EmbeddingInfo> embeddings() const override { return embeddings_; }

  std::vector<std::string> columns() const override {
    std::set<std::string> names;
    for (const BoundArgument& argument : arguments_) {
      if (argument.kind == BoundArgument::Kind::kColumn) names.insert(argument.column);
    }
    for (const EmbeddingInfo& embedding : embeddings_) names.insert(embedding.feature);
    for (const std::string& name : loss_->columns()) names.insert(name);
    return {names.begin(), names.end()};
  }

  std::span<const float> InitialValue(std::size_t parameter) override {
    if (!source_.empty()) return {};
    // Archives may hold transposed weights; hold on to a plain copy of those.
    initial_ = network_->parameters()[parameter].tensor.detach().contiguous();
    return {initial_.data_ptr<float>(), static_cast<std::size_t>(initial_.numel())};
  }

  Status Bind(std::size_t parameter, float* value, float* gradient) override {
    MUSTER_INVARIANT(parameter < parameters_.size());
    places_[parameter] = {value, gradient};
    try {
      const at::NoGradGuard no_grad;
      at::Tensor tensor = network_->parameters()[parameter].tensor;
      tensor.set_data(at::from_blob(value, parameters_[parameter].shape, at::kFloat));
    } catch (...) {
      return CurrentException("bind", "");
    }
    return Ok();
  }

  v1::ModelValues Values(bool frozen) const override {
    v1::ModelValues values;
    AddValues(network_->buffers(), *values.mutable_buffers());
    if (frozen) AddValues(network_->frozen(), *values.mutable_frozen());
    return values;
  }

  Status SetBuffers(const v1::TensorSet& buffers) override {
    MUSTER_TRY_ASSIGN(const auto values, BuffersFrom(*network_, buffers));
    PutBuffers(*network_, values);
    return Ok();
  }

  Status EvaluateWith(const v1::TensorSet& buffers) override {
    MUSTER_TRY_ASSIGN(evaluation_buffers_, BuffersFrom(*network_, buffers));
    return Ok();
  }

  Result<std::vector<Lookup>> FindRows(const data::Element& batch) override;
  void SeedStep(std::uint64_t step) const override { at::manual_seed(StreamOf(seed_, step)); }
  Result<v1::MetricSums> TrainStep(std::uint64_t step, const Part& part, const data::Element& batch,
                                   std::span<Lookup> lookups) override;
  Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                  std::span<const Lookup> lookups) override;

 private:
  // A batch on its way through forward: the leaves that gather embedding rows.
  struct Pass {
    std::vector<at::Tensor> gathered;  // by embedding; undefined when forward does not ask for it
    std::vector<at::IValue> values;
  };

  Result<Pass> Prepare(const data::Element& batch, std::span<const Lookup> lookups, bool train);
  Result<double> ForwardAndBackward(const data::Element& batch, double weight,
                                    std::span<Lookup> lookups);
  // Writes all gradients to their places; names of those that are not finite.
  std::vector<std::string> Store(const std::vector<at::Tensor>& gradients,
                                 std::span<Lookup> lookups);
  Status NotFinite(double loss, const std::vector<std::string>& bad, const data::Element& batch);

  const std::uint64_t seed_;
  const std::string source_;
  const bool allow_non_finite_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Loss> loss_;
  std::vector<EmbeddingInfo> embeddings_;
  std::vector<BoundArgument> arguments_;
  BufferGuard buffers_;
  std::map<std::string, at::Tensor> evaluation_buffers_;
  std::vector<ParameterInfo> parameters_;
  std::vector<Place> places_;
  at::Tensor initial_;
};

Result<std::vector<Lookup>> ModelImpl::FindRows(const data::Element& batch) {
  std::vector<Lookup> lookups;
  for (std::size_t i = 0; i < embeddings_.size(); ++i) {
    const data::Column* feature = batch.Find(embeddings_[i].feature);
    if (feature == nullptr) {
      return InvalidArgument("embedding \"{}\": the batch has no column \"{}\"",
                             embeddings_[i].name, embeddings_[i].feature);
    }
    MUSTER_TRY_ASSIGN(Lookup lookup, engine::FindRows(embeddings_[i], *feature));
    lookup.embedding = i;
    lookups.push_back(std::move(lookup));
  }
  return lookups;
}

// The arguments of one forward pass: columns of the batch, gathered rows, defaults.
Result<ModelImpl::Pass> ModelImpl::Prepare(const data::Element& batch,
                                           std::span<const Lookup> lookups, bool train) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].value == nullptr) {
      return FailedPrecondition("parameter \"{}\" has no memory yet", parameters_[i].name);
    }
  }
  if (lookups.size() != embeddings_.size()) {
    return FailedPrecondition("{} lookups for {} embeddings", lookups.size(), embeddings_.size());
  }
  Pass pass;
  pass.gathered.resize(embeddings_.size());
  for (const BoundArgument& argument : arguments_) {
    if (argument.kind == BoundArgument::Kind::kDefault) {
      pass.values.push_back(*argument.argument.default_value);
      continue;
    }
    at::Tensor value;
    if (argument.kind == BoundArgument::Kind::kEmbedding) {
      const Lookup& lookup = lookups[argument.embedding];
      value = at::empty(lookup.shape, at::kFloat);
      Gather(embeddings_[argument.embedding], lookup, value.data_ptr<float>());
      if (train) value.requires_grad_(true);
      pass.gathered[argument.embedding] = value;
    } else {
      const data::Column* column = batch.Find(argument.column);
      if (column == nullptr) {
        return InvalidArgument("the batch has no column \"{}\"", argument.column);
      }
      value = View(*column);
    }
    pass.values.emplace_back(argument.argument.written ? value.clone() : value);
  }
  return pass;
}

Result<double> ModelImpl::ForwardAndBackward(const data::Element& batch, double weight,
                                             std::span<Lookup> lookups) {
  MUSTER_TRY_ASSIGN(Pass pass, Prepare(batch, lookups, /*train=*/true));
  network_->SetTraining(true);
  const at::IValue output = network_->Forward(std::move(pass.values));
  MUSTER_TRY_ASSIGN(const at::Tensor loss, loss_->Compute(output, batch));
  if (!loss.requires_grad()) {
    return InvalidArgument("the loss depends on no parameter and no embedding: nothing to train");
  }
  std::vector<at::Tensor> leaves;
  for (const NamedTensor& parameter : network_->parameters()) leaves.push_back(parameter.tensor);
  for (const at::Tensor& gathered : pass.gathered) leaves.push_back(gathered);
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({weight == 1 ? loss : loss * weight}, leaves, {},
                            /*retain_graph=*/false, /*create_graph=*/false,
                            /*allow_unused=*/true);
  const double value = loss.item<double>();
  const std::vector<std::string> bad = Store(gradients, lookups);
  if (!allow_non_finite_ && (!bad.empty() || !std::isfinite(value))) {
    return NotFinite(value, bad, batch);
  }
  return value;
}

// Gradients into the memory that the caller has bound. Answers whose are not finite.
std::vector<std::string> ModelImpl::Store(const std::vector<at::Tensor>& gradients,
                                          std::span<Lookup> lookups) {
  std::vector<std::string> bad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor gradient = gradients[i];
    const auto n = static_cast<std::size_t>(parameters_[i].elements);
    float* to = places_[i].gradient;
    if (!gradient.defined()) {
      std::fill_n(to, n, 0.0f);
      continue;
    }
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    bool finite = false;
    if (gradient.is_contiguous()) {
      finite = CopyFinite(gradient.data_ptr<float>(), to, n);
    } else {
      at::from_blob(to, parameters_[i].shape, at::kFloat).copy_(gradient);
      finite = AllFinite(to, n);
    }
    if (!finite) bad.push_back(fmt::format("parameter \"{}\"", parameters_[i].name));
  }
  for (Lookup& lookup : lookups) {
    const EmbeddingInfo& info = embeddings_[lookup.embedding];
    const at::Tensor& gradient = gradients[parameters_.size() + lookup.embedding];
    const std::size_t n = lookup.ids.size() * static_cast<std::size_t>(info.dim);
    if (!gradient.defined()) {
      std::fill_n(lookup.row_gradients.data(), n, 0.0f);
      continue;
    }
    Scatter(info, lookup, gradient.contiguous().data_ptr<float>());
    if (!AllFinite(lookup.row_gradients.data(), n)) {
      bad.push_back(fmt::format("embedding \"{}\"", info.name));
    }
  }
  return bad;
}

Status ModelImpl::NotFinite(double loss, const std::vector<std::string>& bad,
                            const data::Element& batch) {
  // The sign of a NaN says nothing.
  std::string text = fmt::format("the loss is {}", std::isnan(loss) ? std::abs(loss) : loss);
  if (!bad.empty()) {
    text += fmt::format(", the gradient of {} is not finite", bad[0]);
    if (bad.size() > 1) text += fmt::format(" (nor are those of {} more)", bad.size() - 1);
  }
  for (const data::Column& column : batch.columns) {
    if (column.info.dtype == DType::kFloat32 &&
        !AllFinite(column.as<float>(), static_cast<std::size_t>(column.elements()))) {
      return InvalidArgument("{}; column \"{}\" of this batch holds a value that is not finite",
                             text, column.info.name);
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!AllFinite(places_[i].value, static_cast<std::size_t>(parameters_[i].elements))) {
      return InvalidArgument(
          "{}; the value of parameter \"{}\" is not finite: training has diverged, try a lower "
          "learning_rate",
          text, parameters_[i].name);
    }
  }
  return InvalidArgument(
      "{}; look for a division by zero, log or sqrt of 0 in forward and loss, "
      "or try a lower learning_rate",
      text);
}

Result<v1::MetricSums> ModelImpl::TrainStep(std::uint64_t step, const Part& part,
                                            const data::Element& batch, std::span<Lookup> lookups) {
  const std::string label = fmt::format("step {}", step);
  try {
    if (part.count == 1) SeedStep(step);
    const auto loss = ForwardAndBackward(batch, part.weight, lookups);
    if (!loss.ok()) return Annotate(loss.status(), label);
    if (Status status = buffers_.Check(); !status.ok()) return Annotate(status, label);
    v1::MetricSums sums;
    loss_->AddMetrics(*loss, /*scores=*/false, sums);
    return sums;
  } catch (...) {
    return Annotate(CurrentException(kForward, source_), label);
  }
}

Result<v1::MetricSums> ModelImpl::Evaluate(const std::string& label, const data::Element& batch,
                                           std::span<const Lookup> lookups) {
  try {
    const at::NoGradGuard no_grad;
    const BorrowedBuffers borrowed(*network_, evaluation_buffers_);
    MUSTER_TRY_ASSIGN(Pass pass, Prepare(batch, lookups, /*train=*/false));
    network_->SetTraining(false);
    const at::IValue output = network_->Forward(std::move(pass.values));
    const auto loss = loss_->Compute(output, batch);
    if (!loss.ok()) return Annotate(loss.status(), label);
    const double value = loss->item<double>();
    if (!allow_non_finite_ && !std::isfinite(value)) {
      return Annotate(NotFinite(value, {}, batch), label);
    }
    v1::MetricSums sums;
    loss_->AddMetrics(value, /*scores=*/true, sums);
    return sums;
  } catch (...) {
    return Annotate(CurrentException(kForward, source_), label);
  }
}

std::unique_ptr<Network> MakeNetwork(const v1::JobSpec& spec, const std::string& archive_path,
                                     std::vector<std::string>& problems) {
  if (spec.model().forward().empty() == archive_path.empty()) {
    problems.push_back("model: give exactly one of forward and archive");
    return nullptr;
  }
  // Workers keep archives under their hashes; people know them by the name in the job file.
  const std::string given =
      std::filesystem::path(spec.model().archive().empty() ? archive_path : spec.model().archive())
          .filename();
  auto network = archive_path.empty() ? NetworkFromSource(spec.model())
                                      : NetworkFromArchive(archive_path, given);
  if (network.ok()) return *std::move(network);
  problems.push_back(Message(network.status()));
  return nullptr;
}

void CheckNetwork(const v1::JobSpec& spec, const Network& network,
                  std::vector<std::string>& problems) {
  if (network.parameters().empty() && spec.embeddings().empty()) {
    problems.push_back("model: no parameter and no embedding: nothing to train");
  }
  for (const NamedTensor& parameter : network.parameters()) {
    if (spec.embeddings().contains(parameter.name)) {
      problems.push_back(
          fmt::format("\"{}\" is a parameter and an embedding; rename one", parameter.name));
    }
  }
  if (!spec.model().forward().empty()) {
    for (const std::string& name : network.unused()) {
      problems.push_back(
          fmt::format("parameter \"{}\": forward never reads self.{}; remove it", name, name));
    }
  }
  if (spec.model().buffers() == v1::BUFFER_POLICY_WORKER_LOCAL) {
    std::uint64_t bytes = 0;
    for (const NamedTensor& buffer : network.buffers()) {
      if (Travels(buffer.tensor)) bytes += buffer.tensor.nbytes();
    }
    if (bytes > kMostBufferBytes) {
      problems.push_back(
          fmt::format("the archive's buffers hold {} bytes; with buffers: worker_local, where they "
                      "travel to whoever evaluates, they may hold {}",
                      bytes, kMostBufferBytes));
    }
  } else {
    for (const std::string& name : network.assigned()) {
      problems.push_back(fmt::format(
          "forward assigns self.{}, which the workers would not share; set buffers: worker_local "
          "if each worker may keep its own",
          name));
    }
  }
}

}  // namespace

std::unique_ptr<Model> Assemble(const v1::JobSpec& spec, const AssembleOptions& options,
                                std::vector<std::string>& problems) {
  const std::size_t before = problems.size();
  std::vector<data::ColumnInfo> columns = options.model.columns;
  if (columns.empty()) {
    auto declared = data::DeclaredColumns(spec.data());
    if (declared.ok()) {
      columns = *std::move(declared);
    } else {
      problems.push_back(fmt::format("data: {}", Message(declared.status())));
    }
  }
  std::unique_ptr<Network> network = MakeNetwork(spec, options.model.archive_path, problems);
  std::vector<EmbeddingInfo> embeddings = ReadEmbeddings(spec, columns, problems);
  std::vector<BoundArgument> arguments;
  std::unique_ptr<Loss> loss;
  if (network != nullptr) CheckNetwork(spec, *network, problems);
  if (!columns.empty()) {
    if (network != nullptr) {
      arguments = BindArguments(network->arguments(), columns, embeddings, problems);
    }
    loss = Loss::Create(spec, columns, problems);
  }
  if (problems.size() != before) return nullptr;
  return std::make_unique<ModelImpl>(spec, options.allow_non_finite, std::move(network),
                                     std::move(loss), std::move(embeddings), std::move(arguments));
}

Result<std::unique_ptr<Model>> Model::Create(const v1::JobSpec& spec, const Options& options) {
  std::error_code ignored;
  if (!options.archive_path.empty() && !std::filesystem::exists(options.archive_path, ignored)) {
    return NotFound("archive {}: no such file", options.archive_path);
  }
  std::vector<std::string> problems;
  std::unique_ptr<Model> model = Assemble(spec, {options, false}, problems);
  if (model == nullptr) return InvalidArgument("{}", fmt::join(problems, "\n"));
  return model;
}

}  // namespace muster::engine
