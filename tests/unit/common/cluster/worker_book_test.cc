// The file by which processes of an elastic job find each other.
#include "common/cluster/worker_book.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace muster::cluster {
namespace {

TEST_CASE("A file of workers says what was written", "[cluster][elastic]") {
  WorkerBook book{.job = "job-7",
                  .least = 2,
                  .most = 4,
                  .places = 16,
                  .addresses = {{0, "10.0.0.7:21017"}, {5, "[::1]:21018"}}};
  for (const bool ended : {false, true}) {
    book.ended = ended;

    const Result<WorkerBook> read = ParseWorkerBook(ToText(book));

    REQUIRE(read.ok());
    CHECK(*read == book);
  }
}

TEST_CASE("A file of workers that is not sound is refused, with its line", "[cluster][elastic]") {
  const std::string head = "job j\nleast 1\nmost 2\nplaces 4\n";
  REQUIRE(ParseWorkerBook(head).ok());
  for (const std::string line :
       {"worker x 1.2.3.4:5", "worker 1", "worker -1 a:1", "worker 1 a:1 b:2", "least 0",
        "least two", "leest 1", "ended 2", "worker 99999999999 a:1"}) {
    CAPTURE(line);
    const Status refused = ParseWorkerBook(head + line + "\n").status();
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(Message(refused).find(line) != std::string::npos);
  }
  // Each line is sound, not all together.
  const std::vector<std::string> texts{head + "worker 4 a:1\n", "least 1\nmost 2\nplaces 4\n",
                                       head + "least 3\n", head + "places 1\n"};
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(ParseWorkerBook(text).status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(Message(ReadWorkerBook("/nowhere/workers").status()).find("/nowhere/workers") !=
        std::string::npos);
}

}  // namespace
}  // namespace muster::cluster
