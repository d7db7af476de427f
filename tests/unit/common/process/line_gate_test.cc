#include "common/process/line_gate.h"

#include <vector>

#include "tests/support/catch.h"

namespace muster::process {
namespace {

using std::chrono::milliseconds;

constexpr LineGate::Time kStart{std::chrono::hours(1)};

std::vector<std::string> Texts(const std::vector<LineGate::Line>& lines) {
  std::vector<std::string> texts;
  for (const LineGate::Line& line : lines) texts.push_back(line.text);
  return texts;
}

TEST_CASE("Few lines pass as they are, their taker is told once", "[process][unit]") {
  LineGate gate;
  CHECK(gate.Add(kStart, "a"));
  CHECK_FALSE(gate.Add(kStart, "b"));
  CHECK(Texts(gate.Take()) == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(gate.Add(kStart, "c"));  // the taker looks again by itself
  CHECK(Texts(gate.Take()) == std::vector<std::string>{"c"});
  CHECK(gate.Take().empty());
  CHECK(gate.Add(kStart, "d"));  // it has stopped looking
}

TEST_CASE("Of too many lines the first and the newest are kept, and the rest is counted",
          "[process][unit]") {
  LineGate gate({.burst_lines = 10, .lines_per_second = 0, .tail_lines = 3});
  for (int i = 0; i < 5'000'000; ++i) (void)gate.Add(kStart, std::to_string(i));
  const std::vector<std::string> texts = Texts(gate.Take());
  REQUIRE(texts.size() == 14);
  CHECK(texts[0] == "0");
  CHECK(texts[9] == "9");
  CHECK(texts[10] == "(4999987 lines dropped: too many at once)");
  CHECK(texts[11] == "4999997");
  CHECK(texts[13] == "4999999");
}

TEST_CASE("Long lines count by their bytes", "[process][unit]") {
  LineGate gate({.burst_bytes = 1'000, .bytes_per_second = 0, .tail_bytes = 500});
  for (int i = 0; i < 10; ++i) (void)gate.Add(kStart, std::string(400, 'x'));
  std::size_t bytes = 0;
  for (const LineGate::Line& line : gate.Take()) bytes += line.text.size();
  CHECK(bytes < 1'400);
  // One longer than everything is still the newest.
  (void)gate.Add(kStart, std::string(4'000, 'y'));
  REQUIRE_FALSE(gate.Take().empty());
}

TEST_CASE("A pause makes room again, a clock put back does no harm", "[process][unit]") {
  LineGate gate({.burst_lines = 10, .lines_per_second = 10, .tail_lines = 1});
  const auto pass = [&](LineGate::Time at) {
    for (int i = 0; i < 100; ++i) (void)gate.Add(at, "line");
    return gate.Take().size();
  };
  CHECK(pass(kStart) == 12);  // with the note and the newest
  CHECK(pass(kStart - milliseconds(60'000)) == 2);
  CHECK(pass(kStart - milliseconds(59'500)) == 7);
  CHECK(pass(kStart + milliseconds(60'000)) == 12);
}

}  // namespace
}  // namespace muster::process
