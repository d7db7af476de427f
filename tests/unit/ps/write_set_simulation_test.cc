// Write sets of closures whose processes stall, die, come back and repeat, over a network that
// loses, doubles and reorders: each flush counts once on each shard. --seeds N runs more seeds,
// --seed N one.
#include <deque>
#include <random>
#include <vector>

#include "muster/v1/variables.pb.h"
#include "ps/apply_pool.h"
#include "ps/program_space.h"
#include "tests/support/catch.h"
#include "tests/support/seeds.h"

namespace muster::ps {
namespace {

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), closures_(20 + Upto(40)) {
    for (std::size_t s = 0; s < 2; ++s) {
      servers_.push_back(std::make_unique<ProgramSpace>(
          "job-1", ProgramTime{Epoch(1), Incarnation(1)}, SpaceId(s + 1), pool_));
      for (std::uint32_t shard = 0; shard < kShards; ++shard) {
        v1::CreateShard create;
        create.mutable_variable()->set_id(shard + 1);
        create.mutable_variable()->set_name(fmt::format("v{}", shard));
        create.mutable_variable()->set_dtype(v1::DTYPE_INT64);
        create.mutable_variable()->add_shards()->set_rows(1);
        REQUIRE(servers_[s]->Create(create, {}).value() == shard);
      }
    }
    expected_.assign(servers_.size() * kShards, 0);
    for (Closure& closure : closures_) {
      closure.flushes.resize(1 + Upto(3));
      for (auto& flush : closure.flushes) {
        for (std::size_t place = 0; place < expected_.size(); ++place) {
          if (Upto(2) != 0) continue;
          flush.push_back(place);
          ++expected_[place];
        }
      }
    }
  }

  void Run() {
    for (int step = 0; step < 1'000'000 && settled_ < closures_.size(); ++step) {
      if (Upto(3) != 0 && !network_.empty()) {
        Deliver();
      } else {
        Act();
      }
    }
    REQUIRE(settled_ == closures_.size());
    while (!network_.empty()) Deliver();  // what zombies have sent
    for (std::size_t place = 0; place < expected_.size(); ++place) {
      std::int64_t value = 0;
      REQUIRE(
          servers_[place / kShards]
              ->Read(place % kShards, 0, false, {}, std::as_writable_bytes(std::span(&value, 1)))
              .ok());
      REQUIRE(value == expected_[place]);
    }
  }

 private:
  static constexpr std::uint32_t kShards = 3;

  // One execution of a closure.
  struct Process {
    std::uint64_t attempt = 0;
    std::size_t flush = 0;  // that it sends now
    std::vector<bool> acknowledged{false, false};
  };
  struct Closure {
    // The shards that each flush adds one to.
    std::vector<std::vector<std::size_t>> flushes;
    std::uint64_t attempts = 0;
    // The last one counts; those before it are zombies.
    std::vector<Process> processes;
    bool done = false;
  };
  struct Frame {
    std::size_t closure = 0;
    std::uint64_t attempt = 0;
    std::size_t flush = 0;
    std::size_t server = 0;
    std::uint64_t settled = 0;
  };

  std::size_t Upto(std::size_t most) { return random_() % (most + 1); }

  // Some process starts, sends (again) or is given up for a new one.
  void Act() {
    const std::size_t at = std::min(settled_ + Upto(9), closures_.size() - 1);
    Closure& closure = closures_[at];
    if (closure.processes.empty() || (!closure.done && Upto(19) == 0)) {
      closure.processes.push_back({.attempt = ++closure.attempts});
      return;
    }
    const std::size_t who =
        closure.processes.size() - 1 - (Upto(3) == 0 ? Upto(closure.processes.size() - 1) : 0);
    const Process& process = closure.processes[who];
    if (process.flush >= closure.flushes.size()) return;
    for (std::size_t copies = 1 + Upto(1); copies > 0; --copies) {
      network_.push_back({.closure = at,
                          .attempt = process.attempt,
                          .flush = process.flush,
                          .server = Upto(1),
                          .settled = Upto(settled_)});
    }
  }

  // Any frame, in any order; it or its answer may be lost.
  void Deliver() {
    std::swap(network_[Upto(network_.size() - 1)], network_.back());
    const Frame frame = network_.back();
    network_.pop_back();
    if (Upto(4) == 0) return;
    Closure& closure = closures_[frame.closure];
    std::vector<ShardWrite> writes;
    for (const std::size_t place : closure.flushes[frame.flush]) {
      if (place / kShards != frame.server) continue;
      writes.push_back({.shard = static_cast<std::uint32_t>(place % kShards),
                        .op = static_cast<std::uint8_t>(ElementOp::kAdd),
                        .values = std::as_bytes(std::span(&kOne, 1))});
    }
    ProgramSpace& server = *servers_[frame.server];
    server.Settle(ClosureId(frame.settled));
    if (Upto(9) == 0) server.Trim();
    std::vector<bool> outcomes;
    const Status status = server.Write({.closure = ClosureId(frame.closure + 1),
                                        .attempt = Attempt(frame.attempt),
                                        .flush = frame.flush + 1},
                                       writes, outcomes);
    if (!status.ok()) {
      REQUIRE(status.code() == StatusCode::kAborted);
      return;
    }
    if (Upto(4) == 0) return;
    for (Process& process : closure.processes) {
      if (process.attempt == frame.attempt && process.flush == frame.flush) {
        process.acknowledged[frame.server] = true;
        Advance(closure, process);
      }
    }
  }

  // A flush that both servers have is followed by the next; a closure's last attempt ends it.
  void Advance(Closure& closure, Process& process) {
    if (!process.acknowledged[0] || !process.acknowledged[1]) return;
    process.acknowledged = {false, false};
    if (++process.flush < closure.flushes.size()) return;
    if (&process == &closure.processes.back()) closure.done = true;
    while (settled_ < closures_.size() && closures_[settled_].done) ++settled_;
  }

  static constexpr std::int64_t kOne = 1;
  std::mt19937_64 random_;
  ApplyPool pool_{0};
  std::vector<std::unique_ptr<ProgramSpace>> servers_;
  std::vector<Closure> closures_;
  std::vector<std::int64_t> expected_;
  std::vector<Frame> network_;
  std::size_t settled_ = 0;
};

TEST_CASE("each write set counts once on each shard whatever is lost, doubled or late",
          "[ps][sim]") {
  muster::testing::EachSeed(1'000, [](std::uint64_t seed) { World(seed).Run(); });
}

}  // namespace
}  // namespace muster::ps
