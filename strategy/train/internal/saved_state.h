// What a checkpoint holds besides variables: tensors that come into being while a program trains.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/variables/variable.h"

namespace muster::collectives {
class Group;
}

namespace muster::internal {

// Threading: outside run(), one thread at a time.
class SavedState {
 public:
  virtual ~SavedState() = default;

  // The processes that have it together; null: this one alone.
  virtual collectives::Group* collectives() const { return nullptr; }
  // All that there may be.
  virtual std::vector<std::string> Names() const = 0;
  // What there is: copies.
  virtual std::map<std::string, torch::Tensor> Values() const = 0;
  // The same into `kept`, which an earlier call has filled and nobody else has: its memory is used
  // again where that is possible.
  virtual void ValuesInto(std::map<std::string, torch::Tensor>& kept) const { kept = Values(); }
  // INVALID_ARGUMENT: `values` cannot be restored.
  virtual void Check(const std::map<std::string, torch::Tensor>& values) const = 0;
  // `values` have been checked. What they lack is as in the beginning.
  virtual void Restore(const std::map<std::string, torch::Tensor>& values) const = 0;
};

// What a checkpoint tracks, by the names in files.
struct TrackedValues {
  std::map<std::string, Variable> variables;
  // Their names begin with the key.
  std::vector<std::pair<std::string, std::shared_ptr<const SavedState>>> states;
};

}  // namespace muster::internal
