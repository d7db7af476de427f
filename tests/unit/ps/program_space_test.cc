// A program's variables on one server, without sockets.
#include "ps/program_space.h"

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "muster/v1/variables.pb.h"
#include "ps/apply_pool.h"
#include "tests/support/catch.h"

namespace muster::ps {
namespace {

v1::CreateShard Shard(std::uint64_t id, const std::string& name, DType dtype,
                      const std::vector<std::int64_t>& shape) {
  v1::CreateShard create;
  v1::ProgramVariable& variable = *create.mutable_variable();
  variable.set_id(id);
  variable.set_name(name);
  variable.set_dtype(static_cast<v1::DType>(dtype));
  variable.mutable_shape()->Assign(shape.begin(), shape.end());
  variable.add_shards()->set_rows(shape.empty() ? 1 : shape[0]);
  create.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ZEROS);
  return create;
}

v1::OptimizerSpec SpecOf(v1::OptimizerKind kind) {
  v1::OptimizerSpec spec;
  spec.set_kind(kind);
  return spec;
}

template <class T>
std::span<const std::byte> RawOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct SpaceFixture {
  template <class T>
  std::uint32_t Make(std::uint64_t id, const std::string& name, DType dtype,
                     const std::vector<std::int64_t>& shape, const std::vector<T>& value) {
    v1::CreateShard create = Shard(id, name, dtype, shape);
    create.set_value(true);
    return space.Create(create, RawOf(value)).value();
  }
  template <class T>
  std::vector<T> Read(std::uint32_t shard, std::size_t n, std::uint32_t slot = 0) {
    std::vector<T> values(n);
    const auto mark = space.Read(shard, slot, false, {}, std::as_writable_bytes(std::span(values)));
    REQUIRE(mark.ok());
    return values;
  }
  Status Write(const ShardWrite& write) {
    std::vector<bool> outcomes;
    return space.Write({.closure = ClosureId(), .attempt = Attempt(1), .flush = ++flush},
                       std::span(&write, 1), outcomes);
  }

  ApplyPool pool{1};
  ProgramSpace space{
      "job-1", {.epoch = Epoch(1), .incarnation = Incarnation(1)}, SpaceId(99), pool};
  std::uint64_t flush = 0;
};

TEST_CASE_METHOD(SpaceFixture, "variables of every dtype are made at any time and read back",
                 "[ps][unit]") {
  const auto a = Make<double>(1, "a", DType::kFloat64, {2, 2}, {1, 2, 3, 4});
  const auto b = Make<std::uint8_t>(2, "b", DType::kBool, {3}, {1, 0, 1});
  const auto c = Make<std::uint16_t>(3, "c", DType::kBfloat16, {}, {0x3f80});

  CHECK(Read<double>(a, 4) == std::vector<double>{1, 2, 3, 4});
  CHECK(Read<std::uint8_t>(b, 3) == std::vector<std::uint8_t>{1, 0, 1});
  CHECK(Read<std::uint16_t>(c, 1) == std::vector<std::uint16_t>{0x3f80});
  CHECK(space.bytes() == 32 + 3 + 2);
}

TEST_CASE_METHOD(SpaceFixture,
                 "making a variable again changes nothing, another one of its name is "
                 "refused",
                 "[ps][unit]") {
  const v1::CreateShard create = Shard(1, "w", DType::kInt64, {2});
  const std::uint32_t shard = space.Create(create, {}).value();
  const std::vector<std::int64_t> five = {5, 5};
  REQUIRE(Write({.shard = shard, .op = 1, .values = RawOf(five)}).ok());

  CHECK(space.Create(create, {}).value() == shard);
  CHECK(Read<std::int64_t>(shard, 2) == five);
  CHECK(space.Create(Shard(2, "w", DType::kInt64, {2}), {}).status().code() ==
        StatusCode::kAlreadyExists);
}

TEST_CASE_METHOD(SpaceFixture,
                 "a deleted variable frees its memory and name, and its index is not used "
                 "again",
                 "[ps][unit]") {
  const auto old = Make<float>(1, "w", DType::kFloat32, {2}, {1, 2});
  const std::uint32_t shards[] = {old};

  REQUIRE(space.Delete(shards).ok());
  CHECK(space.Delete(shards).ok());
  CHECK(space.bytes() == 0);
  CHECK(space.Lookup("w").status().code() == StatusCode::kNotFound);
  const auto again = Make<float>(2, "w", DType::kFloat32, {2}, {3, 4});
  CHECK(again != old);
  std::vector<float> into(2);
  CHECK(space.Read(old, 0, false, {}, std::as_writable_bytes(std::span(into))).status().code() ==
        StatusCode::kNotFound);
}

TEST_CASE_METHOD(SpaceFixture, "only variables that are there count against how many may be",
                 "[ps][unit]") {
  ProgramSpace small{"job-1",
                     {.epoch = Epoch(1), .incarnation = Incarnation(1)},
                     SpaceId(98),
                     pool,
                     /*most_shards=*/4};
  std::uint64_t id = 0;
  const auto make = [&](const std::string& name) {
    return small.Create(Shard(++id, name, DType::kInt64, {1}), {});
  };
  for (const char* const name : {"a", "b", "c"}) REQUIRE(make(name).ok());
  for (int i = 0; i < 10'000; ++i) {
    const auto passing = make("passing");
    REQUIRE(passing.ok());
    const std::uint32_t shards[] = {*passing};
    REQUIRE(small.Delete(shards).ok());
    REQUIRE(small.Delete(shards).ok());
  }
  // A request that comes late brings back none of the last ones.
  CHECK(small.Create(Shard(id, "passing", DType::kInt64, {1}), {}).status().code() ==
        StatusCode::kNotFound);
  REQUIRE(make("d").ok());
  const Status full = make("e").status();
  CHECK(full.code() == StatusCode::kResourceExhausted);
  CHECK(Message(full) ==
        "variable e: 4 shards are here, and 10004 have been made: more are not possible");
}

TEST_CASE_METHOD(SpaceFixture, "what does not fit is refused by name, given and allowed",
                 "[ps][unit]") {
  const auto w = Make<float>(1, "w", DType::kFloat32, {3, 2}, {1, 2, 3, 4, 5, 6});
  const std::vector<float> two = {1, 1};
  const std::vector<std::int64_t> far = {3};
  const std::vector<std::int64_t> below = {-1};
  const auto refused = [&](const ShardWrite& write, std::string_view words) {
    const Status status = Write(write);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Message(status).find(words) != std::string::npos);
  };

  refused({.shard = w, .op = 2, .values = RawOf(two)},
          "variable w (float32): 8 bytes for a shard of 3 rows, which has 24");
  refused({.shard = w, .op = 2, .rows = true, .ids = far, .values = RawOf(two)},
          "variable w: row 3 of the shard from row 0, which has 3 rows");
  refused({.shard = w, .op = 2, .rows = true, .ids = below, .values = RawOf(two)}, "row -1");
  refused({.shard = w, .slot = 1, .op = 1, .values = RawOf(std::vector<float>(6))}, "slot 1 of 0");
  CHECK(space.Create(Shard(2, "x", DType::kString, {1}), {}).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(space.Create(Shard(2, "x", DType::kInt32, {0}), {}).status().code() ==
        StatusCode::kInvalidArgument);
  v1::CreateShard half = Shard(2, "x", DType::kInt32, {2});
  half.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_CONSTANT);
  half.mutable_initializer()->set_scale(0.5);
  CHECK(space.Create(half, {}).status().code() == StatusCode::kInvalidArgument);
  CHECK(Read<float>(w, 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE_METHOD(SpaceFixture, "one write of a set that does not fit keeps all of it out",
                 "[ps][unit]") {
  const auto a = Make<std::int64_t>(1, "a", DType::kInt64, {1}, {10});
  const auto b = Make<std::int64_t>(2, "b", DType::kInt64, {1}, {10});
  const std::vector<std::int64_t> one = {1};
  const std::vector<std::int64_t> zero = {0};
  const ShardWrite writes[] = {{.shard = a, .op = 2, .values = RawOf(one)},
                               {.shard = b, .op = 5, .values = RawOf(zero)}};
  std::vector<bool> outcomes;

  CHECK(space.Write({.closure = ClosureId(1), .attempt = Attempt(1), .flush = 1}, writes, outcomes)
            .code() == StatusCode::kInvalidArgument);
  CHECK(Read<std::int64_t>(a, 1) == std::vector<std::int64_t>{10});
}

TEST_CASE_METHOD(SpaceFixture, "a closed space answers with the reason", "[ps][unit]") {
  const auto a = Make<std::int64_t>(1, "a", DType::kInt64, {1}, {10});
  space.Close(Aborted("job job-1: it was dropped here"));

  const std::vector<std::int64_t> one = {1};
  CHECK(Message(Write({.shard = a, .op = 2, .values = RawOf(one)})) ==
        "job job-1: it was dropped here");
  CHECK(space.bytes() == 0);
}

TEST_CASE_METHOD(SpaceFixture, "a reader sees whole write sets only", "[ps][unit]") {
  constexpr std::size_t kN = 50'000;
  const auto w = Make<std::int64_t>(1, "w", DType::kInt64, {kN}, std::vector<std::int64_t>(kN));
  const std::vector<std::int64_t> ones(kN, 1);
  const std::vector<std::int64_t> twos(kN, 2);
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) {
      const ShardWrite writes[] = {{.shard = w, .op = 3, .values = RawOf(ones)},
                                   {.shard = w, .op = 2, .values = RawOf(twos)}};
      std::vector<bool> outcomes;
      (void)space.Write(
          {.closure = ClosureId(1), .attempt = Attempt(1), .flush = 1u + static_cast<unsigned>(i)},
          writes, outcomes);
    }
  });

  bool whole = true;
  for (int i = 0; i < 200; ++i) {
    const auto values = Read<std::int64_t>(w, kN);
    for (const std::int64_t value : values) whole = whole && value == values[0] && value >= 0;
  }
  writer.join();
  CHECK(whole);
  CHECK(Read<std::int64_t>(w, kN)[kN - 1] == 200);
}

// SGD, momentum, Adam, AdamW and Adagrad in the plainest double arithmetic.
struct Plain {
  double value = 0;
  double a = 0;
  double b = 0;
  void Step(v1::OptimizerKind kind, double g, double lr, double t) {
    if (kind == v1::OPTIMIZER_KIND_SGD) value -= lr * g;
    if (kind == v1::OPTIMIZER_KIND_MOMENTUM) {
      a = 0.9 * a + g;
      value -= lr * a;
    }
    if (kind == v1::OPTIMIZER_KIND_ADAGRAD) {
      a += g * g;
      value -= lr * g / (std::sqrt(a) + 1e-10);
    }
    if (kind == v1::OPTIMIZER_KIND_ADAM || kind == v1::OPTIMIZER_KIND_ADAMW) {
      if (kind == v1::OPTIMIZER_KIND_ADAMW) value *= 1 - lr * 0.01;
      a = 0.9 * a + 0.1 * g;
      b = 0.999 * b + 0.001 * g * g;
      value -= lr * (a / (1 - std::pow(0.9, t))) / (std::sqrt(b / (1 - std::pow(0.999, t))) + 1e-8);
    }
  }
};

TEST_CASE_METHOD(SpaceFixture,
                 "optimizers update dense and by rows, each update at its own learning "
                 "rate",
                 "[ps][unit]") {
  const auto kind =
      GENERATE(v1::OPTIMIZER_KIND_SGD, v1::OPTIMIZER_KIND_MOMENTUM, v1::OPTIMIZER_KIND_ADAGRAD,
               v1::OPTIMIZER_KIND_ADAM, v1::OPTIMIZER_KIND_ADAMW);
  const auto narrow = Make<float>(1, "f", DType::kFloat32, {2}, {1, -2});
  const auto wide = Make<double>(2, "d", DType::kFloat64, {2}, {1, -2});
  v1::AttachOptimizer attach;
  *attach.mutable_optimizer() = SpecOf(kind);
  attach.add_shards(narrow);
  attach.add_shards(wide);
  REQUIRE(space.Attach(attach).ok());
  REQUIRE(space.Attach(attach).ok());

  Plain plain[2] = {{.value = 1}, {.value = -2}};
  const std::vector<std::int64_t> row = {1};
  for (int t = 1; t <= 6; ++t) {
    const double lr = 0.1 / t;
    const std::vector<float> f = {0.5F * static_cast<float>(t), -1};
    const std::vector<double> d = {0.5 * t, -1};
    const bool rows = t % 3 == 0;
    const std::vector<float> f1 = {f[1]};
    const std::vector<double> d1 = {d[1]};
    REQUIRE(Write({.shard = narrow,
                   .op = kGradient,
                   .rows = rows,
                   .ids = rows ? std::span(row) : std::span<const std::int64_t>(),
                   .values = rows ? RawOf(f1) : RawOf(f),
                   .learning_rate = lr})
                .ok());
    REQUIRE(Write({.shard = wide,
                   .op = kGradient,
                   .rows = rows,
                   .ids = rows ? std::span(row) : std::span<const std::int64_t>(),
                   .values = rows ? RawOf(d1) : RawOf(d),
                   .learning_rate = lr})
                .ok());
    if (!rows) plain[0].Step(kind, d[0], lr, t);
    plain[1].Step(kind, d[1], lr, t);
  }

  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(Read<float>(narrow, 2)[i] == Approx(plain[i].value).epsilon(1e-5));
    CHECK(Read<double>(wide, 2)[i] == Approx(plain[i].value).epsilon(1e-12));
  }
}

TEST_CASE_METHOD(SpaceFixture, "an optimizer is attached before gradients, one only, and not any",
                 "[ps][unit]") {
  const auto w = Make<float>(1, "w", DType::kFloat32, {2}, {1, 2});
  const auto n = Make<std::int64_t>(2, "n", DType::kInt64, {1}, {1});
  const std::vector<float> g = {1, 1};
  const std::vector<float> bad = {1, std::nanf("")};
  CHECK(Write({.shard = w, .op = kGradient, .values = RawOf(g)}).code() ==
        StatusCode::kFailedPrecondition);

  v1::AttachOptimizer attach;
  *attach.mutable_optimizer() = SpecOf(v1::OPTIMIZER_KIND_ADAM);
  attach.add_shards(w);
  REQUIRE(space.Attach(attach).ok());
  CHECK(space.bytes() == 3 * 8 + 8);
  CHECK(Write({.shard = w, .op = kGradient, .values = RawOf(bad), .learning_rate = 1}).code() ==
        StatusCode::kInvalidArgument);
  CHECK(Write({.shard = w, .op = kGradient, .values = RawOf(g), .learning_rate = -1}).code() ==
        StatusCode::kInvalidArgument);
  attach.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  CHECK(space.Attach(attach).code() == StatusCode::kFailedPrecondition);
  attach.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_FTRL);
  CHECK(space.Attach(attach).code() == StatusCode::kUnimplemented);
  attach.clear_shards();
  attach.add_shards(n);
  attach.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  CHECK(space.Attach(attach).code() == StatusCode::kInvalidArgument);
}

TEST_CASE_METHOD(SpaceFixture,
                 "an optimizer whose slots do not fit in memory is attached to no shard",
                 "[ps][unit]") {
  ProgramSpace full{"job-1",           {.epoch = Epoch(1), .incarnation = Incarnation(1)},
                    SpaceId(98),       pool,
                    /*most_shards=*/8, []() -> std::optional<std::uint64_t> { return 3 << 20; }};
  v1::AttachOptimizer attach;
  *attach.mutable_optimizer() = SpecOf(v1::OPTIMIZER_KIND_ADAM);
  for (std::uint64_t id = 1; id <= 2; ++id) {
    attach.add_shards(
        full.Create(Shard(id, fmt::format("w{}", id), DType::kFloat32, {1 << 18}), {}).value());
  }
  const std::uint64_t before = full.bytes();

  const Status refused = full.Attach(attach);
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(Message(refused).find("variable w1: ") == 0);
  CHECK(Message(refused).find("need 4 MiB on this parameter server, which has 3 MiB left") !=
        std::string::npos);
  CHECK(full.bytes() == before);
  attach.mutable_shards()->RemoveLast();
  REQUIRE(full.Attach(attach).ok());
  // A repeat takes no more.
  CHECK(full.Attach(attach).ok());
  CHECK(full.bytes() == before + (2 << 20));
}

TEST_CASE_METHOD(SpaceFixture,
                 "what a synchronous step has to keep is refused where memory is short",
                 "[ps][unit]") {
  ProgramSpace full{"job-1",           {.epoch = Epoch(1), .incarnation = Incarnation(1)},
                    SpaceId(98),       pool,
                    /*most_shards=*/8, []() -> std::optional<std::uint64_t> { return 1'000; }};
  constexpr std::size_t kN = (64 << 20) + 8;
  const auto large =
      full.Create(Shard(1, "large", DType::kUint8, {static_cast<std::int64_t>(kN)}), {}).value();
  const auto small = full.Create(Shard(2, "small", DType::kUint8, {8}), {}).value();
  const std::uint64_t before = full.bytes();
  const std::vector<std::byte> values(kN);
  std::uint64_t closure = 0;
  const auto write = [&](std::uint32_t shard, std::size_t bytes, std::uint64_t step) {
    const ShardWrite one{.shard = shard, .op = 1, .values = std::span(values).first(bytes)};
    std::vector<bool> outcomes;
    return full.Write({.closure = ClosureId(++closure), .attempt = Attempt(1), .flush = 1},
                      std::span(&one, 1), outcomes, step);
  };

  const Status refused = write(large, kN, 1);
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(Message(refused).find("variable large: ") == 0);
  CHECK(full.bytes() == before);
  CHECK(write(small, 8, 1).ok());
  CHECK(full.bytes() == before + 8);
  // Nothing is kept of what is applied at once.
  CHECK(write(large, kN, 0).ok());
}

TEST_CASE_METHOD(SpaceFixture, "a variable of more elements than one may have is refused",
                 "[ps][unit]") {
  const auto refused = [&](std::int64_t elements) {
    const Status status = space.Create(Shard(1, "w", DType::kFloat64, {1, elements}), {}).status();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Message(status) == fmt::format("variable w: {} elements; at most 2^40", elements));
  };

  // In bytes these are 0 and 8 more than 2^64.
  refused(std::int64_t{1} << 61);
  refused((std::int64_t{1} << 61) + 1);
  refused((std::int64_t{1} << 40) + 1);
  CHECK(space.bytes() == 0);
}

TEST_CASE_METHOD(SpaceFixture, "slots and the count of updates are read and restored",
                 "[ps][unit]") {
  const auto w = Make<float>(1, "w", DType::kFloat32, {2}, {1, 2});
  v1::AttachOptimizer attach;
  *attach.mutable_optimizer() = SpecOf(v1::OPTIMIZER_KIND_MOMENTUM);
  attach.add_shards(w);
  attach.set_updates(41);
  REQUIRE(space.Attach(attach).ok());
  const std::vector<float> slot = {3, 4};
  REQUIRE(Write({.shard = w, .slot = 1, .op = 1, .values = RawOf(slot)}).ok());
  CHECK(Read<float>(w, 2, 1) == slot);

  const std::vector<float> g = {0, 0};
  REQUIRE(Write({.shard = w, .op = kGradient, .values = RawOf(g), .learning_rate = 1}).ok());
  std::vector<float> into(2);
  const auto mark = space.Read(w, 0, false, {}, std::as_writable_bytes(std::span(into)));
  CHECK(mark->updates == 42);
}

}  // namespace
}  // namespace muster::ps
