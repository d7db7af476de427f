// What a CachingScope has read. Threading: the scope's thread.
#pragma once

#include <map>

#include "ps/client/program_variable.h"
#include "strategy/base/torch.h"

namespace muster::internal {

class PsConnection;

class CachedReads {
 public:
  // The thread's; null: it is in no scope.
  static CachedReads* Current();
  static void SetCurrent(CachedReads* reads);

  // The variable's value when it was read here first.
  torch::Tensor Read(PsConnection& connection, const ps::VariableHandle& variable);

 private:
  std::map<ps::VariableHandle, torch::Tensor> values_;
};

}  // namespace muster::internal
