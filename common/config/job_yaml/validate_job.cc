#include "common/config/job_yaml/validate_job.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/job_limits.h"
#include "common/base/suggest.h"
#include "common/base/words.h"
#include "common/config/job_yaml/validate_launch.h"
#include "common/config/job_yaml/validate_strategy.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::config {
namespace {

constexpr std::uint32_t kMostCheckpoints = 10'000;
constexpr std::uint32_t kLongestCheckpointSeconds = 7 * 24 * 3600;
constexpr std::size_t kMostUnknown = 20;
constexpr int kMostMetrics = 16;

// What holds the variables computes in float32: a larger number would be infinite there.
constexpr double kLargestFloat = std::numeric_limits<float>::max();

// Whether it is a number above 0 that would be 0 or infinite there.
bool ExceedsFloat(double value) { return value > kLargestFloat || static_cast<float>(value) == 0; }

bool IsJobName(const std::string& name) {
  return !name.empty() && name.size() <= job_limits::kLongestJobName && name[0] != '-' &&
         name[0] != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

// Enums keep numbers that this version has no name for: a newer client's. Each check would take
// such a one for something else.
void FindUnknownValues(const google::protobuf::Message& message, const std::string& path,
                       Problems& problems) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* reflection = message.GetReflection();
  std::vector<const Field*> fields;
  reflection->ListFields(message, &fields);
  for (const Field* field : fields) {
    const bool number = field->cpp_type() == Field::CPPTYPE_ENUM;
    if (!number && field->cpp_type() != Field::CPPTYPE_MESSAGE) continue;
    const std::string at = path.empty() ? field->name() : path + "." + field->name();
    const int values = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < values && problems.size() < kMostUnknown; ++i) {
      if (!number) {
        FindUnknownValues(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                               : reflection->GetMessage(message, field),
                          at, problems);
        continue;
      }
      const int value = field->is_repeated() ? reflection->GetRepeatedEnumValue(message, field, i)
                                             : reflection->GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(value) != nullptr) continue;
      problems.push_back(
          {at, fmt::format("number {} is none that this version of Muster knows: upgrade the "
                           "cluster, or choose another value",
                           value)});
    }
  }
}

class JobCheck {
 public:
  explicit JobCheck(const v1::JobSpec& spec)
      : spec_(spec), columns_(DeclaredColumns(spec.data())) {}

  Problems Run();

 private:
  template <class... Args>
  void Report(std::string path, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({std::move(path), fmt::format(text, std::forward<Args>(args)...)});
  }
  // The last problem is that all of these are missing.
  void Lacks(std::vector<std::string> fields) { problems_.back().lacks = std::move(fields); }

  // `name` must be a declared column of the training data.
  void CheckColumn(const std::string& path, const std::string& name);
  void CheckSource(const std::string& path, const std::string& source);
  // The kernel would take the name before a zero byte for the whole.
  void CheckPath(const std::string& path, const std::string& file);
  void CheckInitializer(const std::string& path, const v1::Initializer& initializer);
  // Product of the dimensions times 4 bytes, refused above job_limits::kMostVariableBytes.
  void CheckShape(const std::string& path, const std::vector<std::int64_t>& shape);

  void Program();
  void Length();
  void Model();
  void Embeddings();
  std::optional<std::int64_t> LargestId(const std::string& feature) const;
  void Loss();
  void Metrics();
  void Optimizer();
  void OptimizerOptions();
  void Schedule();
  void Evaluation();
  void Checkpoint();

  const v1::JobSpec& spec_;
  const std::vector<std::string> columns_;
  Problems problems_;
};

// A command or a program brings its own model, data and steps, so nothing else of it is looked at.
Problems JobCheck::Run() {
  if (!IsJobName(spec_.name())) {
    Report(
        "name",
        "letters, digits, '.', '_' and '-', at most {}, not beginning with '.' or '-'; given '{}'",
        job_limits::kLongestJobName, spec_.name());
  }
  if (spec_.has_launch()) {
    ValidateLaunch(spec_, problems_);
    return std::move(problems_);
  }
  if (spec_.has_program()) {
    Program();
    return std::move(problems_);
  }
  if (!spec_.has_data()) {
    Report("data", "required: where the training examples are");
  } else {
    ValidateData("data", spec_.data(), problems_);
  }
  Length();
  Model();
  Embeddings();
  Loss();
  Metrics();
  Optimizer();
  Schedule();
  ValidateStrategy(spec_, problems_);
  Evaluation();
  Checkpoint();
  return std::move(problems_);
}

// In place of a model; nothing of a model's fields belongs to it.
void JobCheck::Program() {
  const v1::ProgramSpec& program = spec_.program();
  const v1::StrategySpec& strategy = spec_.strategy();
  if (spec_.has_model() || spec_.has_data() || spec_.has_loss() || spec_.has_optimizer() ||
      spec_.batch_size() != 0 || spec_.epochs() != 0 || spec_.steps() != 0 ||
      spec_.has_evaluation() || spec_.has_checkpoint()) {
    Report("program", "a program brings its own model, data and steps: remove these fields");
  }
  if (program.sha256().empty()) Report("program.sha256", "required: the executable's SHA-256");
  if (strategy.kind() != v1::STRATEGY_KIND_PARAMETER_SERVER) {
    Report("strategy.kind",
           "programs run under parameter_server; other strategies are not built "
           "yet for programs");
  }
  if (strategy.has_consistency() || strategy.gradients_per_step() != 0 ||
      strategy.speculative() != 0) {
    Report("strategy.consistency",
           "a program says it itself, in ParameterServerOptions: remove it");
  }
  if (strategy.placement() != v1::PLACEMENT_KIND_UNSPECIFIED) {
    Report("strategy.placement", "a program says it itself, in ParameterServerOptions: remove it");
  }
  (void)ValidateWorkers(strategy, job_limits::kMostWorkers, problems_);
  if (program.closures_per_worker() > job_limits::kMostClosuresPerWorker) {
    Report("program.closures_per_worker", "at most {}; given {}",
           job_limits::kMostClosuresPerWorker, program.closures_per_worker());
  }
  if (program.parameter_servers() > job_limits::kMostServers) {
    Report("program.parameter_servers", "at most {}; given {}", job_limits::kMostServers,
           program.parameter_servers());
  }
  if (program.memory_bytes() != 0 && program.memory_bytes() < job_limits::kLeastMemory) {
    Report("program.memory_bytes", "an executor needs {} MiB at least; given {} bytes",
           job_limits::kLeastMemory >> 20, program.memory_bytes());
  }
  if (program.restart() == v1::RESTART_POLICY_EXIT_CODE) {
    Report("program.restart", "exit_code is for launched commands: choose never or on_failure");
  }
  if (program.max_restarts() != 0 && program.restart() != v1::RESTART_POLICY_ON_FAILURE) {
    Report("program.max_restarts", "belongs to restart: on_failure");
  }
  std::size_t bytes = 0;
  for (const std::string& argument : program.arguments()) bytes += argument.size() + 1;
  if (bytes > job_limits::kMostArgumentBytes) {
    Report("program.arguments", "{} bytes; at most {}", bytes, job_limits::kMostArgumentBytes);
  }
}

void JobCheck::CheckColumn(const std::string& path, const std::string& name) {
  // A data section with problems of its own declares nothing that could be compared with.
  if (columns_.empty() || std::find(columns_.begin(), columns_.end(), name) != columns_.end()) {
    return;
  }
  Report(path, "the data has no column '{}'; it has {}{}", name, Joined(columns_),
         DidYouMean(name, columns_));
}

void JobCheck::CheckSource(const std::string& path, const std::string& source) {
  if (source.size() > job_limits::kMostSourceBytes) {
    Report(path, "{} bytes of source; at most {}", source.size(), job_limits::kMostSourceBytes);
  }
  if (source.find('\0') != std::string::npos) Report(path, "the source has a zero byte");
}

void JobCheck::CheckPath(const std::string& path, const std::string& file) {
  if (file.find('\0') != std::string::npos) Report(path, "the path has a zero byte");
}

void JobCheck::CheckInitializer(const std::string& path, const v1::Initializer& initializer) {
  if (initializer.kind() == v1::INITIALIZER_KIND_ARCHIVE) {
    Report(path + ".kind", "archive is not for jobs: an archive brings its values by itself");
  }
  if (!(std::fabs(initializer.scale()) <= kLargestFloat)) {
    Report(path + ".scale", "must be a finite float32; given {}", initializer.scale());
  } else if (initializer.scale() < 0 && initializer.kind() != v1::INITIALIZER_KIND_CONSTANT) {
    Report(path + ".scale", "must not be below 0; given {}", initializer.scale());
  }
  if (initializer.scale() != 0 && initializer.kind() == v1::INITIALIZER_KIND_UNSPECIFIED) {
    Report(path + ".scale", "needs a kind that it belongs to");
  }
}

void JobCheck::CheckShape(const std::string& path, const std::vector<std::int64_t>& shape) {
  if (shape.size() > job_limits::kMostDimensions) {
    return Report(path, "at most {} dimensions; given {}", job_limits::kMostDimensions,
                  shape.size());
  }
  std::int64_t bytes = sizeof(float);
  for (const std::int64_t size : shape) {
    if (size <= 0) return Report(path, "every dimension must be above 0; given {}", size);
    if (bytes > job_limits::kMostVariableBytes / size) {
      return Report(path, "[{}] takes more than {} GiB, the most a variable may have",
                    fmt::join(shape, ", "), job_limits::kMostVariableBytes >> 30);
    }
    bytes *= size;
  }
}

void JobCheck::Length() {
  if (spec_.batch_size() == 0) {
    Report("batch_size", "required, above 0: the number of examples in a step");
  } else if (spec_.batch_size() > job_limits::kMostBatch) {
    Report("batch_size", "at most {}; given {}", job_limits::kMostBatch, spec_.batch_size());
  }
  if ((spec_.epochs() == 0) == (spec_.steps() == 0)) {
    Report(spec_.epochs() == 0 ? "epochs" : "steps",
           "exactly one of epochs and steps, above 0; given {}",
           spec_.epochs() == 0 ? "none" : "both");
    if (spec_.epochs() == 0) Lacks({"epochs", "steps"});
  }
  if (spec_.steps() > job_limits::kMostSteps) {
    Report("steps", "at most {}; given {}", job_limits::kMostSteps, spec_.steps());
  }
  if (spec_.epochs() > job_limits::kMostEpochs) {
    Report("epochs", "at most {}; given {}", job_limits::kMostEpochs, spec_.epochs());
  }
}

// It has one source; what belongs to the other one would be passed over, so it is refused.
void JobCheck::Model() {
  const v1::ModelSpec& model = spec_.model();
  if (model.forward().empty() == model.archive().empty()) {
    Report("model",
           "exactly one of forward (TorchScript source) and archive (a .pt file); given {}",
           model.forward().empty() ? "none" : "both");
    if (model.forward().empty()) Lacks({"model.forward", "model.archive"});
  }
  CheckSource("model.forward", model.forward());
  CheckPath("model.archive", model.archive());
  if (!model.archive().empty() && !model.parameters().empty()) {
    Report("model.parameters", "an archive brings its own parameters; remove these");
  }
  if (model.archive().empty() && model.buffers() != v1::BUFFER_POLICY_UNSPECIFIED) {
    Report("model.buffers", "only an archive has buffers");
  }
  const std::set<std::string> reserved{"training", "forward"};
  for (const auto& [name, parameter] : model.parameters()) {
    const std::string path = "model.parameters." + name;
    if (!IsIdentifier(name) || reserved.contains(name)) {
      Report(path, "'{}' cannot be a parameter's name: letters, digits and '_', at most {}, not {}",
             name, job_limits::kLongestName, fmt::join(reserved, " or "));
    }
    CheckShape(path + ".shape", {parameter.shape().begin(), parameter.shape().end()});
    if (parameter.has_initializer())
      CheckInitializer(path + ".initializer", parameter.initializer());
  }
  if (!model.forward().empty() && model.parameters().empty() && spec_.embeddings().empty()) {
    Report("model.parameters", "nothing to train: no parameters and no embeddings");
  }
}

// One more than the largest id of an int64 column, when the reader fixes it.
std::optional<std::int64_t> JobCheck::LargestId(const std::string& feature) const {
  if (spec_.data().has_criteo() && feature == "cat") {
    const std::int64_t buckets = spec_.data().criteo().hash_buckets();
    return buckets == 0 ? job_limits::kDefaultCriteoBuckets : buckets;
  }
  const auto& csv = spec_.data().csv().columns();
  if (const auto column = csv.find(feature);
      column != csv.end() && column->second.hash_buckets() > 0) {
    return column->second.hash_buckets();
  }
  return std::nullopt;
}

// Forward receives them by name beside parameters and columns, so all share one space of names.
void JobCheck::Embeddings() {
  for (const auto& [name, embedding] : spec_.embeddings()) {
    const std::string path = "embeddings." + name;
    if (!IsIdentifier(name)) {
      Report(path, "'{}' cannot be an embedding's name: letters, digits and '_', at most {}", name,
             job_limits::kLongestName);
    }
    if (spec_.model().parameters().contains(name)) {
      Report(path, "a parameter has the same name; rename one of them");
    }
    if (std::find(columns_.begin(), columns_.end(), name) != columns_.end()) {
      Report(path, "a column of the data has the same name, so forward could mean either");
    }
    if (embedding.feature().empty()) {
      Report(path + ".feature", "required: the int64 column whose ids are looked up");
    } else {
      CheckColumn(path + ".feature", embedding.feature());
    }
    if (embedding.rows() <= 0) {
      Report(path + ".rows", "required, above 0; given {}", embedding.rows());
    } else if (const auto ids = LargestId(embedding.feature()); ids && *ids > embedding.rows()) {
      Report(path + ".rows", "{}, but ids of {} go up to {}: give the reader hash_buckets: {}",
             Counted(static_cast<std::uint64_t>(embedding.rows()), "row"), embedding.feature(),
             *ids - 1, embedding.rows());
    }
    if (embedding.dim() <= 0) {
      Report(path + ".dim", "required, above 0; given {}", embedding.dim());
    } else if (embedding.rows() > 0) {
      CheckShape(path + ".rows", {embedding.rows(), embedding.dim()});
    }
    if (embedding.has_initializer())
      CheckInitializer(path + ".initializer", embedding.initializer());
  }
}

void JobCheck::Loss() {
  const v1::LossSpec& loss = spec_.loss();
  const bool kind = loss.kind() != v1::LOSS_KIND_UNSPECIFIED;
  if (kind == !loss.function().empty()) {
    Report("loss", "exactly one of kind and function; given {}", kind ? "both" : "none");
    if (!kind) Lacks({"loss.kind", "loss.function"});
  }
  CheckSource("loss.function", loss.function());
  if (kind && loss.label().empty())
    Report("loss.label", "required: the column that holds the target");
  if (!loss.label().empty()) CheckColumn("loss.label", loss.label());
}

void JobCheck::Metrics() {
  // A message has room for millions of them, and each would be a problem.
  if (spec_.metrics_size() > kMostMetrics) {
    return Report("metrics", "at most {}, each once; given {}", kMostMetrics, spec_.metrics_size());
  }
  const v1::LossKind loss = spec_.loss().kind();
  std::set<int> seen;
  for (int i = 0; i < spec_.metrics_size(); ++i) {
    const v1::Metric metric = spec_.metrics(i);
    const std::string path = fmt::format("metrics.{}", i);
    if (!seen.insert(metric).second) Report(path, "listed twice");
    if (metric == v1::METRIC_LOSS) continue;
    if (spec_.loss().label().empty()) {
      Report(path, "needs loss.label: what would the output be compared with?");
      Lacks({"loss.label"});
    }
    if (metric == v1::METRIC_ACCURACY && loss == v1::LOSS_KIND_MSE) {
      Report(path, "accuracy needs classes; the loss is mse");
    }
    if (metric == v1::METRIC_AUC &&
        (loss == v1::LOSS_KIND_MSE || loss == v1::LOSS_KIND_SOFTMAX_CROSS_ENTROPY)) {
      Report(path, "auc needs one score for each example, as with loss bce_with_logits");
    }
  }
}

void JobCheck::Optimizer() {
  const v1::OptimizerSpec& optimizer = spec_.optimizer();
  if (optimizer.kind() == v1::OPTIMIZER_KIND_UNSPECIFIED) {
    Report("optimizer.kind", "required: one of sgd, momentum, adagrad, adam, adamw, ftrl");
  }
  const double rate = optimizer.learning_rate();
  if (!std::isfinite(rate) || rate <= 0) {
    Report("optimizer.learning_rate", "required, above 0 and finite; given {}", rate);
  } else if (ExceedsFloat(rate)) {
    Report("optimizer.learning_rate", "must be above 0 and finite as a float32; given {}", rate);
  }
  OptimizerOptions();
}

// Each option belongs to some kinds, and has a range there.
void JobCheck::OptimizerOptions() {
  const v1::OptimizerSpec& o = spec_.optimizer();
  const v1::OptimizerKind kind = o.kind();
  const bool adam = kind == v1::OPTIMIZER_KIND_ADAM || kind == v1::OPTIMIZER_KIND_ADAMW;
  const bool adagrad = kind == v1::OPTIMIZER_KIND_ADAGRAD;
  const bool ftrl = kind == v1::OPTIMIZER_KIND_FTRL;
  const bool momentum = kind == v1::OPTIMIZER_KIND_MOMENTUM;
  struct Option {
    const char* name;
    bool given;
    bool belongs;
    double value;
    double below;  // 0 <= value < below; any: what a float32 holds
    const char* owners;
  };
  const double any = HUGE_VAL;
  const Option options[] = {
      {"momentum", o.has_momentum(), momentum, o.momentum(), 1, "momentum"},
      {"nesterov", o.nesterov(), momentum, 0, any, "momentum"},
      {"weight_decay", o.has_weight_decay(), !ftrl, o.weight_decay(), any,
       "sgd, momentum, adagrad, adam, adamw"},
      {"beta1", o.has_beta1(), adam, o.beta1(), 1, "adam, adamw"},
      {"beta2", o.has_beta2(), adam, o.beta2(), 1, "adam, adamw"},
      {"epsilon", o.has_epsilon(), adam || adagrad, o.epsilon(), any, "adam, adamw, adagrad"},
      {"initial_accumulator", o.has_initial_accumulator(), adagrad || ftrl, o.initial_accumulator(),
       any, "adagrad, ftrl"},
      {"l1", o.l1() != 0, ftrl, o.l1(), any, "ftrl"},
      {"l2", o.l2() != 0, ftrl, o.l2(), any, "ftrl"},
      {"ftrl_beta", o.has_ftrl_beta(), ftrl, o.ftrl_beta(), any, "ftrl"},
  };
  for (const Option& option : options) {
    const std::string path = fmt::format("optimizer.{}", option.name);
    if (!option.given) continue;
    if (kind != v1::OPTIMIZER_KIND_UNSPECIFIED && !option.belongs) {
      Report(path, "is an option of {}, not of this optimizer", option.owners);
    }
    const bool fits = option.below == any ? option.value <= kLargestFloat  //
                                          : option.value < option.below;
    if (!(option.value >= 0) || !fits) {
      if (option.below == any) {
        Report(path, "must be 0 or more, and a finite float32; given {}", option.value);
      } else {
        Report(path, "must be at least 0 and below {}; given {}", option.below, option.value);
      }
    }
  }
}

// A field of another kind than the one that is given would be passed over, so it is refused.
void JobCheck::Schedule() {
  const v1::ScheduleSpec& schedule = spec_.optimizer().schedule();
  const std::string path = "optimizer.schedule";
  const bool step = schedule.kind() == v1::SCHEDULE_KIND_STEP;
  const bool cosine = schedule.kind() == v1::SCHEDULE_KIND_COSINE;
  if (step && schedule.step_size() == 0) {
    Report(path + ".step_size", "required with kind step, above 0");
  }
  if (!step && schedule.step_size() != 0) Report(path + ".step_size", "is for kind step only");
  if (!step && schedule.has_gamma()) Report(path + ".gamma", "is for kind step only");
  if (schedule.has_gamma() && (!std::isfinite(schedule.gamma()) || schedule.gamma() <= 0)) {
    Report(path + ".gamma", "must be above 0 and finite; given {}", schedule.gamma());
  } else if (schedule.has_gamma() && ExceedsFloat(schedule.gamma())) {
    Report(path + ".gamma", "must be above 0 and finite as a float32; given {}", schedule.gamma());
  }
  if (!cosine && schedule.total_steps() != 0)
    Report(path + ".total_steps", "is for kind cosine only");
  if (!cosine && schedule.final_factor() != 0) {
    Report(path + ".final_factor", "is for kind cosine only");
  }
  if (!(schedule.final_factor() >= 0 && schedule.final_factor() <= 1)) {
    Report(path + ".final_factor", "must be from 0 to 1; given {}", schedule.final_factor());
  }
  const std::uint64_t total = schedule.total_steps() != 0 ? schedule.total_steps() : spec_.steps();
  if (cosine && total != 0 && schedule.warmup_steps() >= total) {
    Report(path + ".warmup_steps", "{} of warm-up {} nothing of {}",
           Counted(schedule.warmup_steps(), "step"),
           Agreeing(schedule.warmup_steps(), "leaves", "leave"), Counted(total, "step"));
  }
}

void JobCheck::Evaluation() {
  if (!spec_.has_evaluation()) return;
  const v1::EvaluationSpec& evaluation = spec_.evaluation();
  if (evaluation.batch_size() > job_limits::kMostBatch) {
    Report("evaluation.batch_size", "at most {}; given {}", job_limits::kMostBatch,
           evaluation.batch_size());
  }
  if (evaluation.every_epochs() > job_limits::kMostEpochs) {
    Report("evaluation.every_epochs", "at most {}; given {}", job_limits::kMostEpochs,
           evaluation.every_epochs());
  }
  if (evaluation.evaluator() && evaluation.every_epochs() != 0) {
    Report("evaluation.every_epochs",
           "not with evaluator, which evaluates each checkpoint: checkpoint.every_steps and "
           "every_seconds say when these are saved");
  }
  if (!evaluation.has_data()) {
    return Report("evaluation.data", "required: where the held-out examples are");
  }
  ValidateData("evaluation.data", evaluation.data(), problems_);
  const std::vector<std::string> held_out = DeclaredColumns(evaluation.data());
  std::vector<std::string> missing;
  std::set_difference(columns_.begin(), columns_.end(), held_out.begin(), held_out.end(),
                      std::back_inserter(missing));
  if (!held_out.empty() && !missing.empty()) {
    Report("evaluation.data", "lacks column {} that the training data has", Joined(missing));
  }
}

void JobCheck::Checkpoint() {
  const v1::CheckpointSpec& checkpoint = spec_.checkpoint();
  CheckPath("checkpoint.directory", checkpoint.directory());
  if (checkpoint.keep() > kMostCheckpoints) {
    Report("checkpoint.keep", "at most {}; given {}", kMostCheckpoints, checkpoint.keep());
  }
  if (checkpoint.every_steps() > job_limits::kMostSteps) {
    Report("checkpoint.every_steps", "at most {}; given {}", job_limits::kMostSteps,
           checkpoint.every_steps());
  }
  if (checkpoint.every_seconds() > kLongestCheckpointSeconds) {
    Report("checkpoint.every_seconds", "at most {} (a week); given {}", kLongestCheckpointSeconds,
           checkpoint.every_seconds());
  }
  if (!checkpoint.durability().empty() && checkpoint.durability() != "checkpoint") {
    const bool planned =
        checkpoint.durability() == "replicated" || checkpoint.durability() == "wal";
    Report("checkpoint.durability", "'{}' is {}; use checkpoint", checkpoint.durability(),
           planned ? "not built yet" : "not known");
  }
}

}  // namespace

bool IsIdentifier(std::string_view name) {
  return !name.empty() && name.size() <= job_limits::kLongestName &&
         std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return (std::isalnum(c) != 0 && c < 128) || c == '_'; });
}

Problems ValidateJob(const v1::JobSpec& spec) {
  Problems unknown;
  FindUnknownValues(spec, "", unknown);
  return unknown.empty() ? JobCheck(spec).Run() : unknown;
}

}  // namespace muster::config
