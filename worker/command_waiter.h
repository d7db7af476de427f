// Who has sent a command and waits for its answer.
#pragma once

#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/messages/status_proto.h"
#include "muster/v1/cluster.pb.h"

namespace muster::worker {

struct CommandWaiter {
  StreamId stream;
  CommandId command;
};

// `io` has Reply(): WorkerIo, LaunchIo. Of a command that has failed the status alone is sent.
template <class Io>
void AnswerCommand(Io& io, CommandWaiter waiter, const Status& status,
                   v1::CommandResult result = {}) {
  result.set_command_id(waiter.command.value());
  if (!status.ok()) result.clear_body();
  SetStatus(status, *result.mutable_status());
  io.Reply(waiter.stream, std::move(result));
}

}  // namespace muster::worker
