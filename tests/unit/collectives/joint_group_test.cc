#include "collectives/joint_group.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "tests/support/catch.h"
#include "tests/unit/collectives/room.h"

namespace muster::collectives {
namespace {

// Runs member(group) for all replicas of all processes, each on a thread; what it returns is its
// complaint.
std::string InWorld(int processes, int replicas, const std::function<std::string(Group&)>& member) {
  Room between(processes);
  std::vector<std::unique_ptr<Room>> places;
  std::vector<std::unique_ptr<LocalGroup>> groups;
  for (int p = 0; p < processes; ++p) {
    places.push_back(std::make_unique<Room>(replicas));
    groups.push_back(std::make_unique<LocalGroup>(between, p, processes));
  }
  std::vector<std::string> complaints(static_cast<std::size_t>(processes * replicas));
  std::vector<std::thread> threads;
  for (int p = 0; p < processes; ++p) {
    for (int r = 0; r < replicas; ++r) {
      threads.emplace_back([&, p, r] {
        JointGroup group(*places[static_cast<std::size_t>(p)], r, replicas,
                         *groups[static_cast<std::size_t>(p)]);
        complaints[static_cast<std::size_t>(group.rank())] = member(group);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return std::accumulate(complaints.begin(), complaints.end(), std::string());
}

// Between processes of which there is one: each call lasts 20 ms, and is told how long it may.
class Slow final : public Group {
 public:
  std::vector<Timeout> told;

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                   Timeout timeout) override {
    return Last(timeout, [&] { return alone_.AllReduce(reduction, buffers); });
  }
  Result<std::vector<std::vector<std::int64_t>>> Exchange(std::string_view call,
                                                          std::span<const std::int64_t> mine,
                                                          Timeout) override {
    return alone_.Exchange(call, mine);
  }
  Status AllGather(std::span<const GatherBuffer> buffers, Timeout timeout) override {
    return Last(timeout, [&] { return alone_.AllGather(buffers); });
  }
  Status Broadcast(std::span<std::byte> data, int root, Timeout) override {
    return alone_.Broadcast(data, root);
  }
  Status ReduceScatter(Reduction reduction, const ScatterBuffer& buffer, Timeout) override {
    return alone_.ReduceScatter(reduction, buffer);
  }
  Status AllToAll(std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives, Timeout) override {
    return alone_.AllToAll(sends, receives);
  }
  Status Barrier(Timeout) override { return alone_.Barrier(); }
  void Abort(const Status&) override {}

 private:
  Status Last(Timeout timeout, const std::function<Status()>& call) {
    told.push_back(timeout);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return call();
  }

  Room place_{1};
  LocalGroup alone_{place_, 0, 1};
};

TEST_CASE("all that one call does between processes shares its time limit",
          "[collectives][joint]") {
  using std::chrono::milliseconds;
  std::vector<std::uint16_t> halves(6, 0x3c00);
  std::vector<float> floats(2, 1.0f);
  const auto half = [&](std::size_t i) {
    return ReduceBuffer{DType::kFloat16, {1}, &halves[i], &halves[i]};
  };
  const std::vector<ReduceBuffer> first{
      half(0), half(1), half(2), {DType::kFloat32, {1}, &floats[0], &floats[0]}};
  const std::vector<ReduceBuffer> second{
      half(3), half(4), half(5), {DType::kFloat32, {1}, &floats[1], &floats[1]}};
  const std::vector<std::span<const ReduceBuffer>> brought{first, second};
  Slow between;

  REQUIRE(ReduceJointly(between, Reduction::kSum, brought, milliseconds(10'000)).ok());

  REQUIRE(between.told.size() == 4);
  for (int call = 0; call < 4; ++call) {
    CAPTURE(call);
    const Timeout told = between.told[static_cast<std::size_t>(call)];
    REQUIRE(told.has_value());
    CHECK(*told <= milliseconds(10'000 - 20 * call));
  }
  CHECK(floats == std::vector<float>{2, 2});
  CHECK(halves == std::vector<std::uint16_t>(6, 0x4000));

  // One without a limit has none.
  for (const Timeout none : {Timeout(), Timeout(milliseconds(0))}) {
    Slow endless;
    REQUIRE(ReduceJointly(endless, Reduction::kSum, brought, none).ok());
    CHECK(endless.told == std::vector<Timeout>(4));
  }
}

struct World {
  int processes;
  int replicas;
};
constexpr World kWorlds[] = {{1, 2}, {2, 1}, {2, 2}, {3, 2}, {2, 3}};

TEST_CASE("replicas of several processes get the sum, mean, least and greatest of all",
          "[collectives][joint]") {
  for (const World& world : kWorlds) {
    const int size = world.processes * world.replicas;
    INFO(world.processes << " processes of " << world.replicas);
    const std::string complaints = InWorld(world.processes, world.replicas, [&](Group& group) {
      if (group.size() != size) return std::string("size ");
      const float rank = static_cast<float>(group.rank());
      const float total = static_cast<float>(size * (size - 1)) / 2;
      const std::pair<Reduction, float> cases[] = {
          {Reduction::kSum, total},
          {Reduction::kMean, total / static_cast<float>(size)},
          {Reduction::kMin, 0},
          {Reduction::kMax, static_cast<float>(size - 1)}};
      for (const auto& [reduction, expected] : cases) {
        std::vector<float> floats(50'001, rank);
        std::vector<std::uint16_t> halves(3, 0x3c00);  // 1.0
        std::vector<std::int64_t> longs(5, group.rank());
        std::vector<double> means(5);
        const bool mean = reduction == Reduction::kMean;
        const ReduceBuffer buffers[] = {{DType::kFloat32, {50'001}, floats.data(), floats.data()},
                                        {DType::kFloat16, {3}, halves.data(), halves.data()},
                                        {DType::kInt64,
                                         {5},
                                         longs.data(),
                                         mean ? static_cast<void*>(means.data()) : longs.data()}};
        if (!group.AllReduce(reduction, buffers).ok()) return std::string("refused ");
        if (floats != std::vector<float>(floats.size(), expected)) return std::string("floats ");
        const double last = mean ? means.back() : static_cast<double>(longs.back());
        if (std::abs(last - static_cast<double>(expected)) > 1e-6) return std::string("longs ");
        if (reduction != Reduction::kSum && halves.back() != 0x3c00) return std::string("halves ");
      }
      return std::string();
    });
    CHECK(complaints == "");
  }
}

TEST_CASE(
    "replicas of several processes exchange, gather, broadcast and scatter in the order of "
    "their ranks",
    "[collectives][joint]") {
  for (const World& world : kWorlds) {
    INFO(world.processes << " processes of " << world.replicas);
    const std::string complaints =
        InWorld(world.processes, world.replicas, [&](Group& group) -> std::string {
          const auto n = static_cast<std::size_t>(group.size());
          const auto rank = static_cast<std::size_t>(group.rank());
          const std::vector<std::int64_t> mine(rank, group.rank());
          const auto all = group.Exchange("test", mine);
          if (!all.ok() || all->size() != n) return "exchange ";
          for (std::size_t r = 0; r < n; ++r) {
            if ((*all)[r] != std::vector<std::int64_t>(r, static_cast<std::int64_t>(r))) {
              return "exchanged ";
            }
          }
          std::string brought(2 * (rank + 1), static_cast<char>('a' + rank)), expected;
          GatherBuffer gather;
          gather.in = brought.data();
          gather.blocks = 2;
          for (std::size_t r = 0; r < n; ++r) {
            gather.block_bytes.push_back(r + 1);
            expected += std::string(r + 1, static_cast<char>('a' + r));
          }
          expected += expected;
          std::string gathered(expected.size(), ' ');
          gather.out = gathered.data();
          if (!group.AllGather({&gather, 1}).ok() || gathered != expected) return gathered;
          for (int root = 0; root < group.size(); ++root) {
            std::string data(4, static_cast<char>('a' + rank));
            if (!group.Broadcast(std::as_writable_bytes(std::span(data)), root).ok() ||
                data != std::string(4, static_cast<char>('a' + root))) {
              return "broadcast ";
            }
          }
          std::vector<std::size_t> counts(n, 2);
          std::vector<float> in(2 * n), out(2);
          std::iota(in.begin(), in.end(), 0.0f);
          if (!group
                   .ReduceScatter(Reduction::kSum, {.type = DType::kFloat32,
                                                    .counts = counts,
                                                    .in = in.data(),
                                                    .out = out.data()})
                   .ok() ||
              out[1] != static_cast<float>(n * (2 * rank + 1))) {
            return "reduce_scatter ";
          }
          std::vector<std::string> to(n), from(n);
          std::vector<std::span<const std::byte>> sends;
          std::vector<std::span<std::byte>> receives;
          for (std::size_t r = 0; r < n; ++r) {
            to[r].assign(r + rank, static_cast<char>('0' + rank));
            from[r].resize(r + rank);
            sends.push_back(std::as_bytes(std::span(to[r])));
            receives.push_back(std::as_writable_bytes(std::span(from[r])));
          }
          if (!group.AllToAll(sends, receives).ok()) return "all_to_all ";
          for (std::size_t r = 0; r < n; ++r) {
            if (from[r] != std::string(from[r].size(), static_cast<char>('0' + r))) return from[r];
          }
          return group.Barrier().ok() ? "" : "barrier ";
        });
    CHECK(complaints == "");
  }
}

TEST_CASE("replicas of one process that bring other shapes are told so", "[collectives][joint]") {
  const std::string complaints = InWorld(1, 2, [](Group& group) -> std::string {
    std::vector<float> values(group.rank() == 0 ? 3 : 4);
    const ReduceBuffer buffer{
        DType::kFloat32, {static_cast<std::int64_t>(values.size())}, values.data(), values.data()};
    const Status status = group.AllReduce(Reduction::kSum, {&buffer, 1});
    return Message(status).find("Shape mismatch") != std::string::npos ? "" : ToString(status);
  });
  CHECK(complaints == "");
}

TEST_CASE("a replica whose call fits to nobody else's is an error of all replicas",
          "[collectives][joint]") {
  using Call = std::function<Status(Group&, bool odd)>;
  const Call gather = [](Group& group, bool odd) {
    const std::vector<char> in(2);
    std::vector<char> out(16);
    GatherBuffer buffer{.in = in.data(), .out = out.data(), .blocks = 1, .block_bytes = {1, 1, 1}};
    if (!odd) buffer.block_bytes.push_back(1);
    return group.AllGather({&buffer, 1});
  };
  const Call broadcast = [](Group& group, bool odd) {
    std::vector<std::byte> data(odd ? 3 : 4);
    return group.Broadcast(data, 1);
  };
  const Call nobody = [](Group& group, bool) {
    std::vector<std::byte> data(4);
    return group.Broadcast(data, -1);
  };
  const Call scatter = [](Group& group, bool odd) {
    const std::vector<float> in(8, 1);
    std::vector<float> out(8);
    const std::vector<std::size_t> counts =
        odd ? std::vector<std::size_t>{5, 3} : std::vector<std::size_t>{2, 2, 2, 2};
    return group.ReduceScatter(
        Reduction::kSum,
        {.type = DType::kFloat32, .counts = counts, .in = in.data(), .out = out.data()});
  };
  const auto all_to_all = [](std::size_t parts, std::size_t bytes) {
    return [parts, bytes](Group& group, bool odd) {
      const std::vector<std::byte> out(2);
      std::vector<std::vector<std::byte>> in(4, std::vector<std::byte>(2));
      std::vector<std::span<const std::byte>> sends(odd ? parts : 4, out);
      if (odd) sends.front() = std::span(out).first(bytes);
      const std::vector<std::span<std::byte>> receives(in.begin(), in.end());
      return group.AllToAll(sends, receives);
    };
  };
  const std::pair<std::string, Call> calls[] = {
      {"gather", gather},   {"broadcast", broadcast},    {"nobody", nobody},
      {"scatter", scatter}, {"parts", all_to_all(3, 2)}, {"bytes", all_to_all(4, 1)}};
  for (const auto& [name, call] : calls) {
    INFO(name);
    const std::string complaints = InWorld(1, 4, [&call](Group& group) {
      const Status status = call(group, group.rank() == 1);
      return status.code() == StatusCode::kInvalidArgument ? "" : ToString(status) + "; ";
    });
    CHECK(complaints == "");
  }
}

}  // namespace
}  // namespace muster::collectives
