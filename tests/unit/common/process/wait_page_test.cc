#include "common/process/wait_page.h"

#include <map>
#include <string>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::process {
namespace {

const Wait kWait{.generation = Generation(3),
                 .operation = 17,
                 .call = "barrier",
                 .awaited = "worker:1",
                 .lasts = std::chrono::milliseconds(1'500),
                 .limit = std::chrono::milliseconds(60'000)};

TEST_CASE("what a child says that it waits for is seen by who made the page until it is cleared",
          "[process][unit]") {
  std::map<std::string, std::string> environment;
  const auto page = WaitPage::ForChild(environment);
  REQUIRE(page != nullptr);
  REQUIRE(environment.at(WaitPage::kVariable) == page->path());
  CHECK_FALSE(page->Get());

  const auto in_child = [&](bool clear) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto opened = WaitPage::Open(environment.at(WaitPage::kVariable));
      if (opened.ok()) clear ? (*opened)->Clear() : (*opened)->Set(kWait);
      ::_exit(opened.ok() ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  };
  in_child(false);
  auto seen = page->Get();
  REQUIRE(seen);
  CHECK(seen->lasts >= kWait.lasts);  // it goes on
  seen->lasts = kWait.lasts;
  CHECK(*seen == kWait);

  in_child(true);
  CHECK_FALSE(page->Get());
}

TEST_CASE("a page tells what is to be made of its process's end", "[process][unit]") {
  using Verdict = WaitPage::Verdict;
  const auto page = WaitPage::Create();
  REQUIRE(page.ok());
  CHECK((*page)->verdict() == Verdict::kNone);
  (*page)->Set(kWait);
  CHECK((*page)->verdict() == Verdict::kNone);
  (*page)->Clear();
  CHECK((*page)->verdict() == Verdict::kNone);

  for (const Verdict verdict : {Verdict::kFinal, Verdict::kTooLate}) {
    (*page)->SetVerdict(verdict);
    CHECK((*page)->verdict() == verdict);
    CHECK_FALSE((*page)->Get());
  }
}

TEST_CASE("texts on a page are cut, and made printable", "[process][unit]") {
  const auto page = WaitPage::Create();
  REQUIRE(page.ok());
  Wait wait = kWait;
  wait.call = std::string(1'000, 'x');
  wait.awaited = "a\x1b[2Jb\xff";
  (*page)->Set(wait);
  const auto seen = (*page)->Get();
  REQUIRE(seen);
  CHECK(seen->call == std::string(WaitPage::kMostCall, 'x'));
  CHECK(seen->awaited == "a?[2Jb?");
}

TEST_CASE("nobody cuts a page, and what is none is refused", "[process][unit]") {
  const auto page = WaitPage::Create();
  REQUIRE(page.ok());
  const int file = ::open((*page)->path().c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  CHECK(::ftruncate(file, 0) != 0);
  ::close(file);
  CHECK(WaitPage::Open("/dev/null").status().code() == StatusCode::kInvalidArgument);
  CHECK(WaitPage::Open("/no/such/page").status().code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::process
