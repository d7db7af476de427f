// TorchScript behind Network: source of a job file compiled here, and .pt archives.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include <fmt/ranges.h>

#include "common/base/suggest.h"
#include "common/base/words.h"
#include "muster/v1/job_spec.pb.h"
#include "worker/engine/network.h"
#include "worker/engine/resolver.h"
#include "worker/engine/script_error.h"

namespace muster::engine {
namespace {

using torch::jit::Graph;
using torch::jit::Module;
using torch::jit::Node;
using torch::jit::Value;

// The function's own graph with every call of another one written out.
std::shared_ptr<Graph> InlinedGraph(torch::jit::Function& function) {
  const auto& graph = torch::jit::toGraphFunction(function).graph();
  std::shared_ptr<Graph> copy = graph->copy();
  torch::jit::Inline(*copy);
  return copy;
}

template <class Visit>
void EachNode(const torch::jit::Block& block, const Visit& visit) {
  for (const Node* node : block.nodes()) {
    visit(*node);
    for (const torch::jit::Block* inner : node->blocks()) EachNode(*inner, visit);
  }
}

// "layer.weight" for the attribute `name` of the part of `self` that `value` stands for. Empty: it
// is no part of it, but an object that the function has made.
std::string PathOf(const Value* self, const Value* value, const std::string& name) {
  std::string path = name;
  while (value->node()->kind() == c10::prim::GetAttr) {
    path.insert(0, value->node()->s(c10::attr::name) + ".");
    value = value->node()->input(0);
  }
  return value == self ? path : std::string();
}

// `first`: how many leading arguments are bound otherwise (self).
std::vector<Argument> ArgumentsOf(torch::jit::Function& function,
                                  const std::shared_ptr<Graph>& graph, std::size_t first) {
  std::vector<Argument> arguments;
  const torch::jit::AliasDb aliases(graph);
  const auto& declared = function.getSchema().arguments();
  for (std::size_t i = first; i < declared.size(); ++i) {
    Argument argument;
    argument.name = declared[i].name();
    argument.tensor = declared[i].type()->isSubtypeOf(*c10::TensorType::get()) ||
                      declared[i].type()->kind() == c10::TypeKind::OptionalType;
    if (declared[i].default_value()) argument.default_value = *declared[i].default_value();
    argument.written =
        argument.tensor && i < graph->inputs().size() && aliases.hasWriters(graph->inputs()[i]);
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

class TorchScriptNetwork final : public Network {
 public:
  explicit TorchScriptNetwork(Module module)
      : module_(std::move(module)), forward_(module_.get_method("forward")) {
    CollectParameters();
    const std::shared_ptr<Graph> graph = InlinedGraph(forward_.function());
    arguments_ = ArgumentsOf(forward_.function(), graph, 1);
    FindAttributeUse(*graph);
  }

  const std::vector<Argument>& arguments() const override { return arguments_; }
  const std::vector<NamedTensor>& parameters() const override { return parameters_; }
  const std::vector<std::string>& assigned() const override { return assigned_; }
  const std::vector<std::string>& unused() const override { return unused_; }

  std::vector<NamedTensor> buffers() const override {
    std::vector<NamedTensor> buffers;
    for (const auto& buffer : module_.named_buffers(/*recurse=*/true)) {
      if (buffer.value.defined()) buffers.push_back({buffer.name, buffer.value});
    }
    return buffers;
  }

  std::vector<NamedTensor> frozen() const override {
    std::map<std::string, at::Tensor> by_name;
    for (const auto& parameter : module_.named_parameters(/*recurse=*/true)) {
      if (!Trains(parameter.value)) by_name.emplace(parameter.name, parameter.value);
    }
    return EachOnce(by_name);
  }

  void SetTraining(bool training) override {
    if (training_ == training) return;
    module_.train(training);
    training_ = training;
  }

  at::IValue Forward(std::vector<at::IValue> arguments) override {
    // Plain interpretation: as fast as eager libtorch, and no step of some unlucky shape waits for
    // the optimiser. The switch is one of this thread.
    torch::jit::setGraphExecutorOptimize(false);
    return forward_(std::move(arguments));
  }

 private:
  void CollectParameters() {
    std::map<std::string, at::Tensor> by_name;
    for (const auto& parameter : module_.named_parameters(/*recurse=*/true)) {
      if (Trains(parameter.value)) by_name.emplace(parameter.name, parameter.value);
    }
    parameters_ = EachOnce(by_name);
  }

  // One without elements has nothing to train.
  static bool Trains(const at::Tensor& parameter) {
    return parameter.requires_grad() && parameter.numel() > 0;
  }

  // Tied parameters are one, under their first name.
  static std::vector<NamedTensor> EachOnce(const std::map<std::string, at::Tensor>& by_name) {
    std::vector<NamedTensor> once;
    std::set<const void*> seen;
    for (const auto& [name, tensor] : by_name) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back({name, tensor});
    }
    return once;
  }

  void FindAttributeUse(const Graph& graph) {
    const Value* const self = graph.inputs()[0];
    std::set<std::string> read, assigned;
    EachNode(*graph.block(), [&](const Node& node) {
      if (node.kind() == c10::prim::GetAttr) {
        read.insert(PathOf(self, node.input(0), node.s(c10::attr::name)));
      } else if (node.kind() == c10::prim::SetAttr) {
        assigned.insert(PathOf(self, node.input(0), node.s(c10::attr::name)));
      }
    });
    assigned.erase("");
    for (const NamedTensor& buffer : buffers()) assigned.erase(buffer.name);
    assigned_.assign(assigned.begin(), assigned.end());
    for (const NamedTensor& parameter : parameters_) {
      if (!read.contains(parameter.name)) unused_.push_back(parameter.name);
    }
  }

  Module module_;
  torch::jit::Method forward_;
  std::vector<Argument> arguments_;
  std::vector<NamedTensor> parameters_;
  std::vector<std::string> assigned_;
  std::vector<std::string> unused_;
  std::optional<bool> training_;
};

class CompiledFunction final : public ScriptFunction {
 public:
  CompiledFunction(std::shared_ptr<torch::jit::CompilationUnit> unit,
                   torch::jit::Function& function)
      : unit_(std::move(unit)), function_(function) {
    arguments_ = ArgumentsOf(function_, InlinedGraph(function_), 0);
  }
  const std::vector<Argument>& arguments() const override { return arguments_; }
  at::IValue Call(std::vector<at::IValue> arguments) override {
    torch::jit::setGraphExecutorOptimize(false);
    return function_(std::move(arguments));
  }

 private:
  std::shared_ptr<torch::jit::CompilationUnit> unit_;
  torch::jit::Function& function_;
  std::vector<Argument> arguments_;
};

// What the parser says of a text of functions; empty when it parses and compiles.
std::string Refusal(const std::string& source) {
  try {
    torch::jit::CompilationUnit().define({}, source, MakeResolver(), nullptr);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

Status CheckName(const std::string& name) {
  static const std::regex kIdentifier("[A-Za-z_][A-Za-z0-9_]*");
  if (!std::regex_match(name, kIdentifier) || name == "training" || name == "forward") {
    return InvalidArgument(
        "parameter \"{}\": forward reads it as self.{}, so its name must be letters, digits and "
        "'_', and not \"training\" or \"forward\"",
        name, name);
  }
  return Ok();
}

// The operator that the archive's code calls and this libtorch has not; empty: another error.
std::string MissingOperator(const std::string& what) {
  static const std::regex kUnknown(R"(Unknown builtin op: ([A-Za-z0-9_]+::[A-Za-z0-9_.]+?)\.?\n)");
  std::smatch match;
  return std::regex_search(what, match, kUnknown) ? match[1].str() : "";
}

// TorchScript's "object has no attribute" in the words of a job file.
Status WithoutSuchParameter(const Status& status, const v1::ModelSpec& spec) {
  static const std::regex kNoAttribute(
      R"('Model' object has no attribute or method '(\w+)'[^\n]*)");
  const std::string text = Message(status);
  std::smatch match;
  if (!std::regex_search(text, match, kNoAttribute)) return status;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : spec.parameters()) names.push_back(name);
  std::ranges::sort(names);
  return MakeStatus(status.code(), fmt::format("{}self.{} is no parameter{}; declared are: {}{}",
                                               match.prefix().str(), match[1].str(),
                                               DidYouMean(match[1].str(), names), Joined(names),
                                               match.suffix().str()));
}

constexpr std::string_view kRemedy =
    "use a newer libtorch: configure Muster with -DMUSTER_TORCH=<folder of a newer torch>";

Status LoadFailed(const std::string& name, const std::string& what) {
  if (const std::string op = MissingOperator(what); !op.empty()) {
    return InvalidArgument("archive {}: uses operator {}, which libtorch {} does not have; {}",
                           name, op, TORCH_VERSION, kRemedy);
  }
  const ScriptError error = ParseScriptError(what, "");
  if (what.find("maximum supported version") != std::string::npos) {
    return InvalidArgument("archive {}: {} (libtorch {}); {}", name, error.message, TORCH_VERSION,
                           kRemedy);
  }
  return InvalidArgument(
      "archive {}: libtorch {} cannot read it as TorchScript (a .pt of torch.jit.save): {}{}", name,
      TORCH_VERSION, error.message.substr(0, 500),
      error.line != 0 ? fmt::format("; if it was saved by a later torch, {}", kRemedy) : "");
}

}  // namespace

Result<std::unique_ptr<Network>> NetworkFromSource(const v1::ModelSpec& spec) {
  for (const auto& [name, parameter] : spec.parameters()) {
    MUSTER_TRY(CheckName(name));
    for (const std::int64_t size : parameter.shape()) {
      if (size <= 0) {
        return InvalidArgument("parameter \"{}\": a dimension of {}; all must be above 0", name,
                               size);
      }
    }
  }
  try {
    Module module("Model");
    module.register_attribute("training", c10::BoolType::get(), true);
    for (const auto& [name, parameter] : spec.parameters()) {
      const std::vector<std::int64_t> shape(parameter.shape().begin(), parameter.shape().end());
      // One zero seen at every index: the real memory is bound later.
      at::Tensor value = at::zeros({}, at::kFloat).expand(shape).detach();
      value.requires_grad_(true);
      module.register_parameter(name, value, false);
    }
    module.define(spec.forward(), MakeResolver());
    if (!module.find_method("forward")) {
      return InvalidArgument("forward: the source defines no function called forward");
    }
    return std::make_unique<TorchScriptNetwork>(std::move(module));
  } catch (...) {
    const Status status = CurrentException(kForward, spec.forward());
    return WithoutSuchParameter(PlacedSyntaxError(status, kForward, spec.forward(), Refusal), spec);
  }
}

Result<std::unique_ptr<Network>> NetworkFromArchive(const std::string& path,
                                                    const std::string& name) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    return NotFound("archive {}: no such file", path);
  }
  try {
    Module module = torch::jit::load(path, at::Device(at::kCPU));
    if (!module.find_method("forward")) {
      return InvalidArgument("archive {}: its module has no forward", name);
    }
    auto network = std::make_unique<TorchScriptNetwork>(std::move(module));
    for (const NamedTensor& parameter : network->parameters()) {
      if (parameter.tensor.scalar_type() != at::kFloat) {
        return InvalidArgument(
            "parameter \"{}\" of the archive {} is {}; Muster trains float32: save it after "
            "model.float()",
            parameter.name, name, c10::toString(parameter.tensor.scalar_type()));
      }
    }
    return network;
  } catch (const c10::Error& error) {
    return LoadFailed(name, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return LoadFailed(name, error.what());
  }
}

Result<std::unique_ptr<ScriptFunction>> CompileLoss(const std::string& source) {
  try {
    auto unit = std::make_shared<torch::jit::CompilationUnit>();
    unit->define({}, source, MakeResolver(), nullptr);
    torch::jit::Function* function = unit->find_function(c10::QualifiedName("loss"));
    if (function == nullptr) {
      return InvalidArgument("loss function: the source defines no function called loss");
    }
    if (function->getSchema().arguments().empty()) {
      return InvalidArgument(
          "loss function: loss takes no argument; its first is the output of forward");
    }
    return std::make_unique<CompiledFunction>(std::move(unit), *function);
  } catch (...) {
    return PlacedSyntaxError(CurrentException(kLossFunction, source), kLossFunction, source,
                             Refusal);
  }
}

}  // namespace muster::engine
