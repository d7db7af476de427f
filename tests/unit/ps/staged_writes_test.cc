// Write sets of synchronous steps on a program's variables.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "muster/v1/variables.pb.h"
#include "ps/apply_pool.h"
#include "ps/program_space.h"
#include "tests/support/catch.h"
#include "tests/support/seeds.h"

namespace muster::ps {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::size_t kRow = 2;

std::span<const std::byte> RawOf(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

struct StepFixture {
  explicit StepFixture(v1::OptimizerKind kind = v1::OPTIMIZER_KIND_SGD) {
    v1::CreateShard create;
    v1::ProgramVariable& variable = *create.mutable_variable();
    variable.set_id(1);
    variable.set_name("w");
    variable.set_dtype(v1::DTYPE_FLOAT32);
    variable.add_shape(kRows);
    variable.add_shape(kRow);
    variable.add_shards()->set_rows(kRows);
    create.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ZEROS);
    w = space.Create(create, {}).value();
    v1::AttachOptimizer attach;
    attach.mutable_optimizer()->set_kind(kind);
    attach.add_shards(w);
    REQUIRE(space.Attach(attach).ok());
  }

  std::vector<float> Read() {
    std::vector<float> values(kRows * kRow);
    REQUIRE(space.Read(w, 0, false, {}, std::as_writable_bytes(std::span(values))).ok());
    return values;
  }
  Status Write(std::uint64_t closure, std::uint64_t step, const ShardWrite& write,
               std::uint64_t attempt = 1, std::uint64_t flush = 1) {
    std::vector<bool> outcomes;
    const Status status =
        space.Write({.closure = ClosureId(closure), .attempt = Attempt(attempt), .flush = flush},
                    std::span(&write, 1), outcomes, step);
    if (status.ok()) applied = outcomes.at(0);
    return status;
  }
  ShardWrite Gradient(const std::vector<float>& values, double rate = 1) const {
    return {.shard = w, .op = kGradient, .values = RawOf(values), .learning_rate = rate};
  }
  ShardWrite Rows(const std::vector<std::int64_t>& ids, const std::vector<float>& values) const {
    return {.shard = w,
            .op = kGradient,
            .rows = true,
            .ids = ids,
            .values = RawOf(values),
            .learning_rate = 1};
  }

  ApplyPool pool{1};
  ProgramSpace space{
      "job-1", {.epoch = Epoch(1), .incarnation = Incarnation(1)}, SpaceId(99), pool};
  std::uint32_t w = 0;
  bool applied = false;
};

TEST_CASE("gradients of a synchronous step are one update, made when a later step begins",
          "[ps][unit]") {
  StepFixture f(v1::OPTIMIZER_KIND_ADAM);
  const std::vector<float> ones(kRows * kRow, 1);
  const std::uint64_t before = f.space.bytes();
  REQUIRE(f.Write(2, 1, f.Gradient(ones)).ok());
  REQUIRE(f.Write(1, 1, f.Gradient(ones)).ok());
  CHECK(f.applied);
  CHECK(f.Read() == std::vector<float>(kRows * kRow));
  CHECK(f.space.bytes() == before + 2 * ones.size() * sizeof(float));
  // One that comes again is known.
  REQUIRE(f.Write(1, 1, f.Gradient(ones), 2).ok());
  CHECK_FALSE(f.applied);

  f.space.BeginStep(2);

  // Adam's first step is as long as its rate, whatever the gradient.
  CHECK(std::abs(f.Read()[0] + 1) < 1e-4F);
  CHECK(f.space.bytes() == before);
  const Status late = f.Write(3, 1, f.Gradient(ones));
  CHECK(late.code() == StatusCode::kAborted);
  CHECK(Message(late) == "variable w: closure 3 is of step 1, which is over");
}

TEST_CASE("a write of a later step ends the step before, and writes of no step are made at once",
          "[ps][unit]") {
  StepFixture f;
  const std::vector<float> ones(kRows * kRow, 1);
  REQUIRE(f.Write(1, 1, f.Gradient(ones)).ok());
  REQUIRE(
      f.Write(
           2, 0,
           {.shard = f.w, .op = static_cast<std::uint8_t>(ElementOp::kAdd), .values = RawOf(ones)})
          .ok());
  CHECK(f.Read()[0] == 1);
  REQUIRE(f.Write(3, 2, f.Gradient(ones)).ok());
  CHECK(f.Read()[0] == 0);
  f.space.BeginStep(3);
  REQUIRE(f.space.EndSteps().ok());
  CHECK(f.Read()[0] == -1);
}

TEST_CASE("gradients of no rows are an update of their own step and of no later one",
          "[ps][unit]") {
  StepFixture f;
  const std::vector<float> ones(kRows * kRow, 1);
  const auto updates = [&f] { return f.space.Read(f.w, 0, true, {}, {}).value().updates; };
  REQUIRE(f.Write(1, 1, f.Rows({}, {})).ok());

  f.space.BeginStep(2);
  CHECK(updates() == 1);

  REQUIRE(f.Write(2, 2, f.Gradient(ones)).ok());
  f.space.BeginStep(3);
  CHECK(updates() == 2);
  CHECK(f.Read() == std::vector<float>(kRows * kRow, -1));
}

TEST_CASE("flushes of a closure in a step count in the order of their counts, then of parts",
          "[ps][unit]") {
  StepFixture f;
  const std::vector<float> ten(kRows * kRow, 10);
  const std::vector<float> two(kRows * kRow, 2);
  const auto write = [&](std::uint64_t part, std::uint64_t count, ElementOp op,
                         const std::vector<float>& values) {
    REQUIRE(f.Write(1, 1,
                    {.shard = f.w, .op = static_cast<std::uint8_t>(op), .values = RawOf(values)}, 1,
                    FlushNumber(part, count))
                .ok());
  };
  write(0, 3, ElementOp::kMul, two);
  write(2, 2, ElementOp::kMul, ten);
  write(0, 1, ElementOp::kAssign, two);
  write(1, 2, ElementOp::kAdd, ten);
  f.space.BeginStep(2);
  CHECK(f.Read()[0] == (2 + 10) * 10 * 2);
}

TEST_CASE("a closure that sends what it writes too often is told how often it may", "[ps][unit]") {
  CHECK(CheckFlushCount(ClosureId(7), kMostFlushes, kMostFlushes).ok());
  const Status refused = CheckFlushCount(ClosureId(7), kMostFlushes + 1, kMostFlushes);
  CHECK(refused.code() == StatusCode::kUnimplemented);
  CHECK(Message(refused) ==
        "closure 7 sends what it writes for the 16777216th time; 16777215 times are possible where "
        "replicas write, or in a synchronous step: write more together, or schedule several "
        "closures");
  // No part's flush is taken for another one's, nor for one of a step.
  CHECK(FlushNumber(0, kMostFlushes) < FlushNumber(1, 1));
  CHECK(FlushNumber(255, kMostFlushes) <= kMostFlushesAlone);
  CHECK(CheckFlushCount(ClosureId(7), kMostFlushes + 1, kMostFlushesAlone).ok());
}

TEST_CASE("a step has the bits of its write sets in the order of closures, however they come",
          "[ps][sim]") {
  muster::testing::EachSeed(1'000, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto upto = [&](std::uint64_t n) {
      return std::uniform_int_distribution<std::uint64_t>(0, n)(random);
    };
    struct Set {
      std::uint64_t closure;
      bool rows;
      std::vector<std::int64_t> ids;
      std::vector<float> values;
    };
    StepFixture shuffled(v1::OPTIMIZER_KIND_ADAGRAD);
    StepFixture ordered(v1::OPTIMIZER_KIND_ADAGRAD);
    std::uint64_t closure = 0;
    for (std::uint64_t step = 1; step <= 6; ++step) {
      std::vector<Set> sets;
      for (std::uint64_t i = upto(4); i > 0; --i) {
        Set& set = sets.emplace_back();
        set.closure = ++closure;
        set.rows = upto(1) == 0;
        set.values.resize(set.rows ? 2 * kRow : kRows * kRow);
        for (float& value : set.values) {
          value = std::ldexp(static_cast<float>(upto(1000)) - 500, static_cast<int>(upto(30)) - 15);
        }
        const auto first = static_cast<std::int64_t>(upto(kRows - 2));
        if (set.rows) set.ids = {first + 1, first};
      }
      const auto write = [&](StepFixture& f, const Set& set) {
        REQUIRE(f.Write(set.closure, step,
                        set.rows ? f.Rows(set.ids, set.values) : f.Gradient(set.values))
                    .ok());
      };
      for (const Set& set : sets) write(ordered, set);
      std::ranges::shuffle(sets, random);
      for (const Set& set : sets) {
        write(shuffled, set);
        if (upto(2) == 0) write(shuffled, set);
      }
    }
    shuffled.space.BeginStep(7);
    ordered.space.BeginStep(7);
    const auto a = shuffled.Read();
    const auto b = ordered.Read();
    REQUIRE(std::ranges::equal(a, b, [](float x, float y) {
      return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
    }));
  });
}

}  // namespace
}  // namespace muster::ps
