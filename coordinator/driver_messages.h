// What the coordinator tells drivers of every kind of job about their executors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/membership.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/program.pb.h"

namespace muster::coordinator {

// A ready executor, by its number.
inline void AddWorker(const TaskId& task, Incarnation number, const v1::DataEndpoint& endpoint,
                      v1::ProgramMembers& members) {
  v1::ProgramWorker& worker = *members.add_workers();
  *worker.mutable_task() = ToProto(task);
  worker.set_incarnation(number.value());
  *worker.mutable_endpoint() = endpoint;
}

// Which closures ran when it ended, where its daemon knows.
inline void SetRunning(const v1::ExecutorEvent& event, v1::ExecutorVerdict& verdict) {
  if (!event.running_known()) return;
  verdict.set_running_known(true);
  *verdict.mutable_running() = event.running();
}

// Who has brought its end about. One that stood still may have been stopped by others, though it
// was its daemon that killed it.
inline v1::ExecutorVerdict::Cause CauseOf(const v1::ExecutorEvent& event) {
  return event.from_outside() ? v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE
         : event.stuck()      ? v1::ExecutorVerdict::CAUSE_STUCK
                              : v1::ExecutorVerdict::CAUSE_CRASHED;
}

// How it has ended.
inline v1::ExecutorVerdict VerdictOf(const TaskId& task, Incarnation number,
                                     v1::ExecutorVerdict::Cause cause, const std::string& how,
                                     const std::vector<std::string>& lines) {
  v1::ExecutorVerdict verdict;
  *verdict.mutable_task() = ToProto(task);
  verdict.set_incarnation(number.value());
  verdict.set_cause(cause);
  verdict.set_how(how);
  verdict.mutable_last_lines()->Assign(lines.begin(), lines.end());
  return verdict;
}

}  // namespace muster::coordinator
