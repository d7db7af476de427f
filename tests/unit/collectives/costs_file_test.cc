// What collectives cost, in a file that people may write into.
#include "collectives/costs_file.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "collectives/cost_fit.h"
#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"

namespace muster::collectives {
namespace {

// Figures that are all different.
LinkCosts Different() {
  LinkCosts costs;
  double next = 1;
  for (AlgorithmCosts& kind : costs.of_kind) {
    for (const Algorithm algorithm : kAlgorithms) {
      kind.of(algorithm) = {.round = next * 1e-6,
                            .message = next * 2e-6,
                            .byte = next * 1e-9,
                            .reduced_byte = next * 3e-11};
      next += 0.25;
    }
  }
  return costs;
}

void CheckSame(const LinkCosts& a, const LinkCosts& b) {
  for (const LinkKind kind : {LinkKind::kTcp, LinkKind::kUnix}) {
    for (const Algorithm algorithm : kAlgorithms) {
      const Costs& one = a.of(kind).of(algorithm);
      const Costs& other = b.of(kind).of(algorithm);
      CHECK(std::abs(one.round - other.round) <= 1e-5 * one.round);
      CHECK(std::abs(one.message - other.message) <= 1e-5 * one.message);
      CHECK(std::abs(one.byte - other.byte) <= 1e-5 * one.byte);
      CHECK(std::abs(one.reduced_byte - other.reduced_byte) <= 1e-5 * one.reduced_byte);
    }
  }
}

// What is wrong with the text of Different() when `from` is `to` in it.
std::string Refusal(const std::string& from, const std::string& to) {
  std::string text = CostsText(Different(), "by a test");
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  const auto costs = ParseCosts(text, "costs.txt");
  CHECK(costs.status().code() == StatusCode::kInvalidArgument);
  return Message(costs.status());
}

TEST_CASE("figures come back from their file and from what members tell each other",
          "[collectives]") {
  const auto parsed = ParseCosts(CostsText(Different(), "by a test"), "costs.txt");
  REQUIRE(parsed.ok());
  CheckSame(Different(), *parsed);

  const std::string packed = PackedCosts(Different());
  CHECK(packed.size() == kPackedCostsBytes);
  const auto unpacked = UnpackedCosts(std::as_bytes(std::span(packed)));
  REQUIRE(unpacked.ok());
  CHECK(PackedCosts(*unpacked) == packed);
}

TEST_CASE("comments, blanks, empty lines and any order of lines are read", "[collectives]") {
  std::string text = "\n# by hand\n  muster-collective-costs\t1  # the version\r\n";
  for (const std::string kind : {"unix", "tcp"}) {
    for (const std::string algorithm : {"tree", "ring", "direct", "doubling", "halving_doubling"}) {
      text += fmt::format("\n  {}\t{} 1e1 2 0.5 0 # measured\r\n", kind, algorithm);
    }
  }
  text.pop_back();  // the last line does not end
  const auto costs = ParseCosts(text, "costs.txt");
  REQUIRE(costs.ok());
  CHECK(std::abs(costs->of(LinkKind::kTcp).of(Algorithm::kRing).round - 10e-6) < 1e-12);
  CHECK(std::abs(costs->of(LinkKind::kUnix).of(Algorithm::kTree).byte - 0.5e-9) < 1e-16);
}

TEST_CASE("what is wrong in a file is said with its line, what is given and what is allowed",
          "[collectives]") {
  // Lines 1 to 4 are the version and comments; those of tcp begin at 5, those of unix at 10.
  CHECK(Refusal("costs 1\n", "costs 2\n") ==
        "costs.txt:1: version 2 of what collectives cost; this Muster reads version 1: write the "
        "file anew by muster bench allreduce --tune");
  CHECK(
      Refusal("muster-collective-costs", "costs").find("costs.txt:1: a file of what collectives") ==
      0);
  CHECK(Refusal("tcp    direct", "ib     direct") ==
        "costs.txt:5: no link is called \"ib\", but tcp, unix");
  CHECK(Refusal("tcp    ring", "tcp    circle") ==
        "costs.txt:6: no algorithm is called \"circle\", but direct, ring, halving_doubling, "
        "doubling, tree");
  CHECK(Refusal("tcp    ring", "tcp    direct") ==
        "costs.txt:6: tcp direct stands in line 5 already");
  CHECK(Refusal("tcp    ring", "tcp    ring 7").find("costs.txt:6: \"tcp    ring 7") == 0);
  CHECK(Refusal("tcp    ring", "tcp    ring 7")
            .find("has 7 words, and 6 are needed: link, "
                  "algorithm, round_us, message_us, byte_ns, "
                  "reduced_byte_ns") != std::string::npos);
  CHECK(Refusal("1.25", "fast") ==
        "costs.txt:6: round_us is \"fast\": a number from 0 to 6e+07 is needed");
  for (const std::string figure : {"-1", "1e9", "nan", "inf", "1,25", "0x10", "1.25us"}) {
    CHECK(Refusal("1.25", figure).find("costs.txt:6: round_us is \"" + figure + "\"") == 0);
  }
  CHECK(Refusal("unix   tree", "# unix tree") ==
        "costs.txt: no line begins with \"unix tree\": each link needs one for each of direct, "
        "ring, halving_doubling, doubling, tree");
  const auto empty = ParseCosts("", "costs.txt");
  CHECK(Message(empty.status())
            .find("costs.txt:1: a file of what collectives cost begins with "
                  "\"muster-collective-costs 1\"") == 0);
  const auto binary = ParseCosts(std::string("\0\x1b[31m\xff", 7), "costs.txt");
  CHECK(Message(binary.status()).find("costs.txt:1: ") == 0);
}

TEST_CASE("what members tell each other is checked like a file", "[collectives]") {
  const std::string packed = PackedCosts(Different());
  CHECK_FALSE(UnpackedCosts(std::as_bytes(std::span(packed)).first(packed.size() - 1)).ok());
  for (const double figure : {-1.0, std::nan(""), 1e300}) {
    std::string other = packed;
    std::memcpy(other.data() + 8, &figure, sizeof(figure));
    CHECK(UnpackedCosts(std::as_bytes(std::span(other))).status().code() ==
          StatusCode::kInvalidArgument);
  }
}

TEST_CASE("the variable names the file, and nothing is read without it", "[collectives]") {
  CHECK_FALSE(CostsFrom(FixedEnvironment({})).value().has_value());
  CHECK_FALSE(CostsFrom(FixedEnvironment({{kCostsVariable, ""}})).value().has_value());

  const testing::TempFolder folder;
  const std::string path = folder / "costs.txt";
  const Environment named = FixedEnvironment({{kCostsVariable, path}});
  const Status missing = CostsFrom(named).status();
  CHECK(missing.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(missing) == "MUSTER_COLLECTIVE_COSTS names " + path +
                                ", which cannot be read: No such file or directory; write it by "
                                "muster bench allreduce --tune " +
                                path + ", or unset the variable");
  CHECK(CostsFrom(FixedEnvironment({{kCostsVariable, folder.path()}})).status().code() ==
        StatusCode::kFailedPrecondition);
  std::ofstream(path) << CostsText(Different(), "by a test");
  const auto costs = CostsFrom(named);
  CHECK(costs.ok());
  if (costs.ok() && costs->has_value()) CheckSame(Different(), **costs);
  std::ofstream(path) << "muster-collective-costs 1\ntcp ring\n";
  const Status bad = CostsFrom(named).status();
  CHECK(bad.code() == StatusCode::kInvalidArgument);
  CHECK(Message(bad).find("MUSTER_COLLECTIVE_COSTS: " + path + ":2: \"tcp ring\" has 2 words") ==
        0);
}

TEST_CASE("each algorithm is chosen by its own figures", "[collectives]") {
  for (const Algorithm cheap : kAlgorithms) {
    AlgorithmCosts costs;
    for (const Algorithm algorithm : kAlgorithms) {
      costs.of(algorithm).round = algorithm == cheap ? 1e-6 : 1;
    }
    for (const std::size_t bytes : {4U, 1U << 20}) {
      CHECK(Choose(4, bytes, false, costs) == cheap);
      CHECK(Choose(4, bytes, true, costs) == Algorithm::kDirect);
    }
  }
}

TEST_CASE("figures that are fitted to times predict them", "[collectives]") {
  const Costs real{.round = 7e-6, .message = 9e-6, .byte = 2e-10, .reduced_byte = 6e-11};
  for (const Algorithm algorithm : kAlgorithms) {
    std::vector<Timing> timings;
    for (const int members : {2, 4}) {
      for (const std::size_t bytes : {4U, 16U << 10, 1U << 20}) {
        timings.push_back({members, bytes, PredictedSeconds(algorithm, members, bytes, real)});
      }
    }
    const Costs fit = FitCosts(algorithm, timings, real.reduced_byte);
    INFO(NameOf(algorithm));
    for (const Timing& timing : timings) {
      const double predicted = PredictedSeconds(algorithm, timing.members, timing.bytes, fit);
      CHECK(std::abs(predicted / timing.seconds - 1) < 1e-3);
    }
    CHECK(fit.round >= 0);
    CHECK(fit.message >= 0);
    CHECK(fit.byte >= 0);
    CHECK(fit.reduced_byte == real.reduced_byte);
  }
}

TEST_CASE("no figure is fitted below nothing", "[collectives]") {
  // Times that fall with bytes, as noise may have it.
  const std::vector<Timing> timings{{2, 4, 40e-6}, {2, 1U << 20, 20e-6}, {4, 4, 10e-6}};
  for (const Algorithm algorithm : kAlgorithms) {
    const Costs fit = FitCosts(algorithm, timings, 1e-9);
    CHECK(fit.round >= 0);
    CHECK(fit.message >= 0);
    CHECK(fit.byte >= 0);
  }
}

}  // namespace
}  // namespace muster::collectives
