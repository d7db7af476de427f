#include "services/common/burials.h"

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>

#include "services/common/piped_process.h"
#include "tests/support/catch.h"
#include "tests/support/undying.h"

namespace muster::services {
namespace {

struct Graves {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::string> told;

  void Tell(const std::string& what) {
    const std::scoped_lock lock(mutex);
    told.insert(what);
    changed.notify_all();
  }
  bool Has(const std::string& what) {
    const std::scoped_lock lock(mutex);
    return told.contains(what);
  }
  bool WaitFor(const std::string& what) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] { return told.contains(what); });
  }
  std::shared_ptr<ExecutorProcess> Sleeper(const std::string& name) {
    auto started = ExecutorProcess::Start(
        {.argv = {"/bin/sleep", "1000"}},
        {.on_line = [](auto&&...) {},
         .on_message = [](auto&&...) {},
         .on_exit = [this, name](process::Exit exit) { Tell(name + ": " + exit.ToString()); }});
    REQUIRE(started.ok());
    return *std::move(started);
  }
};

TEST_CASE("a process that cannot die keeps no other one alive", "[services][unit]") {
  Graves graves;
  Burials burials;
  auto undying = graves.Sleeper("undying");
  auto other = graves.Sleeper("other");
  muster::testing::Undying held(undying->pid());
  if (!held.allowed()) return;

  burials.Bury(std::move(undying), [&] { graves.Tell("undying is buried"); });
  burials.Bury(std::move(other), [&] { graves.Tell("other is buried"); });

  CHECK(graves.WaitFor("other: signal SIGKILL"));
  CHECK_FALSE(graves.Has("undying: signal SIGKILL"));
  CHECK_FALSE(graves.Has("undying is buried"));
  held.Release();
  CHECK(graves.WaitFor("undying is buried"));
  CHECK(graves.WaitFor("other is buried"));
  CHECK(graves.Has("undying: signal SIGKILL"));
}

}  // namespace
}  // namespace muster::services
