#include <atomic>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "collectives/local_group.h"
#include "tests/support/catch.h"
#include "tests/unit/collectives/room.h"

namespace muster::collectives {
namespace {

// Runs member(group) for each of `size` members on a thread of its own; returns the meetings held.
int InGroup(int size, const std::function<void(Group&)>& member, const Torus* torus = nullptr) {
  Room room(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      LocalGroup group(room, r, size, torus);
      member(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(room.same_calls);
  return room.meetings;
}

TEST_CASE("members of a group get the sum or mean of all", "[collectives][unit]") {
  for (const int size : {1, 2, 3, 4}) {
    for (const std::int64_t count : {0, 1, 100, 50001}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
        std::vector<std::vector<float>> results(static_cast<std::size_t>(size));
        std::atomic<int> refused{0};

        const int meetings = InGroup(size, [&](Group& group) {
          std::vector<float>& mine = results[static_cast<std::size_t>(group.rank())];
          mine.assign(static_cast<std::size_t>(count), static_cast<float>(group.rank() + 1));
          const ReduceBuffer buffer{DType::kFloat32, {count}, mine.data(), mine.data()};
          if (!group.AllReduce(reduction, {&buffer, 1}).ok()) ++refused;
        });
        REQUIRE(refused == 0);

        const float sum = static_cast<float>(size * (size + 1) / 2);
        const float expected = reduction == Reduction::kSum ? sum : sum / static_cast<float>(size);
        for (const auto& result : results) {
          CHECK(result == std::vector<float>(static_cast<std::size_t>(count), expected));
        }
        CHECK(meetings == (count == 50001 ? 2 : 1));
      }
    }
  }
}

// What each member of a group has when all have reduced `count` doubles in place, some of which no
// binary number is exactly.
std::vector<std::vector<double>> Reduced(Reduction reduction, int size, std::int64_t count,
                                         const Torus* torus) {
  std::vector<std::vector<double>> results(static_cast<std::size_t>(size));
  std::atomic<int> refused{0};
  InGroup(
      size,
      [&](Group& group) {
        std::vector<double>& mine = results[static_cast<std::size_t>(group.rank())];
        for (std::int64_t i = 0; i < count; ++i) {
          mine.push_back(0.1 * static_cast<double>((i * 7 + group.rank() * 13) % 1000));
        }
        const ReduceBuffer buffer{DType::kFloat64, {count}, mine.data(), mine.data()};
        if (!group.AllReduce(reduction, {&buffer, 1}).ok()) ++refused;
      },
      torus);
  CHECK(refused == 0);
  return results;
}

TEST_CASE("members on a torus get what flat ones get, all of them the same bits",
          "[collectives][unit]") {
  const std::vector<Torus> tori = {{{1}, {0}},
                                   {{3}, {2, 0, 1}},
                                   {{2, 2}, {0, 1, 3, 2}},
                                   {{2, 1, 2}, {3, 2, 1, 0}},
                                   {{3, 2}, {0, 2, 4, 5, 3, 1}}};
  for (const Torus& torus : tori) {
    const int size = static_cast<int>(torus.places.size());
    for (const std::int64_t count : {0, 1, 17, 100, 9001}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
        INFO(size << " members, " << count << " elements, " << NameOf(reduction));
        const auto flat = Reduced(reduction, size, count, nullptr);
        const auto round = Reduced(reduction, size, count, &torus);
        for (const std::vector<double>& result : round) CHECK(result == round[0]);
        bool close = true;
        for (std::size_t i = 0; i < flat[0].size(); ++i) {
          close = close && round[0][i] == Approx(flat[0][i]).epsilon(1e-14);
        }
        CHECK(close);
      }
    }
  }
}

TEST_CASE("on a torus the sums are those of its schedule, however many share the work",
          "[collectives][unit]") {
  // One ring of three: element 0 is in piece 0, which begins at member 1 and is whole at member 0.
  const Torus ring{{3}, {0, 1, 2}};
  const std::vector<double> brought = {1e16, 1.0, 1.0};
  for (const std::int64_t count : {100, 9001}) {
    std::vector<std::vector<double>> results(3);
    InGroup(
        3,
        [&](Group& group) {
          const auto rank = static_cast<std::size_t>(group.rank());
          results[rank].assign(static_cast<std::size_t>(count), brought[rank]);
          const ReduceBuffer buffer{
              DType::kFloat64, {count}, results[rank].data(), results[rank].data()};
          (void)group.AllReduce(Reduction::kSum, {&buffer, 1});
        },
        &ring);
    // (1 + 1) + 1e16; in rank order each 1 would be lost.
    for (const std::vector<double>& result : results) CHECK(result[0] == 1e16 + 2);
  }
}

TEST_CASE("on a torus the mean of large numbers is finite though their sum is not",
          "[collectives][unit][TPS-09]") {
  const Torus torus{{2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7}};
  constexpr std::int64_t kCount = 5'000;
  std::vector<std::vector<float>> means(8, std::vector<float>(kCount)), sums = means;
  std::atomic<int> refused{0};
  InGroup(
      8,
      [&](Group& group) {
        const auto r = static_cast<std::size_t>(group.rank());
        const std::vector<float> mine(kCount, 1e38f);
        const ReduceBuffer mean{DType::kFloat32, {kCount}, mine.data(), means[r].data()};
        const ReduceBuffer sum{DType::kFloat32, {kCount}, mine.data(), sums[r].data()};
        if (!group.AllReduce(Reduction::kMean, {&mean, 1}).ok()) ++refused;
        if (!group.AllReduce(Reduction::kSum, {&sum, 1}).ok()) ++refused;
      },
      &torus);
  CHECK(refused == 0);
  for (const auto& mean : means) CHECK(mean == std::vector<float>(kCount, 1e38f));
  for (const auto& sum : sums) CHECK(std::isinf(sum[0]));
}

TEST_CASE("on a torus, too, buffers of different types are reduced as one", "[collectives][unit]") {
  const Torus torus{{2, 2}, {0, 1, 3, 2}};
  constexpr std::int64_t kCount = 5000;
  std::vector<std::vector<double>> doubles(4, std::vector<double>(kCount)), means = doubles;
  std::atomic<int> refused{0};
  InGroup(
      4,
      [&](Group& group) {
        const auto r = static_cast<std::size_t>(group.rank());
        const std::vector<double> mine(kCount, group.rank());
        const std::vector<std::int64_t> ints(kCount, group.rank() * 2);
        const ReduceBuffer buffers[] = {
            {DType::kInt64, {kCount}, ints.data(), means[r].data()},
            {DType::kFloat64, {kCount}, mine.data(), doubles[r].data()}};
        if (!group.AllReduce(Reduction::kMean, buffers).ok()) ++refused;
      },
      &torus);
  CHECK(refused == 0);
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(doubles[r] == std::vector<double>(kCount, 1.5));
    CHECK(means[r] == std::vector<double>(kCount, 3));
  }
}

TEST_CASE("buffers of different types are reduced as one", "[collectives][unit]") {
  constexpr std::int64_t kFloats = 30000, kInts = 20001;
  std::vector<std::vector<double>> means(3, std::vector<double>(kInts));
  std::vector<std::vector<double>> doubles(3, std::vector<double>(kFloats));
  std::atomic<int> refused{0};

  InGroup(3, [&](Group& group) {
    const auto r = static_cast<std::size_t>(group.rank());
    const std::vector<double> mine(kFloats, group.rank());
    const std::vector<std::int64_t> ints(kInts, group.rank() * 2);
    const ReduceBuffer buffers[] = {{DType::kFloat64, {kFloats}, mine.data(), doubles[r].data()},
                                    {DType::kInt64, {kInts}, ints.data(), means[r].data()}};
    if (!group.AllReduce(Reduction::kMean, buffers).ok()) ++refused;
  });
  CHECK(refused == 0);

  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(doubles[r] == std::vector<double>(kFloats, 1));
    CHECK(means[r] == std::vector<double>(kInts, 2));
  }
}

TEST_CASE("members that bring different tensors are all told so", "[collectives][unit]") {
  struct Case {
    DType type;
    std::vector<std::int64_t> shape;
    std::string message;
  };
  float data[8] = {};
  for (const Case& other :
       {Case{DType::kFloat32,
             {4, 2},
             "Shape mismatch in all_reduce: tensor 0 has shape [4, 2] on "
             "replica 1, [2, 4] on replica 0"},
        Case{DType::kInt32, {2, 4}, "tensor 0 is int32 on replica 1, float32 on replica 0"}}) {
    std::vector<Status> statuses(2);
    InGroup(2, [&](Group& group) {
      ReduceBuffer buffer{DType::kFloat32, {2, 4}, data, data};
      if (group.rank() == 1) {
        buffer.type = other.type;
        buffer.shape = other.shape;
      }
      statuses[static_cast<std::size_t>(group.rank())] =
          group.AllReduce(Reduction::kSum, {&buffer, 1});
    });
    for (const Status& status : statuses) {
      CHECK(status.code() == StatusCode::kInvalidArgument);
      CHECK(Message(status).find(other.message) != std::string::npos);
    }
  }
  std::atomic<int> told{0};
  InGroup(2, [&](Group& group) {
    const ReduceBuffer buffer{DType::kBool, {8}, data, data};
    const Status status = group.AllReduce(Reduction::kSum, {&buffer, 1});
    if (Message(status).find("bool has no sum") != std::string::npos) ++told;
  });
  CHECK(told == 2);
}

TEST_CASE("pieces of different lengths are joined in rank order, block by block",
          "[collectives][unit]") {
  // Member r brings two rows of r + 1 numbers; joined along the second axis.
  std::vector<std::vector<std::vector<std::int64_t>>> lengths(3);
  std::vector<std::vector<std::int32_t>> results(3, std::vector<std::int32_t>(12, -1));
  std::atomic<int> gathered{0};
  InGroup(3, [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto length = static_cast<std::size_t>(group.rank() + 1);
    const std::vector<std::int32_t> mine(2 * length, group.rank());
    const std::int64_t said[] = {static_cast<std::int64_t>(length)};
    const auto all = group.Exchange("test", said);
    if (all.ok()) lengths[rank] = *all;

    const GatherBuffer buffer{mine.data(), results[rank].data(), 2, {4, 8, 12}};
    if (group.AllGather({&buffer, 1}).ok()) ++gathered;
  });
  CHECK(gathered == 3);
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(lengths[r] == std::vector<std::vector<std::int64_t>>{{1}, {2}, {3}});
    CHECK(results[r] == std::vector<std::int32_t>{0, 1, 1, 2, 2, 2, 0, 1, 1, 2, 2, 2});
  }
}

TEST_CASE("members that gather other blocks than they said are told so", "[collectives][unit]") {
  std::vector<Status> statuses(2);
  InGroup(2, [&](Group& group) {
    char in[4] = {}, out[8] = {};
    const GatherBuffer buffer{in, out, group.rank() == 0 ? std::size_t{1} : std::size_t{2}, {2, 2}};
    statuses[static_cast<std::size_t>(group.rank())] = group.AllGather({&buffer, 1});
  });
  for (const Status& status : statuses) CHECK(status.code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::collectives
