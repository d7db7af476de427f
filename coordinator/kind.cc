#include "coordinator/kind.h"

#include "coordinator/group_view.h"
#include "coordinator/home_view.h"
#include "coordinator/plan.h"
#include "coordinator/ps_view.h"

namespace muster::coordinator {

std::unique_ptr<Kind> Kind::Make(const World& world, const Story& story) {
  if (NeedsPs(story.spec())) return std::make_unique<PsKind>(world, story);
  if (story.spec().strategy().kind() == v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED) {
    return std::make_unique<GroupKind>(world, story);
  }
  return std::make_unique<HomeKind>(world, story);
}

}  // namespace muster::coordinator
