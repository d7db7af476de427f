#include "collectives/process/mesh_operations.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

// What the members on one host share.
std::vector<SharedMemory> MemoryOf(const std::vector<int>& ranks) {
  std::vector<SharedMemory> memories;
  net::Arena arena = *SharedMemory::Make(ranks.size());
  for (int place = 1; place < static_cast<int>(ranks.size()); ++place) {
    memories.push_back(*SharedMemory::Map(place, ranks, net::Fd(::dup(arena.fd()))));
  }
  memories.insert(memories.begin(), *SharedMemory::Map(0, ranks, std::move(arena)));
  return memories;
}

using Member = std::function<void(int, MeshOperations&, const Operation&)>;

// Runs member(rank, operations) for members that are linked by socket pairs, each on a thread.
// Those in `share` share memory, and have no links to each other.
void OverMesh(const MeshOperations::Options& options, int size, const Member& member,
              const std::vector<std::vector<int>>& share = {}) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::unique_ptr<SharedMemory>> memories(n);
  std::vector<std::unique_ptr<SharedOperations>> on_host(n);
  for (const std::vector<int>& ranks : share) {
    auto shared = MemoryOf(ranks);
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const auto rank = static_cast<std::size_t>(ranks[place]);
      memories[rank] = std::make_unique<SharedMemory>(std::move(shared[place]));
      on_host[rank] = std::make_unique<SharedOperations>(*memories[rank]);
    }
  }
  const auto together = [&](std::size_t a, std::size_t b) {
    return std::ranges::any_of(share, [&](const std::vector<int>& ranks) {
      return std::ranges::count(ranks, a) > 0 && std::ranges::count(ranks, b) > 0;
    });
  };
  std::vector<std::vector<Mesh::Peer>> peers(n);
  for (auto& own : peers) own.resize(n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      int ends[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
      if (together(a, b)) (void)::shutdown(ends[0], SHUT_RDWR);
      peers[a][b] = {.stream = std::make_shared<net::Stream>(net::Fd(ends[0])),
                     .name = fmt::format("rank:{}", b)};
      peers[b][a] = {.stream = std::make_shared<net::Stream>(net::Fd(ends[1])),
                     .name = fmt::format("rank:{}", a)};
    }
  }
  const std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Mesh mesh(std::move(peers[static_cast<std::size_t>(r)]), net::SpinMode::kOff, nullptr, false);
      MeshOperations operations(mesh, r, options, on_host[static_cast<std::size_t>(r)].get());
      member(r, operations,
             {.tag = {.generation = Generation(1), .operation = 1, .signature = 1},
              .waiter = {.over = &over,
                         .deadline = std::chrono::steady_clock::now() + Millis(60'000)}});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("members that share hosts with some others get sums and means of all",
          "[collectives][process]") {
  const std::vector<std::uint64_t> hosts = {7, 7, 9, 7, 9, 3};
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
    for (const std::size_t count : {1U, 1000U, 1'200'000U}) {
      std::vector<std::vector<float>> results(hosts.size());
      std::vector<std::vector<std::uint16_t>> halves(hosts.size());
      OverMesh({.costs = {}, .hosts = hosts}, static_cast<int>(hosts.size()),
               [&](int rank, MeshOperations& operations, const Operation& operation) {
                 const auto r = static_cast<std::size_t>(rank);
                 results[r].assign(count, static_cast<float>(rank));
                 halves[r].assign(count, 0x3c00);  // 1.0; rounded once, so not by hosts
                 const auto size = static_cast<std::int64_t>(count);
                 const ReduceBuffer buffers[] = {
                     {DType::kFloat32, {size}, results[r].data(), results[r].data()},
                     {DType::kFloat16, {size}, halves[r].data(), halves[r].data()}};
                 const Status status = operations.AllReduce(operation, reduction, buffers);
                 if (!status.ok()) FAIL_CHECK(ToString(status));
               });
      const float expected = reduction == Reduction::kSum    ? 15.0f
                             : reduction == Reduction::kMean ? 2.5f
                                                             : 5.0f;
      for (const auto& result : results) CHECK(result == std::vector<float>(count, expected));
      const std::uint16_t half = reduction == Reduction::kSum ? 0x4600 : 0x3c00;  // 6.0, 1.0
      for (const auto& result : halves) CHECK(result == std::vector<std::uint16_t>(count, half));
    }
  }
}

TEST_CASE("sums and means within a host go through the memory that its members share, and no link",
          "[collectives][process]") {
  // The first of a host is not always rank 0, hosts are mixed, and one has a single member.
  const std::vector<std::uint64_t> hosts = {3, 7, 9, 7, 9, 7};
  const std::vector<std::vector<int>> share = {{1, 3, 5}, {2, 4}};
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
    for (const std::size_t count : {1U, 1000U, 300'000U, 1'200'000U}) {
      std::vector<std::vector<double>> results(hosts.size());
      std::vector<std::vector<std::int32_t>> whole(hosts.size());
      OverMesh(
          {.costs = {}, .hosts = hosts}, static_cast<int>(hosts.size()),
          [&](int rank, MeshOperations& operations, const Operation& operation) {
            const auto r = static_cast<std::size_t>(rank);
            const std::vector<double> brought(count, rank);
            results[r].resize(count);
            whole[r].assign(7, rank + 1);
            const ReduceBuffer buffers[] = {{DType::kFloat64,
                                             {static_cast<std::int64_t>(count)},
                                             brought.data(),
                                             results[r].data()},
                                            {DType::kInt32, {7}, whole[r].data(), whole[r].data()}};
            const std::size_t given = reduction == Reduction::kMean ? 1 : 2;
            const Status status =
                operations.AllReduce(operation, reduction, std::span(buffers).first(given));
            if (!status.ok()) FAIL_CHECK(ToString(status));
          },
          share);
      const double expected = reduction == Reduction::kSum    ? 15
                              : reduction == Reduction::kMean ? 2.5
                                                              : 5;
      for (const auto& result : results) CHECK(result == std::vector<double>(count, expected));
      if (reduction == Reduction::kMean) continue;
      const std::int32_t sum = reduction == Reduction::kSum ? 21 : 6;
      for (const auto& result : whole) CHECK(result == std::vector<std::int32_t>(7, sum));
    }
  }
}

TEST_CASE("members that share memory name who does not come, on their host or on another",
          "[collectives][process]") {
  const std::vector<std::uint64_t> hosts = {9, 7, 7, 9};
  const int absent = GENERATE(as<int>{}, 0, 1, 2, 3);
  std::vector<std::vector<int>> waited(hosts.size());
  OverMesh({.costs = {}, .hosts = hosts}, static_cast<int>(hosts.size()),
           [&](int rank, MeshOperations& operations, const Operation& given) {
             if (rank == absent) return;
             Operation operation = given;
             operation.waiter.deadline = std::chrono::steady_clock::now() + Millis(300);
             float value = 1;
             const ReduceBuffer buffer{DType::kFloat32, {}, &value, &value};
             const Status status = operations.AllReduce(operation, Reduction::kSum, {&buffer, 1});
             if (status.ok()) FAIL_CHECK("a sum without " << absent);
             waited[static_cast<std::size_t>(rank)] = operations.waiting();
           },
           {{0, 3}, {1, 2}});
  // Its host's other member waits for it, and the other host for who speaks for its host.
  const int mate = 3 - absent;
  CHECK(waited[static_cast<std::size_t>(mate)] == std::vector<int>{absent});
}

TEST_CASE("whichever algorithm the costs choose, members get the mean of all",
          "[collectives][process]") {
  // Free rounds and dear messages, dear bytes, dear rounds. No figures that all have in common make
  // a ring or a tree the cheapest of eight.
  const std::pair<AlgorithmCosts, Algorithm> cases[] = {
      {Costs{.round = 0, .message = 1, .byte = 0, .reduced_byte = 0}, Algorithm::kDoubling},
      {Costs{.round = 0, .message = 1, .byte = 1, .reduced_byte = 0}, Algorithm::kHalvingDoubling},
      {Costs{.round = 1, .message = 0, .byte = 1e-9, .reduced_byte = 0}, Algorithm::kDirect},
      {CheapestBy(Algorithm::kRing), Algorithm::kRing},
      {CheapestBy(Algorithm::kTree), Algorithm::kTree}};
  for (const auto& [costs, algorithm] : cases) {
    constexpr std::size_t kCount = 1000;
    REQUIRE(Choose(8, kCount * sizeof(double), false, costs) == algorithm);
    std::vector<std::vector<double>> results(8);
    OverMesh({.costs = costs, .hosts = {}}, 8,
             [&](int rank, MeshOperations& operations, const Operation& operation) {
               std::vector<double>& mine = results[static_cast<std::size_t>(rank)];
               mine.assign(kCount, rank);
               const ReduceBuffer buffer{DType::kFloat64, {kCount}, mine.data(), mine.data()};
               const Status status =
                   operations.AllReduce(operation, Reduction::kMean, {&buffer, 1});
               if (!status.ok()) FAIL_CHECK(ToString(status));
             });
    INFO(NameOf(algorithm));
    for (const auto& result : results) CHECK(result == std::vector<double>(kCount, 3.5));
  }
}

// Members and where they live: `speakers` of them sum among each other.
struct Layout {
  int size;
  int speakers;
  std::vector<std::uint64_t> hosts;
  std::vector<std::vector<int>> share;
};

// Every member brings other numbers, whose sums are rounded.
std::vector<double> FractionsOf(int rank, std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = 1.0 / static_cast<double>(i * 13 + static_cast<std::size_t>(rank) * 7 + 1);
  }
  return values;
}

TEST_CASE("each algorithm gives all members the same bits that are near the exact result",
          "[collectives][process]") {
  const Algorithm algorithm = GENERATE(from_range(kAlgorithms.begin(), kAlgorithms.end()));
  const Reduction reduction = GENERATE(Reduction::kSum, Reduction::kMean, Reduction::kMax);
  const Layout layouts[] = {
      {.size = 2, .speakers = 2, .hosts = {}, .share = {}},
      {.size = 3, .speakers = 3, .hosts = {}, .share = {}},
      {.size = 7, .speakers = 7, .hosts = {}, .share = {}},
      {.size = 8, .speakers = 8, .hosts = {}, .share = {}},
      {.size = 6, .speakers = 3, .hosts = {7, 7, 9, 7, 9, 3}, .share = {}},
      {.size = 8, .speakers = 4, .hosts = {1, 2, 3, 4, 1, 2, 3, 4}, .share = {}},
      {.size = 6, .speakers = 3, .hosts = {3, 7, 9, 7, 9, 7}, .share = {{1, 3, 5}, {2, 4}}},
      {.size = 7, .speakers = 5, .hosts = {1, 2, 3, 4, 5, 1, 2}, .share = {{0, 5}, {1, 6}}}};
  const AlgorithmCosts costs = CheapestBy(algorithm);
  for (const Layout& layout : layouts) {
    for (const std::size_t count : {1U, 17U, 4'001U}) {
      INFO(NameOf(reduction) << " of " << count << " by " << NameOf(algorithm) << ", "
                             << layout.size << " members, " << layout.speakers << " of whom speak");
      REQUIRE(Choose(layout.speakers, count * sizeof(double), false, costs) == algorithm);
      std::vector<std::vector<double>> results(static_cast<std::size_t>(layout.size));
      OverMesh(
          {.costs = costs, .hosts = layout.hosts}, layout.size,
          [&](int rank, MeshOperations& operations, const Operation& operation) {
            std::vector<double>& mine = results[static_cast<std::size_t>(rank)];
            mine = FractionsOf(rank, count);
            const ReduceBuffer buffer{
                DType::kFloat64, {static_cast<std::int64_t>(count)}, mine.data(), mine.data()};
            const Status status = operations.AllReduce(operation, reduction, {&buffer, 1});
            if (!status.ok()) FAIL_CHECK(ToString(status));
          },
          layout.share);
      std::vector<double> exact = FractionsOf(0, count);
      for (int rank = 1; rank < layout.size; ++rank) {
        const std::vector<double> brought = FractionsOf(rank, count);
        for (std::size_t i = 0; i < count; ++i) {
          exact[i] =
              reduction == Reduction::kMax ? std::max(exact[i], brought[i]) : exact[i] + brought[i];
        }
      }
      bool near = true;
      for (std::size_t i = 0; i < count; ++i) {
        if (reduction == Reduction::kMean) exact[i] /= layout.size;
        near = near && std::abs(results[0][i] / exact[i] - 1) < 1e-14;
      }
      CHECK(near);
      for (const auto& result : results) CHECK(result == results[0]);
    }
  }
}

TEST_CASE("narrow numbers are added in float32 and rounded once on hosts of several members",
          "[collectives][process]") {
  const Algorithm algorithm = GENERATE(from_range(kAlgorithms.begin(), kAlgorithms.end()));
  const std::vector<std::uint64_t> hosts = {7, 7, 9};
  // 256 + 1 + 1 and 2,048 + 1 + 1: each 1 alone would be rounded away.
  constexpr std::uint16_t kBfloats[] = {0x4380, 0x3f80, 0x3f80};
  constexpr std::uint16_t kHalves[] = {0x6800, 0x3c00, 0x3c00};
  constexpr std::size_t kCount = 1'000;
  for (std::size_t large = 0; large < hosts.size(); ++large) {
    INFO(NameOf(algorithm) << ", the large numbers are those of rank " << large);
    std::vector<std::vector<std::uint16_t>> bfloats(hosts.size()), halves(hosts.size());
    OverMesh({.costs = CheapestBy(algorithm), .hosts = hosts}, 3,
             [&](int rank, MeshOperations& operations, const Operation& operation) {
               const auto r = static_cast<std::size_t>(rank);
               bfloats[r].assign(kCount, kBfloats[(r + 3 - large) % 3]);
               halves[r].assign(kCount, kHalves[(r + 3 - large) % 3]);
               const ReduceBuffer buffers[] = {
                   {DType::kBfloat16, {kCount}, bfloats[r].data(), bfloats[r].data()},
                   {DType::kFloat16, {kCount}, halves[r].data(), halves[r].data()}};
               const Status status = operations.AllReduce(operation, Reduction::kSum, buffers);
               if (!status.ok()) FAIL_CHECK(ToString(status));
             });
    for (const auto& result : bfloats) CHECK(result == std::vector<std::uint16_t>(kCount, 0x4381));
    for (const auto& result : halves) CHECK(result == std::vector<std::uint16_t>(kCount, 0x6801));
  }
}

TEST_CASE("a link over which bytes trickle keeps nobody beyond the deadline, or the group's end",
          "[collectives][unit]") {
  const bool ends = GENERATE(false, true);
  CAPTURE(ends);
  int ends_of[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends_of) == 0);
  const net::Fd slow(ends_of[1]);
  std::vector<Mesh::Peer> peers(2);
  peers[1] = {.stream = std::make_shared<net::Stream>(net::Fd(ends_of[0])), .name = "rank:1"};
  Mesh mesh(std::move(peers), net::SpinMode::kOff, nullptr, false);
  // Its header, and then a byte whenever there is room for one: never nothing for long.
  const std::vector<std::byte> all(std::size_t{1} << 20);
  const Tag tag{.generation = Generation(1), .operation = 1, .signature = 1};
  std::atomic<bool> over{false};
  std::atomic<bool> stop{false};
  std::thread trickle([&] {
    struct {
      std::uint64_t generation = 1, operation = 1, signature = 1, reserved = 0;
    } ids;
    std::array<std::byte, net::kHeaderBytes> header{};
    net::EncodeHeader(
        {.kind = kDataFrame, .ids = std::bit_cast<net::FrameIds>(ids), .payload_bytes = all.size()},
        header);
    (void)::send(slow.get(), header.data(), header.size(), MSG_NOSIGNAL);
    const TimePoint end = std::chrono::steady_clock::now() + Millis(20'000);
    for (int sent = 0; !stop && std::chrono::steady_clock::now() < end; ++sent) {
      (void)::send(slow.get(), all.data(), 1, MSG_NOSIGNAL);
      std::this_thread::yield();
      if (ends && sent == 1'000) over = true;
    }
  });
  std::vector<std::byte> into(all.size());
  const Incoming incoming{.peer = 1, .into = into};
  const auto limit = ends ? Millis(60'000) : Millis(30);

  const Status status =
      mesh.Exchange(tag, {}, {&incoming, 1},
                    {.over = &over, .deadline = std::chrono::steady_clock::now() + limit});

  stop = true;
  trickle.join();
  CHECK(status.code() == (ends ? StatusCode::kCancelled : StatusCode::kDeadlineExceeded));
  CHECK(mesh.waiting() == std::vector<int>{1});
}

}  // namespace
}  // namespace muster::collectives
