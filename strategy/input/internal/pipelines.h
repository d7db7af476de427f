// What the sources of strategy/input share about pipelines.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/data/pipeline/node.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/torch.h"
#include "strategy/input/graph.h"

namespace muster::internal {

std::optional<std::vector<TensorSpec>> tensor_specs(const data::ElementSpec& spec);
// For each thread of a pipeline: its functions do not compete for cores with the replicas.
void on_pipeline_thread();

// Calls a function of the program's for a pipeline, which knows no exceptions.
template <class R>
Result<R> call_user(const std::function<R()>& call) {
  const torch::NoGradGuard no_grad;
  try {
    return call();
  } catch (const Error& error) {
    return ToStatus(error);
  } catch (const c10::Error& error) {
    return Unknown("{}", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return data::FromException(error, "a function of the dataset");
  } catch (...) {
    return Unknown("a function of the dataset: it threw what is no std::exception");
  }
}

}  // namespace muster::internal
