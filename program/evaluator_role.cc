#include "program/evaluator_role.h"

#include <cstdio>
#include <utility>

#include "program/executor_role.h"
#include <fmt/core.h>
#include <unistd.h>

#include "common/base/utf8.h"
#include "common/messages/status_proto.h"

namespace muster::program::internal {

Status EvaluatorRuntime::Begin(const Options& options) {
  v1::FromProgram message;
  *message.mutable_ready() = Describe(options);
  MUSTER_TRY(pipe_.Send(message));
  listener_ = std::thread([this] { Listen(); });
  return Ok();
}

void EvaluatorRuntime::Listen() {
  for (;;) {
    v1::ToProgram message;
    const Status status = pipe_.Receive(message);
    if (!status.ok()) {
      fmt::print(stderr, "muster: the coordinator is gone, this evaluator ends: {}\n",
                 Message(status));
      (void)std::fflush(stderr);
      ::_exit(1);
    }
    if (message.has_stop()) (void)stop_.request_stop();
  }
}

void EvaluatorRuntime::Evaluated(const std::string& checkpoint,
                                 const std::map<std::string, double>& values) {
  v1::FromProgram message;
  v1::ProgramEvaluation& evaluation = *message.mutable_evaluation();
  // Else the whole message would be refused, and the pipe with it.
  evaluation.set_checkpoint(ToValidUtf8(checkpoint));
  auto& named = *evaluation.mutable_values();
  for (const auto& [name, value] : values) named[ToValidUtf8(name)] = value;
  (void)pipe_.Send(message);  // the listener learns that the daemon has gone
}

void EvaluatorRuntime::End(const Status& status) {
  const MutexLock lock(mutex_);
  if (std::exchange(ended_, true)) return;
  v1::FromProgram message;
  SetStatus(status, *message.mutable_end()->mutable_status());
  (void)pipe_.Send(message);
}

}  // namespace muster::program::internal
