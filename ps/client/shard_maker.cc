#include "ps/client/shard_maker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "ps/client/encode.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

bool IsNoAnswer(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded || status.code() == StatusCode::kDataLoss;
}

}  // namespace

TimePoint ShardMaker::After(std::uint64_t bytes) const {
  return std::chrono::steady_clock::now() + timeout_ + TimeFor(bytes);
}

Result<std::uint32_t> ShardMaker::MakeOne(std::size_t server, const v1::CreateShard& create,
                                          std::span<const std::byte> value, const ProgramIds& ids) {
  std::uint32_t shard = 0;
  MUSTER_TRY(servers_.Ask(server, ProgramVerb::kCreate, ids, Encode(create), value,
                          After(value.size()), [&](std::span<const std::byte> answer) -> Status {
                            if (answer.size() != sizeof(shard)) {
                              return DataLoss("variable {}: {} bytes of answer",
                                              create.variable().name(), answer.size());
                            }
                            std::memcpy(&shard, answer.data(), sizeof(shard));
                            return Ok();
                          }));
  return shard;
}

// Part after part, each on its server. When one fails, those that are made are deleted again, and
// remembered for as long as a server does not answer.
Status ShardMaker::Make(v1::CreateShard create, ShardValues values, VariableInfo& variable,
                        const ProgramIds& ids) {
  for (std::size_t i = 0; i < variable.shards.size(); ++i) {
    ShardRef& shard = variable.shards[i];
    const auto part = static_cast<std::uint32_t>(i);
    create.set_part(part);
    const auto index = static_cast<std::uint32_t>(shard.server);
    MUSTER_TRY_ASSIGN(const std::size_t server, servers_.Find(index));
    const ShardValue value = values(variable, shard);
    if (!value.ok()) {
      Undo(std::move(create), part, {}, ids);
      return value.status();
    }
    const auto made = MakeOne(server, create, *value, ids);
    if (made.ok()) {
      shard.wire = *made;
      continue;
    }
    std::vector<std::uint32_t> away;
    if (IsNoAnswer(made.status())) away.push_back(index);
    // The one that failed, too: what a server refuses may be a repeat of what it has done, whose
    // answer was lost.
    Undo(std::move(create), part + 1, std::move(away), ids);
    return made.status();
  }
  return Ok();
}

void ShardMaker::Undo(v1::CreateShard create, std::uint32_t parts, std::vector<std::uint32_t> away,
                      const ProgramIds& ids) {
  if (parts == 0) return;
  Unmade unmade{.create = std::move(create), .parts = {}};
  for (std::uint32_t one = 0; one < parts; ++one) unmade.parts.push_back(one);
  {
    // Before they are deleted, which takes its time: who makes one of the name meanwhile has to
    // know.
    const MutexLock lock(mutex_);
    unmade_.push_back(unmade);
  }
  (void)DeleteParts(unmade, away, ids);
}

// Whether it is there does not matter: it is made once more, which makes no second one, so that it
// can be deleted, which the server remembers.
Status ShardMaker::DeletePart(v1::CreateShard& create, std::uint32_t part, const ProgramIds& ids) {
  create.set_part(part);
  create.set_value(false);
  create.mutable_initializer()->Clear();
  create.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ZEROS);
  MUSTER_TRY_ASSIGN(const std::size_t server,
                    servers_.Find(create.variable().shards(static_cast<int>(part)).ps_index()));
  const auto made = MakeOne(server, create, {}, ids);
  if (!made.ok()) return IsNoAnswer(made.status()) ? made.status() : Ok();
  v1::ShardList list;
  list.add_shards(*made);
  const Status deleted = servers_.Ask(server, ProgramVerb::kDelete, ids, Encode(list), {}, After(0),
                                      [](std::span<const std::byte>) { return Ok(); });
  return IsNoAnswer(deleted) ? deleted : Ok();
}

// Two threads that do the same do no harm: a part that is gone is gone.
Status ShardMaker::DeleteParts(Unmade& unmade, std::vector<std::uint32_t>& not_asked,
                               const ProgramIds& ids) {
  Status first;
  std::erase_if(unmade.parts, [&](std::uint32_t part) {
    const std::uint32_t server = unmade.create.variable().shards(static_cast<int>(part)).ps_index();
    if (std::ranges::find(not_asked, server) != not_asked.end()) return false;
    const Status deleted = DeletePart(unmade.create, part, ids);
    if (deleted.ok()) return true;
    if (first.ok()) first = deleted;
    not_asked.push_back(server);
    return false;
  });
  const MutexLock lock(mutex_);
  const auto at = std::ranges::find(unmade_, unmade.create.variable().id(),
                                    [](const Unmade& one) { return one.create.variable().id(); });
  if (at != unmade_.end()) {
    at->parts = std::move(unmade.parts);
    if (at->parts.empty()) unmade_.erase(at);
  }
  return first;
}

Status ShardMaker::DeleteUnmade(const std::string& name, const ProgramIds& ids) {
  const auto due = [&](const Unmade& one) {
    return name.empty() || one.create.variable().name() == name;
  };
  std::vector<Unmade> all;
  {
    const MutexLock lock(mutex_);
    std::ranges::copy_if(unmade_, std::back_inserter(all), due);
  }
  Status first;
  std::vector<std::uint32_t> not_asked;
  for (Unmade& one : all) {
    const Status deleted = DeleteParts(one, not_asked, ids);
    if (first.ok()) {
      first = Annotate(deleted, "what may be left of variable " + one.create.variable().name() +
                                    ", which could not be made");
    }
  }
  return first;
}

}  // namespace muster::ps
