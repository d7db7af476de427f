#include <atomic>
#include <functional>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/pipeline/pipelines.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

// Takes elements from a pipeline, and after every `step` of them restores the position in a
// pipeline that was made anew (as another process would): what is left must be the same.
void CheckPositions(const std::function<Pipeline()>& make, std::uint64_t pass = 0,
                    std::size_t step = 1, std::size_t limit = 100'000) {
  auto iterator = Open(make(), {.pass = pass});
  std::vector<std::string> positions;
  Batches all;
  while (all.size() < limit) {
    positions.push_back(iterator->Position());
    auto next = testing::NextOf(*iterator);
    if (!next) break;
    all.push_back(*std::move(next));
  }
  INFO(all.size() << " elements of\n" << ToText(*make().node()));
  REQUIRE(all.size() > 3);
  for (std::size_t taken = 0; taken < positions.size(); taken += step) {
    INFO("after " << taken);
    auto restored = Open(make(), {.position = positions[taken]});
    CHECK(restored->taken() == static_cast<std::int64_t>(taken));
    const Batches rest = testing::Rest(*restored, all.size() - taken);
    CHECK(rest == Batches(all.begin() + static_cast<std::ptrdiff_t>(taken), all.end()));
    if (all.size() < limit) CHECK_FALSE(testing::NextOf(*restored).has_value());
  }
}

Pipeline::InterleaveOptions Cycle(std::int64_t cycle, std::int64_t block, bool parallel = false) {
  Pipeline::InterleaveOptions options;
  options.cycle_length = cycle;
  options.block_length = block;
  options.parallel = parallel;
  return options;
}

FilterFunction NotBy3() {
  return [](const Element& element) -> Result<bool> { return Number(element) % 3 != 0; };
}

TEST_CASE(
    "a position after shuffle, interleave and a parallel map gives exactly the rest, in order",
    "[pipeline][unit]") {
  CheckPositions([] {
    return Range(12).Shuffle(5).Interleave(TenOf(), Cycle(3, 2)).Map(Times(7), Parallel(4));
  });
  CheckPositions([] {
    return Files(6)
        .Shuffle(6)
        .Interleave(ReadFile(), Cycle(4, 1, true))
        .Shuffle(17)
        .Map(Times(3), Parallel(3))
        .Batch(4)
        .Prefetch(2);
  });
}

TEST_CASE("a position in a later epoch", "[pipeline][unit]") {
  CheckPositions([] { return Range(7).Shuffle(4).Repeat(3).Batch(2); });
  CheckPositions([] { return Range(7).Shuffle(4).Repeat().Batch(3); }, 5, 1, 20);
  CheckPositions([] { return Range(8).Filter(NotBy3()).Shuffle(3).Repeat(4); });
}

TEST_CASE("a position after a cache, which the new process does not have", "[pipeline][unit]") {
  CheckPositions([] { return Range(6).Shuffle(6).Cache().Repeat(3); });
  CheckPositions([] { return Range(6).Shuffle(6).Cache().Shuffle(3).Repeat(3).Batch(4); });
  CheckPositions([] { return Range(6).Shuffle(6).Cache(); }, 4);
}

TEST_CASE("a position among what a cache of the same dataset holds", "[pipeline][unit]") {
  const Pipeline cached = Range(9).Shuffle(9).Cache().Repeat(2);
  const Numbers all = AllNumbers(cached);
  auto iterator = Open(cached);
  for (int i = 0; i < 4; ++i) (void)iterator->Next();

  auto restored = Open(cached, {.position = iterator->Position()});

  CHECK(testing::Flat(testing::Rest(*restored)) == Numbers(all.begin() + 4, all.end()));
}

TEST_CASE("a position in each kind of step", "[pipeline][unit]") {
  const auto square = [](const Element& element) -> Result<Pipeline> {
    // Makes shuffles of its own, whose seeds are drawn anew in each process.
    return Pipeline::Range(Number(element)).Shuffle(3);
  };
  CheckPositions([&] { return Range(6).FlatMap(square); });
  CheckPositions([&] { return Range(6).FlatMap(square).Repeat(2).Shard(3, 1); });
  CheckPositions([] { return Range(9).Concatenate(Range(5).Shuffle(5)).Skip(2).Take(9); });
  CheckPositions([] { return Pipeline::Zip({Range(9).Shuffle(4), Range(20)}); });
  CheckPositions([] { return Range(30).Shard(4, 2); });
  CheckPositions([] {
    return Range(30).Batch(3, true).Map(
        [](const Element& element, const std::stop_token&) -> Result<Element> { return element; });
  });
  CheckPositions([] { return Pipeline::Slices(VectorOf(Sequence(0, 9))).Batch(2); });
  CheckPositions([] {
    return Pipeline::Generator([] {
      return [n = std::int64_t{0}](const std::stop_token&) mutable -> Item {
        if (n == 8) return std::nullopt;
        return Scalar<std::int64_t>(n++);
      };
    });
  });
}

TEST_CASE("a position among the pieces of batches", "[pipeline][unit]") {
  for (const int index : {0, 1}) {
    CheckPositions([=] {
      return RebatchForReplicas(Range(20).Shuffle(9).Batch(7), {.workers = 2, .index = index}, 2)
          .value()
          .Prefetch(2);
    });
    CheckPositions([=] {
      return RebatchForReplicas(Range(20).Batch(7).Repeat(2), {.workers = 2, .index = index}, 2)
          .value();
    });
    CheckPositions([=] {
      const Shard shard{.workers = 2, .index = index};
      return AutoShard(RebatchForReplicas(Range(23).Batch(4), shard, 2).value(), shard)
          .value()
          .pipeline;
    });
  }
  CheckPositions([] { return Range(9).Batch(4).Rebatch({1, 1, 1, 1, 0}); });
  CheckPositions([] { return Range(9).Batch(4).Rebatch({0, 2}); });
  CheckPositions([] { return Range(23).Batch(5).EvenRebatch(3); });
}

TEST_CASE("a shuffle whose input's length nobody knows", "[pipeline][unit]") {
  for (const std::int64_t buffer : {1, 5, 40, 1000}) {
    CheckPositions([=] { return Range(60).Filter(NotBy3()).Shuffle(buffer); }, 1, 7);
  }
}

// ThreadSanitizer and AddressSanitizer need more addresses than any limit leaves.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a shuffle whose buffer is far larger than data of unknown length takes no memory for it",
          "[pipeline][unit]") {
  const auto shuffled = [](std::int64_t buffer) {
    return Range(60).Filter(NotBy3()).Shuffle(buffer, Seeded(3));
  };
  const Numbers whole = AllNumbers(shuffled(40));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto rest = [&]() noexcept {  // nothing of the child's goes back to the test
      Numbers numbers;
      const auto iterator = Iterator::Make(shuffled(std::int64_t{1} << 32).Skip(15));
      while (iterator.ok()) {
        const Item item = (*iterator)->Next();
        if (!item.ok() || !*item) break;
        numbers.push_back(Number(**item));
      }
      return numbers;
    };
    const rlimit limit{.rlim_cur = std::size_t{2} << 30, .rlim_max = std::size_t{2} << 30};
    ::alarm(60);
    ::_exit(::setrlimit(RLIMIT_AS, &limit) == 0 &&
                    rest() == Numbers(whole.begin() + 15, whole.end())
                ? 0
                : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

TEST_CASE("going back costs no map, no record, and no element of a shuffle that is long gone",
          "[pipeline][unit]") {
  std::atomic<int> mapped = 0;
  const Pipeline pipeline = Range(1'000'000'000)
                                .Map(
                                    [&](const Element& element, const std::stop_token&) {
                                      ++mapped;
                                      return Result<Element>(element);
                                    },
                                    Parallel(2))
                                .Shuffle(100, Seeded(3))
                                .Batch(10);
  const Pipeline plain = Range(1'000'000'000).Shuffle(100, Seeded(3)).Batch(10);
  auto iterator = Open(pipeline.Skip(20'000));

  const auto next = testing::NextOf(*iterator);

  // 200,000 elements lie before; some 100 ln 100 are as young as the oldest one in the buffer.
  CHECK(mapped < 1500);
  CHECK(next == testing::NextOf(*Open(plain.Skip(20'000))));
  // The same by reading everything.
  auto slow = Open(plain);
  for (int i = 0; i < 20'000; ++i) (void)slow->Next();
  CHECK(next == testing::NextOf(*slow));
  CHECK(testing::NextOf(*Open(Range(1'000'000'000).Repeat().Skip(5'000'000'000'000)))->front() ==
        0);
}

TEST_CASE("a position of another pipeline is refused", "[pipeline][unit]") {
  auto iterator = Open(Range(10).Shuffle(4).Batch(2));
  (void)iterator->Next();
  const std::string position = iterator->Position();
  const auto restoring = [&](const Pipeline& pipeline) {
    return Iterator::Make(pipeline, {.position = position}).status();
  };

  CHECK(restoring(Range(10).Shuffle(4).Batch(2)).ok());
  // How fast elements come does not matter.
  CHECK(restoring(Range(10).Shuffle(4).Batch(2).Prefetch(3)).ok());
  for (const Pipeline& other :
       {Range(11).Shuffle(4).Batch(2), Range(10).Shuffle(5).Batch(2), Range(10).Shuffle(4).Batch(3),
        Range(10).Batch(2), Range(10).Shuffle(4).Batch(2).Take(3),
        Range(10).Shuffle(4, Seeded(1)).Batch(2)}) {
    const Status refused = restoring(other);
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK(Mentions(refused, "another pipeline"));
  }
}

TEST_CASE("bytes that are no position are refused, whatever is wrong with them",
          "[pipeline][unit]") {
  auto iterator = Open(Range(10).Shuffle(4));
  (void)iterator->Next();
  const std::string good = iterator->Position();
  const auto restoring = [](const std::string& position) {
    return Iterator::Make(Range(10).Shuffle(4), {.position = position}).status().code();
  };

  CHECK(restoring(good) == StatusCode::kOk);
  CHECK(good.size() < 100);
  CHECK(restoring("") == StatusCode::kInvalidArgument);
  CHECK(restoring(std::string(64, '\0')) == StatusCode::kInvalidArgument);
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    CHECK(restoring(good.substr(0, cut)) == StatusCode::kInvalidArgument);
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    CHECK(restoring(damaged) == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("data that has become shorter than the position", "[pipeline][unit]") {
  const testing::TempFiles files;
  const auto records = [&](int count) {
    std::string text = "id\n";
    for (int i = 0; i < count; ++i) text += std::to_string(i) + "\n";
    v1::DataSpec spec;
    spec.mutable_csv()->add_files(files.Write("n.csv", text));
    (*spec.mutable_csv()->mutable_columns())["id"].set_dtype(v1::DTYPE_INT64);
    return Pipeline::Records(spec, files.CacheDirectory());
  };
  const auto expand = [&](int count) {
    return Range(1).FlatMap(
        [&, count](const Element&) -> Result<Pipeline> { return records(count); });
  };
  auto iterator = Open(expand(20));
  for (int i = 0; i < 15; ++i) (void)iterator->Next();

  const Status shorter = Iterator::Make(expand(9), {.position = iterator->Position()}).status();

  CHECK(shorter.code() == StatusCode::kDataLoss);
  CHECK(Mentions(shorter, "only 9"));
}

TEST_CASE("a position before an element that failed tries it again", "[pipeline][unit]") {
  std::atomic<bool> broken = true;
  const Pipeline pipeline =
      Range(6).Map([&](const Element& element, const std::stop_token&) -> Result<Element> {
        if (Number(element) == 3 && broken) return Unavailable("not now");
        return element;
      });
  auto iterator = Open(pipeline);
  for (int i = 0; i < 3; ++i) (void)iterator->Next();
  CHECK(iterator->Next().status().code() == StatusCode::kUnavailable);
  broken = false;

  CHECK(testing::Flat(testing::Rest(*Open(pipeline, {.position = iterator->Position()}))) ==
        Numbers{3, 4, 5});
}

}  // namespace
}  // namespace muster::data::testing
