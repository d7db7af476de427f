#include "strategy/multi_worker_mirrored/internal/elastic_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "collectives/queued_group.h"
#include "common/telemetry/log.h"
#include "strategy/base/internal/raise.h"

namespace muster::internal {
namespace {

void Check(const ElasticOptions& options, int workers) {
  if (options.steps == 0) raise(InvalidArgument("run_elastic(): steps is 0: how many are there?"));
  if (options.min_workers < 1 || options.min_workers > workers) {
    raise(
        InvalidArgument("run_elastic(): min_workers is {}: 1 to {} are allowed, which the "
                        "cluster can have",
                        options.min_workers, workers));
  }
  const int shards = options.logical_shards;
  if (shards < workers || shards < 1 || !std::has_single_bit(static_cast<unsigned>(shards))) {
    raise(
        InvalidArgument("run_elastic(): logical_shards is {}: it must be a power of two, and at "
                        "least {}, the number of workers that the cluster can have",
                        shards, workers));
  }
}

// Spread over all 64 bits (SplitMix64), so that near steps have far seeds.
std::uint64_t SeedOf(std::uint64_t seed, std::uint64_t step) {
  std::uint64_t mixed = seed + step * 0x9e3779b97f4a7c15ULL;
  mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebULL;
  return mixed ^ (mixed >> 31U);
}

// What all workers of a run must have alike.
std::uint64_t SignatureOf(const ElasticState& state, const ElasticOptions& options) {
  std::uint64_t signature = SeedOf(state.signature(), options.steps);
  signature = SeedOf(signature, options.seed);
  return SeedOf(signature, static_cast<std::uint64_t>(options.logical_shards));
}

}  // namespace

ElasticRun::ElasticRun(Membership membership, TrackedValues tracked, std::uint64_t first_step,
                       const ElasticOptions& options)
    : membership_(std::move(membership)), options_(options), state_(std::move(tracked)) {
  const WorkerCluster& cluster = membership_.cluster;
  Check(options_, cluster.most);
  std::vector<collectives::GroupMember> members = cluster.members;
  // Alone nobody asks, but the rules are the same.
  if (members.empty()) members.push_back({.task = "worker:0", .address = "127.0.0.1:0"});
  const auto workers = static_cast<int>(members.size());
  std::function<Result<collectives::WorkersNow>()> now;
  if (!cluster.book.empty()) now = [cluster] { return workers_now(cluster); };
  groups_ = value_of(collectives::ElasticGroups::Create(
      {.rules = {.self = cluster.rank,
                 .workers = workers,
                 .min_workers = std::max(options_.min_workers, cluster.least),
                 .start_within = options_.start_within},
       .workers = std::move(members),
       .now = std::move(now),
       .key = membership_.secret.key,
       .tls = membership_.secret.tls,
       .signature = SignatureOf(state_, options_),
       .first_step = first_step,
       .wait_page = membership_.wait_page,
       .costs = membership_.costs}));
}

ElasticRun::~ElasticRun() = default;

void ElasticRun::Leave() {
  membership_.left();
  group_.reset();
  workers_.reset();
}

bool ElasticRun::GroupOver() const {
  if (workers_ == nullptr) return false;
  switch (workers_->failure().code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kAborted:
    case StatusCode::kCancelled:
    case StatusCode::kDataLoss:  // a checksum of one link: what it brought was not used
      return true;
    default:
      return false;
  }
}

// What the group decides about the step that this worker was in: it counts after all, or what it
// changed is undone; or this worker gets the state of those who have come further.
void ElasticRun::Join() {
  Leave();
  while (true) {
    const std::uint64_t committed = groups_->committed();
    auto next = value_of(groups_->Form(options_.regroup_within));
    const collectives::Formation& formation = next.formation;
    rank_ = next.rank;
    const bool fresh = formation.Fresh(rank_);
    // The vote may have come out well though this worker did not hear of it.
    const bool counts = !fresh && changed_ && formation.target > committed;
    if (!fresh && changed_ && !counts) state_.Undo();
    if (!fresh) changed_ = false;
    const auto workers = formation.members.size();
    if (next.group != nullptr) {
      workers_ = std::make_shared<WorkerGroup>(std::move(next.group), membership_.call_within,
                                               WorkerGroup::Abandoned::kOne);
      group_ = std::make_shared<collectives::QueuedGroup>(workers_);
    }
    membership_.regroup(group_);
    if (counts && options_.committed != nullptr) options_.committed(formation.target);
    try {
      if (group_ != nullptr && formation.AnyFresh()) {
        // What is half there when the donor is lost is not used: this worker gets it anew.
        state_.Stream(*group_, formation.donor, fresh);
      }
    } catch (const Error& error) {
      if (!GroupOver()) throw;
      log::Info("the next group was lost while it gave its state to new workers: {}", error.what());
      Leave();
      continue;
    }
    if (fresh) {
      changed_ = false;
      groups_->HaveState(formation);
    }
    state_.Spread();
    if (group_ != nullptr) state_.Keep();
    log::Info("{} after step {}: worker {} of {}{}", fresh ? "joined the run" : "goes on",
              formation.target, rank_, workers,
              fresh ? fmt::format(", with the state of worker {}", formation.donor) : "");
    return;
  }
}

bool ElasticRun::Commit(std::uint64_t step) {
  groups_->Prepared(step);
  std::array<std::int64_t, 2> mine{static_cast<std::int64_t>(step), groups_->SomebodyWaits()};
  std::array<std::int64_t, 2> all = mine;
  if (group_ != nullptr) {
    const collectives::ReduceBuffer vote{
        .type = DType::kInt64, .shape = {2}, .in = mine.data(), .out = all.data()};
    raise_unless_ok(group_->AllReduce(collectives::Reduction::kMax, {&vote, 1}));
  }
  groups_->Committed(step);
  changed_ = false;
  return all[1] != 0;
}

bool ElasticRun::Try(const Step& step) {
  const std::uint64_t number = groups_->committed() + 1;
  const int workers = group_ == nullptr ? 1 : group_->size();
  bool others = false;
  try {
    torch::manual_seed(SeedOf(options_.seed, number));
    changed_ = true;
    step(number, rank_, workers);
    state_.Settle();
    others = Commit(number);
  } catch (...) {
    if (!GroupOver()) throw;
    log::Info("the group is over in step {}: {}", number, Message(workers_->failure()));
    return false;
  }
  if (options_.committed != nullptr) options_.committed(number);
  if (others) return false;
  if (group_ != nullptr) state_.Keep();
  return true;
}

std::uint64_t ElasticRun::Run(const Step& step) {
  try {
    Join();
    while (groups_->committed() < options_.steps) {
      if (!Try(step)) Join();
    }
  } catch (...) {
    // The others go on without this worker: its port must not answer for it.
    groups_.reset();
    Leave();
    throw;
  }
  groups_->Finish();
  return groups_->committed();
}

}  // namespace muster::internal
