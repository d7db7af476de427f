#include "common/base/words.h"

#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("what is counted stands in the singular only for one", "[base][unit]") {
  CHECK(Counted(1, "worker") == "1 worker");
  CHECK(Counted(0, "worker") == "0 workers");
  CHECK(Counted(2, "parameter server") == "2 parameter servers");
  CHECK(Counted(3, "batch") == "3 batches");
  CHECK(Counted(2, "copy") == "2 copies");
  CHECK(Counted(2, "day") == "2 days");
  CHECK(Counted(2, "index", "indices") == "2 indices");
}

TEST_CASE("the article goes by the first letter as it is spoken", "[base][unit]") {
  CHECK(WithArticle("int64") == "an int64");
  CHECK(WithArticle("float32") == "a float32");
  CHECK(WithArticle("uint8") == "a uint8");
}

TEST_CASE("a list is joined by commas and a long one says how many it leaves out", "[base][unit]") {
  const std::vector<std::string> names{"a", "b", "c", "d"};
  CHECK(Joined(std::vector<std::string>()).empty());
  CHECK(Joined(names) == "a, b, c, d");
  CHECK(Joined(names, 4) == "a, b, c, d");
  CHECK(Joined(names, 3) == "a, b, c and 1 more");
  CHECK(Joined(std::set<int>{3, 1, 2}, 2, [](int n) { return 10 * n; }) == "10, 20 and 1 more");
  CHECK(Joined(std::vector<int>(21, 7)).ends_with(" and 1 more"));
}

TEST_CASE("verbs agree with what is counted", "[base][unit]") {
  CHECK(Agreeing(1, "runs", "run") == "runs");
  CHECK(Agreeing(0, "runs", "run") == "run");
}

TEST_CASE("gRPC's words for a lost connection become sentences, others stay", "[base][unit]") {
  CHECK(TransportWords("failed to connect to all addresses; last error: UNKNOWN: "
                       "ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused") ==
        "nothing listens there");
  CHECK(TransportWords("failed to connect to all addresses; last error: UNAVAILABLE: "
                       "ipv4:127.0.0.1:1: connection attempt timed out before receiving SETTINGS "
                       "frame")
            .starts_with("connections are accepted there, but nobody speaks"));
  const std::string failed =
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: ";
  CHECK(TransportWords(failed + "Cannot check peer: missing selected ALPN property.")
            .starts_with("what listens there speaks TLS but no gRPC: an admin port"));
  CHECK(TransportWords(failed + "Failed parsing HTTP/2")
            .starts_with("what listens there speaks no gRPC: a parameter server's data"));
  CHECK(TransportWords("Deadline Exceeded") == "no answer came in time");
  CHECK(TransportWords("job j-1 is not ready yet: waiting for ps:0") ==
        "job j-1 is not ready yet: waiting for ps:0");
}

}  // namespace
}  // namespace muster
