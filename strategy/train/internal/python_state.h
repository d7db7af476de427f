// What Python's torch.save(module.state_dict(), path) writes: a zip archive whose pickle names
// tensors (python_pickle.h). It is read without Python, and nothing that a file says is run.
//
// Threading: any thread.
#pragma once

#include <map>
#include <string>

#include "strategy/base/torch.h"

namespace muster::internal {

// Whether torch.save() of Python wrote this file, and not torch::save() or torch.jit.save().
bool IsPythonState(const std::string& path);

// Its tensors by name, in host memory. What is no tensor is left out.
//   INVALID_ARGUMENT: damaged, or it holds Python objects (a whole module) in place of a
//   dictionary; the text says what to save instead.
std::map<std::string, torch::Tensor> ReadPythonState(const std::string& path);

}  // namespace muster::internal
