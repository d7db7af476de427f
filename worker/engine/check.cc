#include "worker/engine/check.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <stdlib.h>

#include "common/base/utf8.h"
#include "common/base/words.h"
#include "common/data/batch_source.h"
#include "common/data/declared_columns.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "worker/engine/assemble.h"
#include "worker/engine/runtime.h"

namespace muster::engine {
namespace {

constexpr std::int64_t kExamples = 2;

// A folder that goes when this does.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code ignored;
    std::string name =
        (std::filesystem::temp_directory_path(ignored) / "muster-check-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Numbers that repeat: the same dry run says the same.
class Noise {
 public:
  std::uint64_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }
  // In [-scale, scale).
  float Near(float scale) {
    return scale * (static_cast<float>(Next()) / static_cast<float>(1u << 30) - 1.0f);
  }

 private:
  std::uint64_t state_ = 1;
};

template <class T, class Make>
void Write(std::vector<std::byte>& bytes, Make make) {
  T* values = reinterpret_cast<T*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) values[i] = static_cast<T>(make());
}

// `limit`: integers are below it (an embedding's rows); 1 gives zeros.
data::Column MadeUp(data::ColumnInfo info, std::int64_t limit, Noise& noise) {
  info.shape[0] = kExamples;
  data::Column column;
  column.info = std::move(info);
  auto bytes = std::make_shared<std::vector<std::byte>>(column.bytes());
  const auto integer = [&] { return noise.Next() % static_cast<std::uint64_t>(limit); };
  switch (column.info.dtype) {
    case DType::kFloat32:
      Write<float>(*bytes, [&] { return limit == 1 ? 0.0f : noise.Near(1.0f); });
      break;
    case DType::kFloat64:
      Write<double>(*bytes, [&] { return limit == 1 ? 0.0f : noise.Near(1.0f); });
      break;
    case DType::kInt64:
      Write<std::int64_t>(*bytes, integer);
      break;
    case DType::kUint8:
      Write<std::uint8_t>(*bytes, integer);
      break;
    default:
      break;  // zeros
  }
  column.data = bytes->data();
  column.owner = std::move(bytes);
  return column;
}

// Nothing when only the files know what a column looks like.
std::optional<data::Element> MadeUpBatch(const v1::JobSpec& spec, const Model& model,
                                         const std::vector<data::ColumnInfo>& columns) {
  Noise noise;
  data::Element batch;
  const std::vector<std::string> needed = model.columns();
  for (const data::ColumnInfo& column : columns) {
    if (std::ranges::find(needed, column.name) == needed.end()) continue;
    const bool unknown = column.dtype == DType::kUnspecified || column.shape.empty() ||
                         std::any_of(column.shape.begin() + 1, column.shape.end(),
                                     [](std::int64_t size) { return size < 0; });
    if (unknown) return std::nullopt;
    std::int64_t limit = 2;
    for (const EmbeddingInfo& info : model.embeddings()) {
      if (info.feature == column.name) limit = limit == 2 ? info.rows : std::min(limit, info.rows);
    }
    if (column.name == spec.loss().label()) limit = 1;
    batch.columns.push_back(MadeUp(column, limit, noise));
  }
  return batch;
}

// Memory for a model's parameters and rows, filled with small numbers.
class Trial {
 public:
  Trial(std::unique_ptr<Model> model, std::optional<std::uint64_t> memory_bytes)
      : model_(std::move(model)), memory_bytes_(memory_bytes) {}

  Status Run(const data::Element& batch, bool train) {
    if (train) MUSTER_TRY(BindAll());
    MUSTER_TRY_ASSIGN(std::vector<Lookup> lookups, model_->FindRows(batch));
    std::vector<std::vector<float>> rows(lookups.size()), gradients(lookups.size());
    for (std::size_t i = 0; i < lookups.size(); ++i) {
      const auto dim = static_cast<std::size_t>(model_->embeddings()[i].dim);
      rows[i].resize(lookups[i].ids.size() * dim);
      for (float& value : rows[i]) value = noise_.Near(0.05f);
      gradients[i].resize(rows[i].size());
      lookups[i].rows = rows[i];
      lookups[i].row_gradients = gradients[i];
    }
    if (train) return model_->TrainStep(1, {}, batch, lookups).status();
    return model_->Evaluate("evaluation", batch, lookups).status();
  }

 private:
  // Shapes are the user's, and memory beyond what there is would end this process by a signal.
  Status BindAll() {
    const auto parameters = model_->parameters();
    std::uint64_t needed = 0;
    for (const ParameterInfo& parameter : parameters) {
      needed += 2 * sizeof(float) * static_cast<std::uint64_t>(parameter.elements);
    }
    if (memory_bytes_ && needed > *memory_bytes_) {
      return ResourceExhausted(
          "the parameters and their gradients need {} MiB for one step, and the host that tries it "
          "has {} MiB left; use smaller parameters, or embeddings for large tables",
          needed >> 20, *memory_bytes_ >> 20);
    }
    values_.resize(parameters.size());
    gradients_.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::span<const float> initial = model_->InitialValue(i);
      values_[i].assign(initial.begin(), initial.end());
      if (initial.empty()) {
        values_[i].resize(static_cast<std::size_t>(parameters[i].elements));
        for (float& value : values_[i]) value = noise_.Near(0.05f);
      }
      gradients_[i].resize(values_[i].size());
      MUSTER_TRY(model_->Bind(i, values_[i].data(), gradients_[i].data()));
    }
    return Ok();
  }

  Noise noise_;
  // The model goes first: its parameters lie in the vectors.
  std::vector<std::vector<float>> values_, gradients_;
  std::unique_ptr<Model> model_;
  const std::optional<std::uint64_t> memory_bytes_;
};

void ListParameters(const v1::JobSpec& spec, const Model& model, v1::CheckReport& report) {
  std::uint32_t id = 0;
  for (const ParameterInfo& parameter : model.parameters()) {
    v1::VariableLayout& layout = *report.add_parameters();
    layout.set_id(id++);
    layout.set_name(parameter.name);
    layout.set_dtype(v1::DTYPE_FLOAT32);
    for (const std::int64_t size : parameter.shape) layout.add_shape(size);
    const auto declared = spec.model().parameters().find(parameter.name);
    if (declared != spec.model().parameters().end()) {
      if (declared->second.has_initializer()) {
        *layout.mutable_initializer() = declared->second.initializer();
      }
    } else {
      layout.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ARCHIVE);
    }
  }
}

std::string TriedWith(const data::Element& batch, const Model& model) {
  const std::vector<std::string> needed = model.columns();
  std::vector<std::string> told;
  for (const data::Column& column : batch.columns) {
    if (std::ranges::find(needed, column.info.name) == needed.end()) continue;
    told.push_back(fmt::format("{} {} [{}]", column.info.name, NameOf(column.info.dtype),
                               fmt::join(column.info.shape, ", ")));
  }
  return fmt::format("(tried with {})", Joined(told));
}

// What the data is, as far as the options allow to look.
struct Sight {
  std::unique_ptr<data::BatchSource> source;  // null: not opened
  std::vector<data::ColumnInfo> columns;
};

Sight Look(const v1::DataSpec& spec, const CheckOptions& options, const std::string& cache,
           std::string_view what, std::vector<std::string>& problems) {
  Sight sight;
  auto declared = data::DeclaredColumns(spec);
  if (!declared.ok()) {
    problems.push_back(data::InSection(what, Message(declared.status())));
    return sight;
  }
  sight.columns = *std::move(declared);
  if (options.data == CheckOptions::Data::kNone) return sight;
  // Whether the examples fill a batch of the job's size is not this one's question.
  v1::DataSpec all = spec;
  all.set_drop_remainder(false);
  auto source = data::BatchSource::Open(
      all, {.cache_directory = cache, .seed = 0, .batch_size = kExamples, .shuffle = false});
  if (source.ok()) {
    sight.source = *std::move(source);
    sight.columns = sight.source->columns();
  } else if (options.data == CheckOptions::Data::kRequired) {
    problems.push_back(data::InSection(what, Message(source.status())));
  }
  return sight;
}

// Evaluation reads the same columns: their absence or another type would fail after hours.
void CompareColumns(const Model& model, const Sight& training, const Sight& evaluation,
                    std::vector<std::string>& problems) {
  for (const std::string& name : model.columns()) {
    const data::ColumnInfo* ours = data::FindColumn(training.columns, name);
    const data::ColumnInfo* theirs = data::FindColumn(evaluation.columns, name);
    if (ours == nullptr) continue;
    if (theirs == nullptr) {
      problems.push_back(
          fmt::format("evaluation.data: has no column \"{}\", which the model reads", name));
    } else if (ours->dtype != theirs->dtype && theirs->dtype != DType::kUnspecified &&
               ours->dtype != DType::kUnspecified) {
      problems.push_back(fmt::format("evaluation.data: column \"{}\" is {}, in training {}", name,
                                     NameOf(theirs->dtype), NameOf(ours->dtype)));
    }
  }
}

std::optional<data::Element> FirstBatch(const v1::JobSpec& spec, const Model& model,
                                        const Sight& sight, std::string_view what,
                                        std::vector<std::string>& problems) {
  if (sight.source == nullptr) return MadeUpBatch(spec, model, sight.columns);
  auto batch = sight.source->Batch(1);
  if (batch.ok()) return *std::move(batch);
  problems.push_back(data::InSection(what, Message(batch.status())));
  return std::nullopt;
}

// In the order in which problems explain each other: what does not assemble is not run, and what
// does not train is not evaluated.
void CheckInto(const v1::JobSpec& spec, const CheckOptions& options, const std::string& cache,
               v1::CheckReport& report, std::vector<std::string>& problems) {
  const Sight training = Look(spec.data(), options, cache, "data", problems);
  AssembleOptions assemble;
  assemble.model = {options.archive_path, training.columns};
  assemble.allow_non_finite = true;
  std::unique_ptr<Model> model = Assemble(spec, assemble, problems);
  if (model == nullptr) return;
  ListParameters(spec, *model, report);
  Sight evaluation;
  if (spec.has_evaluation()) {
    evaluation = Look(spec.evaluation().data(), options, cache, "evaluation.data", problems);
    CompareColumns(*model, training, evaluation, problems);
  }
  if (!problems.empty()) return;

  const auto train_batch = FirstBatch(spec, *model, training, "data", problems);
  auto evaluation_batch = train_batch;
  if (evaluation.source != nullptr) {
    evaluation_batch = FirstBatch(spec, *model, evaluation, "evaluation.data", problems);
  }
  if (!train_batch) return;
  const std::string tried = TriedWith(*train_batch, *model);
  Trial trial(std::move(model), options.memory_bytes);
  if (const Status status = trial.Run(*train_batch, /*train=*/true); !status.ok()) {
    problems.push_back(fmt::format("{}\n{}", Message(status), tried));
    return;
  }
  if (!spec.has_evaluation() || !evaluation_batch) return;
  if (const Status status = trial.Run(*evaluation_batch, /*train=*/false); !status.ok()) {
    problems.push_back(Message(status));
  }
}

}  // namespace

v1::CheckReport CheckJob(const v1::JobSpec& spec, const CheckOptions& options) {
  v1::CheckReport report;
  report.set_torch_version(TorchVersion());
  std::optional<TemporaryFolder> temporary;
  std::string cache = options.cache_directory;
  if (cache.empty() && options.data != CheckOptions::Data::kNone) {
    cache = temporary.emplace().path();
  }
  std::vector<std::string> problems;
  CheckInto(spec, options, cache, report, problems);
  for (const std::string& problem : problems) {
    const auto& told = report.problems();
    if (std::ranges::find(told, problem) == told.end()) report.add_problems(ToValidUtf8(problem));
  }
  return report;
}

}  // namespace muster::engine
