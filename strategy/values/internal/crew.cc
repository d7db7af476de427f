#include "strategy/values/internal/crew.h"

namespace muster::internal {
namespace {

thread_local const collectives::Crew* t_crew = nullptr;

}  // namespace

CrewScope::CrewScope(const collectives::Crew& crew) : outer_(t_crew) { t_crew = &crew; }
CrewScope::~CrewScope() { t_crew = outer_; }

const collectives::Crew& current_crew() {
  static const collectives::Crew alone;
  return t_crew == nullptr ? alone : *t_crew;
}

}  // namespace muster::internal
