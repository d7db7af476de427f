// A driver's dispatcher, workers and parameter servers of a stepwise job under virtual time:
// workers are slow, die between any two calls and leave pushes behind that arrive late. The job
// always ends; what steps read and what comes out is what the rules promise. --seeds N runs more
// seeds, --seed N one.
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>

#include "dispatch/core/closure_dispatcher.h"

#include "ps/apply_pool.h"
#include "ps/job_shards.h"
#include "tests/support/catch.h"
#include "tests/support/seeds.h"
#include "tests/unit/ps/support.h"

namespace muster::ps {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kRows = 7;
constexpr std::int64_t kTableRows = 9;
constexpr std::size_t kTableRow = 2;

// What a closure reads: all of w, and two rows of the table.
struct Read {
  std::vector<float> w;
  std::vector<float> rows;
  bool operator==(const Read&) const = default;
};
std::vector<std::int64_t> RowsOf(std::uint64_t closure) {
  const auto first = static_cast<std::int64_t>(closure * 5 % kTableRows);
  return {first, (first + 1 + static_cast<std::int64_t>(closure % 3)) % kTableRows};
}
// What it computes from that: the order of all additions shows in its bits.
Read GradientOf(std::uint64_t closure, const Read& read) {
  const auto mix = [&](float value, std::size_t i) {
    return std::sin(value + static_cast<float>(closure)) *
           std::ldexp(1.0F, static_cast<int>((closure * 7 + i) % 13) - 6);
  };
  Read gradient = read;
  for (std::size_t i = 0; i < gradient.w.size(); ++i) gradient.w[i] = mix(read.w[i], i);
  for (std::size_t i = 0; i < gradient.rows.size(); ++i) gradient.rows[i] = mix(read.rows[i], i);
  return gradient;
}

// The job's servers, and calls to them as clients make them.
class Servers {
 public:
  Servers(const v1::JobPlan& plan, std::uint32_t count) : plan_(plan) {
    for (std::uint32_t i = 0; i < count; ++i) {
      servers_.push_back(std::move(JobShards::Create(plan, i, "", pool_)).value());
    }
  }

  std::size_t size() const { return servers_.size(); }
  std::optional<std::uint64_t> Missing(std::size_t server, std::uint64_t closure) {
    for (std::uint32_t shard = 0; shard < servers_[server]->shards().size(); ++shard) {
      if (const auto missing = servers_[server]->Missing(shard, ClosureId(closure))) {
        return missing->value();
      }
    }
    return std::nullopt;
  }
  // This server's part of what the closure reads.
  void Pull(std::size_t server, std::uint64_t closure, Read& into) const {
    const auto ids = RowsOf(closure);
    ForEach(server, ids, [&](std::uint32_t shard, const ShardInfo& info, auto own, auto places) {
      if (!info.embedding) {
        const auto whole = std::span(into.w).subspan(static_cast<std::size_t>(info.row_offset),
                                                     static_cast<std::size_t>(info.rows));
        REQUIRE(servers_[server]->ReadDense(shard, whole).ok());
        return;
      }
      std::vector<float> rows(own.size() * kTableRow);
      REQUIRE(servers_[server]->ReadRows(shard, own, rows).ok());
      for (std::size_t k = 0; k < own.size(); ++k) {
        std::copy_n(&rows[k * kTableRow], kTableRow, &into.rows[places[k] * kTableRow]);
      }
    });
  }
  void Push(std::size_t server, PushId id, const Read& gradient) {
    const auto ids = RowsOf(id.closure.value());
    ForEach(server, ids, [&](std::uint32_t shard, const ShardInfo& info, auto own, auto places) {
      Status status;
      if (!info.embedding) {
        const auto whole = std::span(gradient.w)
                               .subspan(static_cast<std::size_t>(info.row_offset),
                                        static_cast<std::size_t>(info.rows));
        status = servers_[server]->ApplyDense(shard, id, whole).status();
      } else {
        std::vector<float> rows;
        for (const std::size_t place : places) {
          rows.insert(rows.end(), &gradient.rows[place * kTableRow],
                      &gradient.rows[place * kTableRow] + kTableRow);
        }
        status = servers_[server]->ApplyRows(shard, id, own, rows).status();
      }
      // An attempt that another one has superseded.
      if (!status.ok()) REQUIRE(status.code() == StatusCode::kAborted);
    });
  }
  // Everything, as an evaluation reads it.
  std::vector<float> All() {
    std::vector<float> all;
    std::vector<std::int64_t> ids;
    for (std::size_t server = 0; server < servers_.size(); ++server) {
      REQUIRE(Missing(server, 0) == std::nullopt);
      for (std::uint32_t shard = 0; shard < servers_[server]->shards().size(); ++shard) {
        const ShardInfo& info = servers_[server]->shards()[shard];
        std::vector<float> values(static_cast<std::size_t>(info.rows * info.row_elements));
        ids.clear();
        for (std::int64_t row = 0; row < info.rows; ++row) ids.push_back(row);
        REQUIRE((info.embedding ? servers_[server]->ReadRows(shard, ids, values)
                                : servers_[server]->ReadDense(shard, values))
                    .ok());
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  }
  std::uint64_t LeastWatermark() const {
    std::uint64_t least = ~std::uint64_t{0};
    for (const auto& server : servers_) {
      v1::PsReport report;
      server->Report(report);
      for (const auto& shard : report.shards()) least = std::min(least, shard.watermark());
    }
    return least;
  }

 private:
  // Calls use(shard, info, own local ids, their places among `ids`) for each shard of the server.
  template <class Use>
  void ForEach(std::size_t server, std::span<const std::int64_t> ids, const Use& use) const {
    for (std::uint32_t shard = 0; shard < servers_[server]->shards().size(); ++shard) {
      const ShardInfo& info = servers_[server]->shards()[shard];
      std::vector<std::int64_t> own;
      std::vector<std::size_t> places;
      for (std::size_t k = 0; k < ids.size(); ++k) {
        if (ids[k] < info.row_offset || ids[k] >= info.row_offset + info.rows) continue;
        own.push_back(ids[k] - info.row_offset);
        places.push_back(k);
      }
      use(shard, info, own, places);
    }
  }

  ApplyPool pool_{0};
  const v1::JobPlan plan_;
  std::vector<std::shared_ptr<JobShards>> servers_;
};

Read Empty() { return {.w = std::vector<float>(kRows), .rows = std::vector<float>(2 * kTableRow)}; }

std::vector<std::uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    rule_ = {
        .gradients = 1 + Upto(4), .staleness = Upto(1) == 0 ? 0 : Upto(3), .last = 5 + Upto(30)};
    // Without the driver's part servers alone hold closures back: still the job ends.
    gated_ = Upto(3) != 0;
    plan_ = MakePlan();
    servers_.emplace(plan_, plan_.ps_size());
    workers_.resize(1 + Upto(3));
    dispatcher_.emplace(dispatch::ClosureDispatcher::Options{
        .epoch = Epoch(1),
        .staleness = gated_ ? rule_.staleness : StepRule::kUnbounded,
        .errors = {}});
  }

  void Run() {
    for (std::uint64_t closure = 1; closure <= rule_.last; ++closure) {
      (void)dispatcher_->Schedule(1, {}, {}, rule_.StepOf(closure));
    }
    int rounds = 0;
    while (!dispatcher_->idle() && ++rounds < 200'000) {
      Pump();
      if (events_.empty()) break;
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.run();
    }
    INFO("settled " << dispatcher_->settled().value() << " of " << rule_.last << ", G "
                    << rule_.gradients << ", staleness " << rule_.staleness
                    << (gated_ ? "" : ", not gated"));
    REQUIRE(dispatcher_->idle());
    REQUIRE(dispatcher_->settled() == ClosureId(rule_.last));
    REQUIRE_FALSE(dispatcher_->failed());
    // What is still on its way comes too late for everything.
    const auto ended = servers_->All();
    for (; !events_.empty(); events_.pop()) events_.top().run();
    const auto values = servers_->All();
    REQUIRE(BitsOf(values) == BitsOf(ended));
    if (gated_ && rule_.synchronous()) REQUIRE(BitsOf(values) == BitsOf(Serial()));
    // The driver gives out nothing that has to wait.
    if (gated_) REQUIRE(waits_ == 0);
  }

 private:
  struct Event {
    TimePoint at;
    std::uint64_t order = 0;
    std::function<void()> run;
    bool operator>(const Event& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
  struct Work {
    std::uint64_t closure = 0;
    Attempt attempt;
  };
  struct Worker {
    std::optional<dispatch::WorkerHandle> handle;
    TimePoint back_at;
    std::uint64_t life = 0;
    std::deque<Work> assigned;
    bool busy = false;
  };

  std::uint64_t Upto(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n)(random_);
  }
  void After(std::chrono::milliseconds time, std::function<void()> run) {
    events_.push({now_ + time, ++order_, std::move(run)});
  }
  std::chrono::milliseconds Delay() {
    return std::chrono::milliseconds(Upto(19) == 0 ? Upto(3'000) : Upto(20));
  }

  v1::JobPlan MakePlan() {
    auto table = Variable("table", {kTableRows, static_cast<std::int64_t>(kTableRow)},
                          v1::INITIALIZER_KIND_UNIFORM, 0.5);
    table.set_embedding(true);
    auto optimizer = Sgd(0.1);
    if (Upto(1) == 0) optimizer.set_kind(v1::OPTIMIZER_KIND_ADAM);
    auto plan = Plan({Variable("w", {kRows}, v1::INITIALIZER_KIND_UNIFORM, 0.5), table}, optimizer,
                     1 + static_cast<std::uint32_t>(Upto(2)));
    plan.set_total_steps(rule_.last);
    plan.mutable_steps()->set_gradients(rule_.gradients);
    plan.mutable_steps()->set_staleness(rule_.staleness);
    return plan;
  }

  // One worker that makes one closure after the other, on servers of its own.
  std::vector<float> Serial() {
    Servers servers(plan_, plan_.ps_size());
    for (std::uint64_t closure = 1; closure <= rule_.last; ++closure) {
      Read read = Empty();
      for (std::size_t server = 0; server < servers.size(); ++server) {
        REQUIRE(servers.Missing(server, closure) == std::nullopt);
        servers.Pull(server, closure, read);
      }
      const Read gradient = GradientOf(closure, read);
      for (std::size_t server = 0; server < servers.size(); ++server) {
        servers.Push(server, {ClosureId(closure), Attempt(1)}, gradient);
      }
    }
    return servers.All();
  }

  void Pump() {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (worker.handle || worker.back_at > now_) continue;
      worker.handle =
          dispatcher_->AddWorker("worker:" + std::to_string(i), Incarnation(++order_), 1);
      const std::uint64_t life = ++worker.life;
      if (kills_ < 12 && Upto(2) != 0) {
        ++kills_;
        After(std::chrono::milliseconds(Upto(400)), [this, i, life] { Kill(i, life); });
      }
    }
    dispatcher_->Pump(now_, [&](dispatch::WorkerHandle handle, const dispatch::Assignment& one) {
      for (std::size_t i = 0; i < workers_.size(); ++i) {
        if (workers_[i].handle != handle) continue;
        workers_[i].assigned.push_back({one.closure.value(), one.attempt});
        Begin(i);
      }
    });
    // A hold ends by itself.
    if (const TimePoint next = dispatcher_->next_timer();
        events_.empty() && next != TimePoint::max()) {
      events_.push({next, ++order_, [] {}});
    }
  }

  void Kill(std::size_t i, std::uint64_t life) {
    Worker& worker = workers_[i];
    if (worker.life != life || !worker.handle) return;
    (void)dispatcher_->RemoveWorker(*worker.handle, Unavailable("killed"));
    ++worker.life;
    worker.handle.reset();
    worker.assigned.clear();
    worker.busy = false;
    const auto away = std::chrono::milliseconds(Upto(300));
    worker.back_at = now_ + away;
    After(away, [] {});
  }

  // The next closure of a worker that has nothing to do.
  void Begin(std::size_t i) {
    Worker& worker = workers_[i];
    if (worker.busy || worker.assigned.empty()) return;
    worker.busy = true;
    const auto run = std::make_shared<Run_>();
    run->work = worker.assigned.front();
    run->worker = i;
    run->life = worker.life;
    run->read = Empty();
    worker.assigned.pop_front();
    After(Delay(), [this, run] { PullFrom(run, 0, now_ + 7s); });
  }

  struct Run_ {
    Work work;
    std::size_t worker = 0;
    std::uint64_t life = 0;
    Read read;
    Read gradient;
  };
  using RunPointer = std::shared_ptr<Run_>;

  bool Dead(const RunPointer& run) const { return workers_[run->worker].life != run->life; }

  // A call that has to wait looks again when something may have changed, and ends in time.
  bool Waits(const RunPointer& run, std::size_t server, TimePoint deadline,
             const std::function<void()>& again) {
    if (!servers_->Missing(server, run->work.closure)) return false;
    ++waits_;
    if (now_ >= deadline) {
      End(run, Unavailable("waited in vain"));
    } else {
      After(std::min(50ms, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now_)),
            again);
    }
    return true;
  }

  void PullFrom(const RunPointer& run, std::size_t server, TimePoint deadline) {
    if (Dead(run)) return;
    if (Waits(run, server, deadline, [=, this] { PullFrom(run, server, deadline); })) return;
    if (rule_.bounded()) {
      REQUIRE(servers_->LeastWatermark() >= (gated_ ? rule_.NeededFor(run->work.closure) : 0));
    }
    servers_->Pull(server, run->work.closure, run->read);
    if (server + 1 < servers_->size()) {
      return After(Delay(), [=, this] { PullFrom(run, server + 1, now_ + 7s); });
    }
    run->gradient = GradientOf(run->work.closure, run->read);
    if (gated_ && rule_.synchronous()) CheckRead(*run);
    After(Delay(), [=, this] { PushTo(run, 0, now_ + 7s); });
  }

  // All executions of a closure read the same.
  void CheckRead(const Run_& run) {
    const auto [first, fresh] = reads_.try_emplace(run.work.closure, run.read);
    if (!fresh) REQUIRE(first->second == run.read);
  }

  void PushTo(const RunPointer& run, std::size_t server, TimePoint deadline) {
    // A push that was sent arrives, whatever has become of its worker meanwhile.
    if (Dead(run) && Upto(1) == 0) return;
    if (Waits(run, server, deadline, [=, this] { PushTo(run, server, deadline); })) return;
    servers_->Push(server, {ClosureId(run->work.closure), run->work.attempt}, run->gradient);
    if (Dead(run)) return;
    if (server + 1 < servers_->size()) {
      return After(Delay(), [=, this] { PushTo(run, server + 1, now_ + 7s); });
    }
    After(Delay(), [=, this] { End(run, Ok()); });
  }

  void End(const RunPointer& run, const Status& status) {
    if (Dead(run)) return;
    Worker& worker = workers_[run->worker];
    worker.busy = false;
    // As an executor tells it: nobody's error.
    const dispatch::ClosureError error{.status = status, .origin = dispatch::Origin::kWorker};
    (void)dispatcher_->OnResult(*worker.handle,
                                {.closure = ClosureId(run->work.closure),
                                 .attempt = run->work.attempt,
                                 .run = 1ms,
                                 .error = status.ok() ? nullptr : &error},
                                now_);
    Begin(run->worker);
  }

  std::mt19937_64 random_;
  StepRule rule_;
  bool gated_ = true;
  v1::JobPlan plan_;
  std::optional<Servers> servers_;
  std::optional<dispatch::ClosureDispatcher> dispatcher_;
  std::vector<Worker> workers_;
  std::map<std::uint64_t, Read> reads_;
  TimePoint now_{1h};
  std::uint64_t order_ = 0;
  std::uint64_t waits_ = 0;
  int kills_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

TEST_CASE(
    "a stepwise job ends whoever dies, and a synchronous one with the bits of one worker alone",
    "[ps][sim]") {
  muster::testing::EachSeed(1'200, [](std::uint64_t seed) { World(seed).Run(); });
}

}  // namespace
}  // namespace muster::ps
