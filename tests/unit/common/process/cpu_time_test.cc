#include "common/process/cpu_time.h"

#include <future>
#include <memory>
#include <string>

#include <unistd.h>

#include "common/process/child.h"
#include "tests/support/catch.h"

namespace muster::process {
namespace {

using std::chrono::milliseconds;

// Half a million steps of a shell take some hundred milliseconds; what it does beside, some.
const std::string kCompute = "i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done; ";
constexpr milliseconds kBeside{50};

// A shell that has said "done" and then does nothing.
std::unique_ptr<Child> Started(const std::string& script) {
  auto done = std::make_shared<std::promise<void>>();
  auto child =
      Child::Start({.argv = {"sh", "-c", script}, .on_line = [done](auto, const auto& line) {
                      if (line == "done") done->set_value();
                    }});
  REQUIRE(child.ok());
  REQUIRE(done->get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  return *std::move(child);
}

TEST_CASE("the time of a process is that of all that it has started, too", "[process][unit]") {
  SECTION("that computes while it waits") {
    const auto child = Started("(" + kCompute + "echo done; sleep 1000) & wait");
    CHECK(CpuTime(child->pid()).value_or(milliseconds(0)) > kBeside);
  }
  SECTION("that has ended") {
    const auto child = Started("(" + kCompute + ":); echo done; sleep 1000");
    CHECK(CpuTime(child->pid()).value_or(milliseconds(0)) > kBeside);
  }
  SECTION("which may be nothing") {
    const auto child = Started("echo done; sleep 1000");
    CHECK(CpuTime(child->pid()).value_or(kBeside) < kBeside);
  }
}

TEST_CASE("there is no time of a process that is not there", "[process][unit]") {
  // Larger than any that Linux gives.
  CHECK(CpuTime(1 << 23).status().code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::process
