// Jobs without parameter servers: one worker's executor holds the variables.
#include <algorithm>
#include <cctype>

#include "common/base/words.h"
#include "coordinator/job.h"
#include "coordinator/plan.h"

namespace muster::coordinator {

bool Job::HasHome() const { return !NeedsPs(record_.job().spec()); }

void Job::StartHome() {
  if (!home_) {
    for (const Member* worker : world_.members.Up("worker")) {
      if (IsPausing(worker->task)) continue;
      home_ = worker->task;
      break;
    }
    if (!home_) return RefreshReason();
  }
  const Member* member = world_.members.Find(*home_);
  const auto found = executors_.find(*home_);
  const bool known =
      member != nullptr && found != executors_.end() && found->second.session == member->session;
  if (member != nullptr && member->state == Member::State::kUp && !known) StartExecutor(*member);
  RefreshReason();
}

void Job::OnHomeGone(const std::string& reason, const std::string& what,
                     const std::vector<ClosureKey>& requeued, Dispatcher::Cause cause) {
  // Going back to the same checkpoint leads to the same closure. One that ends its executor every
  // time would do so for ever. Nothing in flight: whatever comes after the last step does it.
  ClosureKey blamed = requeued.empty()
                          ? ClosureKey{v1::CLOSURE_KIND_UNSPECIFIED, record_.steps_done()}
                          : requeued.front();
  if (blamed.kind == v1::CLOSURE_KIND_EVALUATE) blamed.id &= 0xffffffff;  // of any round
  const bool same = std::exchange(crashed_, blamed) == blamed;
  crashes_ = same ? crashes_ + 1 : 1;
  own_crashes_ = (same ? own_crashes_ : 0) + (cause == Dispatcher::Cause::kOutside ? 0 : 1);
  if (reason != "WORKER_LOST" &&
      (own_crashes_ >= world_.options.crash_limit || crashes_ >= world_.options.kill_limit)) {
    const std::string where = requeued.empty() ? fmt::format("after step {}", blamed.id)
                                               : fmt::format("closure {}", blamed.id);
    return GiveUp(
        {blamed, fmt::format("{} has ended its executor {} ({})", where,
                             Counted(static_cast<std::uint64_t>(crashes_), "time"), what)},
        home_.value_or(TaskId{}), {});
  }
  EndView(reason, what);
}

bool Job::HomeReplaced(const TaskId& task, const v1::ExecutorEvent& event) {
  if (!HasHome() || home_ != task || event.kind() == v1::ExecutorEvent::KIND_EXITED) return false;
  const std::uint32_t before = std::exchange(home_pid_, event.pid());
  return before != 0 && before != event.pid();
}

std::string Job::WhereVariablesLive() const {
  if (!HasHome()) {
    return Counted(static_cast<std::uint64_t>(record_.plan().ps_size()), "parameter server");
  }
  const v1::StrategySpec& strategy = record_.job().spec().strategy();
  std::string kind = v1::StrategyKind_Name(strategy.kind()).substr(sizeof("STRATEGY_KIND_") - 1);
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::uint32_t devices = std::max(1u, strategy.devices());
  return fmt::format("{} of {} ({})", Counted(devices, "device"),
                     home_ ? home_->ToString() : "a worker", kind);
}

}  // namespace muster::coordinator
