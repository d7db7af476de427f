// How the first value of a variable on servers comes there: in parts, one after another, or whole.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <unistd.h>

#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/parameter_server/sharded_variable.h"
#include "strategy/train/internal/module_state.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace muster {
namespace {

using testing::Servers;
using testing::throws;

// Makes rows of numbers that say where they are, and counts them while anybody has them.
struct CountedParts {
  static constexpr std::int64_t kColumns = 2;
  InitialValue of(std::int64_t rows) {
    return InitialValue::in_parts(
        {rows, kColumns}, torch::kFloat, [this](const VariablePart& part) {
          const std::size_t count = static_cast<std::size_t>(part.shape[0] * kColumns);
          auto* const numbers = new std::vector<float>(count);
          for (std::size_t i = 0; i < count; ++i) {
            (*numbers)[i] =
                static_cast<float>(part.offset[0] * kColumns + static_cast<std::int64_t>(i));
          }
          live += count * sizeof(float);
          most = std::max(most, live);
          ++calls;
          return torch::from_blob(numbers->data(), part.shape, [this, numbers](void*) {
            live -= numbers->size() * sizeof(float);
            delete numbers;
          });
        });
  }

  std::size_t live = 0;
  std::size_t most = 0;
  int calls = 0;
};

// What is written to standard error while `body` runs.
template <class Body>
std::string stderr_of(const Body& body) {
  const testing::TempFolder folder;
  const std::string path = folder / "stderr";
  (void)std::fflush(stderr);
  const int before = ::dup(2);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  ::dup2(::fileno(file), 2);
  body();
  (void)std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before);
  (void)std::fclose(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// As it is in an executor: variables are made elsewhere.
class MadeElsewhere final : public Strategy {
 public:
  MadeElsewhere() : Strategy({device::Place{}}, {device::Place{}}) {}
  std::string_view name() const override { return "MadeElsewhere"; }
  internal::ComponentMaker* component_maker() const override { return &maker_; }

 private:
  struct Maker final : internal::ComponentMaker {
    std::unique_ptr<internal::Component> Make(std::string name, device::Place place,
                                              const VariableSpec&) override {
      return std::make_unique<internal::RemoteComponent>(std::move(name), place, nullptr,
                                                         fixed_shards_partitioner(2),
                                                         std::vector<std::uint32_t>());
    }
    std::unique_ptr<internal::ModuleHost> HostModule(internal::ModuleState&) override {
      return nullptr;
    }
  };
  mutable Maker maker_;
};

TEST_CASE("of an initial value in parts at most one is in memory", "[strategy][unit][SHV-05]") {
  const bool at_once = GENERATE(true, false);
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(4));
  const auto scope = strategy.scope();
  CountedParts parts;

  const Variable v = Variable::create("v", parts.of(10), {.initialize = at_once});
  if (!at_once) v.initialize();

  CHECK(parts.calls == 4);
  CHECK(parts.most == 3 * CountedParts::kColumns * sizeof(float));
  CHECK(parts.live == 0);
  CHECK(ShardedVariable(v).size() == 4);
  CHECK(v.value().equal(torch::arange(20.0).reshape({10, 2})));
}

TEST_CASE("parts are those of the shards that a variable of another type has",
          "[strategy][unit][SHV-05]") {
  const Servers servers;
  // 40 bytes as they are made, 80 as they are kept.
  ParameterServerStrategy strategy(max_size_partitioner(40));
  const auto scope = strategy.scope();
  CountedParts parts;

  const Variable v = Variable::create("v", parts.of(5), {.dtype = torch::kDouble});

  CHECK(ShardedVariable(v).size() == parts.calls);
  CHECK(parts.calls > 1);
  CHECK(v.value().equal(torch::arange(10.0, torch::kDouble).reshape({5, 2})));
}

TEST_CASE("a function that throws at a later part leaves nothing on the servers",
          "[strategy][unit][SHV-05]") {
  Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const InitialValue fails =
      InitialValue::in_parts({6}, torch::kFloat, [](const VariablePart& part) {
        if (part.offset[0] == 4) throw std::out_of_range("no row 4");
        return torch::ones(part.shape);
      });

  CHECK_THROWS_AS((void)Variable::create("v", fails), std::out_of_range);

  CHECK(servers.connection->Find("v") == nullptr);
  for (const std::size_t server : {0U, 1U}) {
    CHECK(servers.cluster.server(server).programs()[0].bytes == 0);
  }
  CHECK(Variable::create("v", torch::zeros({6})).value().equal(torch::zeros({6})));
  const InitialValue sparse = InitialValue::in_parts(
      {4, 4}, torch::kFloat,
      [](const VariablePart& part) { return torch::ones(part.shape).to_sparse(); });
  CHECK(throws(ErrorCode::kInvalidArgument, "the initial value of variable s is sparse",
               [&] { (void)Variable::create("s", sparse); }));
}

TEST_CASE("an executor knows what a variable in parts looks like without making one",
          "[strategy][unit][SHV-05]") {
  const Servers servers;
  CountedParts parts;
  MadeElsewhere strategy;
  const auto scope = strategy.scope();

  const Variable v = Variable::create("v", parts.of(10));

  CHECK(parts.calls == 0);
  CHECK(v.sizes() == std::vector<std::int64_t>{10, CountedParts::kColumns});
  CHECK(v.dtype() == torch::kFloat);
}

TEST_CASE("a large whole value that is cut is warned of and one in parts is not",
          "[strategy][unit][SHV-06]") {
  const Servers servers;
  const auto component = [&](const char* name) {
    return std::make_unique<internal::RemoteComponent>(
        name, device::Place{}, servers.connection, fixed_shards_partitioner(2),
        std::vector<std::uint32_t>(), Writes::kTogether, Placement::kRoundRobin,
        /*warned_above=*/19);
  };
  const auto small = component("small");
  const auto large = component("large");
  const auto in_parts = component("in_parts");
  CountedParts parts;

  CHECK(stderr_of([&] { small->Assign(torch::zeros({19}), torch::kFloat); }).empty());
  CHECK(stderr_of([&] { large->Assign(torch::zeros({20}), torch::kFloat); }) ==
        "muster: the initial value of variable large has 20 elements: this process has made all of "
        "them, before they are cut into 2 shards\n");
  CHECK(stderr_of([&] { CHECK(in_parts->TakeParts(parts.of(10), torch::kFloat)); }).empty());
  CHECK(parts.calls == 2);
  CHECK(in_parts->Snapshot().equal(torch::arange(20.0).reshape({10, 2})));
}

TEST_CASE("a variable on servers without an initial value is refused however it would be cut",
          "[strategy][unit][spec][PRT-10]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  CHECK(throws(ErrorCode::kInvalidArgument, "the initial value of variable v is undefined",
               [] { (void)Variable::create("v", torch::Tensor()); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "the initial value of variable v is undefined",
               [] { (void)Variable::create("v", [] { return torch::Tensor(); }); }));
  // The name is free.
  CHECK(Variable::create("v", torch::ones({4})).value().equal(torch::ones({4})));
}

}  // namespace
}  // namespace muster
