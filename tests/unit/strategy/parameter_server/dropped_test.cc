// What is known of variables that were dropped until their servers have freed them.
#include <memory>
#include <string>
#include <utility>

#include "strategy/parameter_server/internal/dropped_variables.h"
#include "tests/support/catch.h"

namespace muster::internal {
namespace {

ps::VariableHandle Named(const std::string& name) {
  ps::VariableInfo variable;
  variable.name = name;
  return std::make_shared<const ps::VariableInfo>(std::move(variable));
}
bool Every(const ps::VariableInfo&) { return true; }

// How many are there, none of which a server frees now.
int CountOf(DroppedVariables& dropped) {
  int count = 0;
  dropped.Delete(Every, [&](const ps::VariableHandle&) {
    ++count;
    return false;
  });
  return count;
}

TEST_CASE("who wants the name of a dropped variable finds it while another one frees it",
          "[strategy][unit]") {
  DroppedVariables dropped;
  dropped.Add(Named("w"));
  dropped.Add(Named("other"));

  int found = 0;
  dropped.Delete([](const ps::VariableInfo& one) { return one.name == "w"; },
                 [&](const ps::VariableHandle&) {
                   found = CountOf(dropped);
                   return true;
                 });

  CHECK(found == 2);
  CHECK(CountOf(dropped) == 1);
}

TEST_CASE("a dropped variable stays known until its servers have answered", "[strategy][unit]") {
  DroppedVariables dropped;
  dropped.Add(Named("w"));

  CHECK(CountOf(dropped) == 1);
  CHECK(CountOf(dropped) == 1);
  dropped.Delete(Every, [](const ps::VariableHandle&) { return true; });
  CHECK(CountOf(dropped) == 0);
}

}  // namespace
}  // namespace muster::internal
