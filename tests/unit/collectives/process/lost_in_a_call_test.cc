// A member that is lost while others wait for it in a call: what they are told.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "common/process/wait_page.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

// In a call, no longer in the forming of the group.
bool ShowsACall(const process::WaitPage& page) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < until) {
    const auto wait = page.Get();
    if (wait.has_value() && wait->operation > 0) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST_CASE("who is lost while others wait for it is told with their call and for how long they have",
          "[collectives][process][faults]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  const int signal = GENERATE(as<int>{}, SIGKILL, SIGSTOP);
  CAPTURE(static_cast<int>(by), signal);
  Address address(3);
  address.spec.transport = by;
  std::vector<std::unique_ptr<process::WaitPage>> pages;
  std::vector<std::unique_ptr<Process>> members;
  for (int r = 0; r < 3; ++r) {
    auto page = process::WaitPage::Create();
    REQUIRE(page.ok());
    pages.push_back(*std::move(page));
    GroupSpec spec = address.Of(r);
    spec.wait_page = pages.back()->path();
    members.push_back(std::make_unique<Process>([&, r, spec]() -> std::string {
      auto group = FormGroup(spec, address.listeners[static_cast<std::size_t>(r)]);
      if (!group.ok()) return ToString(group.status());
      if (r == 1) {
        while (true) (void)::pause();
      }
      std::vector<float> values(3, 1.0f);
      const ReduceBuffer buffer{DType::kFloat32, {3}, values.data(), values.data()};
      return ToString((*group)->AllReduce(Reduction::kSum, {&buffer, 1}, Millis(60'000)));
    }));
  }
  for (const std::size_t waits : {0U, 2U}) REQUIRE(ShowsACall(*pages[waits]));

  members[1]->Signal(signal);

  for (const std::size_t waits : {0U, 2U}) {
    const std::string told = members[waits]->Told();
    const std::string before = "UNAVAILABLE: operation 1, all_reduce SUM of float32[3], after ";
    CAPTURE(waits, told);
    REQUIRE(told.find(before) == 0);
    // A call is shown when it has lasted for a second.
    CHECK(std::stoi(told.substr(before.size())) >= 900);
    CHECK(told.find(" ms: worker:1 was lost") != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::collectives
