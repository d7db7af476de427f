#include "collectives/process/mesh_operations.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/socket.h>

#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

// Runs member(rank, operations) for members that are linked by socket pairs, each on a thread.
void OverMesh(const MeshOperations::Options& options, int size,
              const std::function<void(int, MeshOperations&, const Operation&)>& member) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<std::vector<Mesh::Peer>> peers(n);
  for (auto& own : peers) own.resize(n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      int ends[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
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
      MeshOperations operations(mesh, r, options);
      member(r, operations,
             {.tag = {.generation = 1, .operation = 1, .signature = 1},
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

TEST_CASE("whichever algorithm the costs choose, members get the mean of all",
          "[collectives][process]") {
  // Free rounds and dear messages, dear bytes, dear rounds.
  const std::pair<Costs, Algorithm> cases[] = {
      {{.round = 0, .message = 1, .byte = 0, .reduced_byte = 0}, Algorithm::kDoubling},
      {{.round = 0, .message = 1, .byte = 1, .reduced_byte = 0}, Algorithm::kHalvingDoubling},
      {{.round = 1, .message = 0, .byte = 1e-9, .reduced_byte = 0}, Algorithm::kDirect}};
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

}  // namespace
}  // namespace muster::collectives
