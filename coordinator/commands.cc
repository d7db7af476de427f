#include "coordinator/commands.h"

#include <utility>
#include <vector>

namespace muster::coordinator {

Commands::~Commands() {
  for (const auto& [id, pending] : pending_) (void)scheduler_.Cancel(pending.timer);
}

void Commands::Send(const Member& member, v1::Command command, Millis limit, Reply reply) {
  last_id_ = last_id_.Next();
  const CommandId id = last_id_;
  command.set_id(id.value());
  Pending& pending = pending_[id];
  pending.session = member.session;
  pending.task = member.task;
  pending.reply = std::move(reply);
  pending.limit = limit;
  SetTimer(id, pending);
  v1::CoordinatorMessage message;
  *message.mutable_command() = std::move(command);
  member.link->Send(message);
}

void Commands::SetTimer(CommandId id, Pending& pending) {
  const Millis limit = pending.limit;
  pending.timer = scheduler_.RunAfter(limit, [this, id, task = pending.task, limit] {
    Answer(id, DeadlineExceeded("{} has not answered for {} s", task.ToString(),
                                static_cast<double>(limit.count()) / 1000));
  });
}

void Commands::Renew(SessionId session, CommandId id) {
  const auto found = pending_.find(id);
  if (found == pending_.end() || found->second.session != session) return;
  (void)scheduler_.Cancel(found->second.timer);
  SetTimer(id, found->second);
}

void Commands::OnResult(SessionId session, v1::CommandResult result) {
  const CommandId id(result.command_id());
  const auto found = pending_.find(id);
  if (found == pending_.end() || found->second.session != session) return;
  if (result.status().code() != 0) {
    Answer(id,
           MakeStatus(static_cast<StatusCode>(result.status().code()), result.status().message()));
  } else {
    Answer(id, std::move(result));
  }
}

void Commands::OnSessionEnded(SessionId session, const std::string& why) {
  std::vector<CommandId> ids;
  for (const auto& [id, pending] : pending_) {
    if (pending.session == session) ids.push_back(id);
  }
  for (const CommandId id : ids) Answer(id, Unavailable("{}", why));
}

void Commands::Answer(CommandId id, Result<v1::CommandResult> result) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  Reply reply = std::move(found->second.reply);
  (void)scheduler_.Cancel(found->second.timer);
  pending_.erase(found);
  reply(std::move(result));
}

}  // namespace muster::coordinator
