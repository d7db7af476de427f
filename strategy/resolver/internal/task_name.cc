#include "strategy/resolver/internal/task_name.h"

namespace muster::internal {

std::string task_name(const std::shared_ptr<ClusterResolver>& resolver, std::string otherwise) {
  if (resolver == nullptr) return otherwise;
  try {
    const auto type = resolver->task_type();
    const auto id = resolver->task_id();
    if (type && id) return *type + ":" + std::to_string(*id);
  } catch (...) {  // a resolver of the program's own
  }
  return otherwise;
}

}  // namespace muster::internal
