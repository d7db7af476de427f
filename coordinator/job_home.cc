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
    const std::vector<const Member*> workers = world_.members.Up("worker");
    if (workers.empty()) return RefreshReason();
    home_ = workers.front()->task;
  }
  const Member* member = world_.members.Find(*home_);
  const auto found = executors_.find(*home_);
  const bool known =
      member != nullptr && found != executors_.end() && found->second.session == member->session;
  if (member != nullptr && member->state == Member::State::kUp && !known) StartExecutor(*member);
  RefreshReason();
}

void Job::OnHomeGone(const std::string& reason, const std::string& what,
                     const std::vector<ClosureKey>& requeued) {
  // Going back to the same checkpoint leads to the same closure. One that ends its executor every
  // time would do so for ever. Nothing in flight: whatever comes after the last step does it.
  ClosureKey blamed = requeued.empty()
                          ? ClosureKey{v1::CLOSURE_KIND_UNSPECIFIED, record_.steps_done()}
                          : requeued.front();
  if (blamed.kind == v1::CLOSURE_KIND_EVALUATE) blamed.id &= 0xffffffff;  // of any round
  crashes_ = std::exchange(crashed_, blamed) == blamed ? crashes_ + 1 : 1;
  if (reason != "WORKER_LOST" && crashes_ >= world_.options.crash_limit) {
    const std::string where = requeued.empty() ? fmt::format("after step {}", blamed.id)
                                               : fmt::format("closure {}", blamed.id);
    const Status poison = Internal(
        "{} has ended its executor {} ({}): it would do so for ever; the executor's last "
        "lines are in the job's events",
        where, Counted(static_cast<std::uint64_t>(crashes_), "time"), what);
    Tell("POISON_CLOSURE", Message(poison), home_ ? &*home_ : nullptr);
    return Fail(poison);
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
