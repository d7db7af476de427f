// Makes the shards of a variable on their servers, and sees to it that nothing stays of one that
// could not be made: a server that did not answer may have its shard all the same, or make it when
// it goes on.
//
// Threading: any thread. Lifetime: the servers outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "muster/v1/variables.pb.h"
#include "ps/client/program_servers.h"
#include "ps/client/program_variable.h"
#include "ps/program_wire.h"

namespace muster::ps {

class ShardMaker {
 public:
  // `timeout`: of one request, and more for many bytes.
  ShardMaker(ProgramServers& servers, Millis timeout) : servers_(servers), timeout_(timeout) {}

  // Makes all shards of the variable that `create` describes, one after another, with what `values`
  // gives for each (nothing, where `create` says how), and says in `variable` where they are. After
  // an error nothing of it is there, but on servers that have not answered: DeleteUnmade() is for
  // those.
  Status Make(v1::CreateShard create, ShardValues values, VariableInfo& variable,
              const ProgramIds& ids);
  // Deletes what may be left of variables of this name that could not be made; of all, where it is
  // empty. What has been deleted so is not made any more, however late a request comes.
  //   kUnavailable, kDeadlineExceeded, kDataLoss: a server does not answer, still.
  Status DeleteUnmade(const std::string& name, const ProgramIds& ids);

 private:
  struct Unmade {
    // What makes one of its shards, without a value.
    v1::CreateShard create;
    // Those that may be there.
    std::vector<std::uint32_t> parts;
  };

  TimePoint After(std::uint64_t bytes) const;
  Result<std::uint32_t> MakeOne(std::size_t server, const v1::CreateShard& create,
                                std::span<const std::byte> value, const ProgramIds& ids);
  // Deletes the first `parts` shards of a variable that could not be made, and remembers those on
  // servers that do not answer, as `away` does not.
  void Undo(v1::CreateShard create, std::uint32_t parts, std::vector<std::uint32_t> away,
            const ProgramIds& ids);
  // Deletes the parts of one of `unmade_`, but on servers that are not asked; one that does not
  // answer is asked no more. What is left stays there.
  Status DeleteParts(Unmade& unmade, std::vector<std::uint32_t>& not_asked, const ProgramIds& ids);
  Status DeletePart(v1::CreateShard& create, std::uint32_t part, const ProgramIds& ids);

  ProgramServers& servers_;
  const Millis timeout_;
  Mutex mutex_;
  std::vector<Unmade> unmade_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
