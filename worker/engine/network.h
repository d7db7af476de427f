// "The model" as the engine sees it: named parameters and a forward() over named arguments. One
// interface, so that other kinds of archive can stand behind it. Internal: includes libtorch.
//
// Threading: the thread that made it. Calls throw libtorch's exceptions; Model catches them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker/engine/torch.h"

namespace muster::v1 {
class ModelSpec;
}

namespace muster::engine {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// One argument of a function of the user's.
struct Argument {
  std::string name;
  bool tensor = true;
  // Present when the caller may leave it out.
  std::optional<at::IValue> default_value;
  // The function writes into it in place: it must be given a copy.
  bool written = false;
};

class Network {
 public:
  virtual ~Network() = default;

  virtual const std::vector<Argument>& arguments() const = 0;
  // Leaves that train, sorted by name, each tensor once. set_data() moves them to other memory.
  virtual const std::vector<NamedTensor>& parameters() const = 0;
  // Those that hold a tensor.
  virtual std::vector<NamedTensor> buffers() const = 0;
  // Parameters that do not train, sorted by name, each tensor once.
  virtual std::vector<NamedTensor> frozen() const = 0;
  // Attributes other than buffers that forward() assigns, and parameters that it never reads.
  virtual const std::vector<std::string>& assigned() const = 0;
  virtual const std::vector<std::string>& unused() const = 0;
  virtual void SetTraining(bool training) = 0;
  virtual at::IValue Forward(std::vector<at::IValue> arguments) = 0;
};

// A function def loss(output, ...) of the user's.
class ScriptFunction {
 public:
  virtual ~ScriptFunction() = default;
  virtual const std::vector<Argument>& arguments() const = 0;
  virtual at::IValue Call(std::vector<at::IValue> arguments) = 0;
};

// How errors call the texts that a job file holds.
inline constexpr std::string_view kForward = "forward";
inline constexpr std::string_view kLossFunction = "loss function";

// Compiles model.forward over the declared parameters (their values are zero).
//   kInvalidArgument: does not compile (line and column), a name that self cannot have.
Result<std::unique_ptr<Network>> NetworkFromSource(const v1::ModelSpec& spec);
// Loads a .pt archive of torch.jit.save; `name` is what messages call it.
//   kInvalidArgument: no such archive, without forward, with an operator that this libtorch lacks,
//   or with a parameter that is not float32.   kNotFound: no such file.
Result<std::unique_ptr<Network>> NetworkFromArchive(const std::string& path,
                                                    const std::string& name);
// Compiles the last function of `source`, which must be called loss.
Result<std::unique_ptr<ScriptFunction>> CompileLoss(const std::string& source);

}  // namespace muster::engine
