#include "strategy/resolver/internal/task_name.h"

#include <memory>
#include <optional>
#include <string>

#include "strategy/base/error.h"
#include "tests/support/catch.h"

namespace muster {
namespace {

struct OfAProgram final : ClusterResolver {
  ClusterSpec cluster_spec() override { return {}; }
  std::string master(const ClusterTask&) override { return ""; }
  std::optional<std::string> task_type() override {
    if (fails) raise(ErrorCode::kUnavailable, "the scheduler does not answer");
    if (throws_a_number) throw 7;
    return type;
  }
  std::optional<int> task_id() override { return id; }

  std::optional<std::string> type = "worker";
  std::optional<int> id = 1;
  bool fails = false;
  bool throws_a_number = false;
};

TEST_CASE("a process has its task's name, or the other one where nobody knows that",
          "[strategy][unit]") {
  const auto resolver = std::make_shared<OfAProgram>();
  CHECK(internal::task_name(resolver, "process 2") == "worker:1");

  CHECK(internal::task_name(nullptr, "process 2") == "process 2");
  resolver->fails = true;
  CHECK(internal::task_name(resolver, "process 2") == "process 2");
  resolver->fails = false;
  resolver->throws_a_number = true;
  CHECK(internal::task_name(resolver, "process 2") == "process 2");
  resolver->throws_a_number = false;
  resolver->id = std::nullopt;
  CHECK(internal::task_name(resolver, "process 2") == "process 2");
  resolver->type = std::nullopt;
  CHECK(internal::task_name(resolver, "process 2") == "process 2");
}

}  // namespace
}  // namespace muster
