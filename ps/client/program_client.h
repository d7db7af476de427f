// The variables of a program, as its driver and its executors see them: made at any time by the
// driver, found by name in executors, read and written by both.
//
// A read gives what whole write sets have made of each shard; shards of one variable are read at
// once, but agree with each other only while nobody writes (the driver joins before it saves).
// Writes are gathered in a WriteSet and applied exactly once, however often they are sent.
//
// Threading: any thread; each call has connections of its own. Lifetime: outlives its calls.
// Errors name server and variable. kUnavailable: a server is lost, or was restarted and has lost
// its values. kAborted: a later driver or attempt has taken over, the closure has ended, or the job
// was dropped. kDeadlineExceeded: says whom it waited for. kUnauthenticated: the key is another
// job's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "ps/client/link_arena.h"
#include "ps/client/program_types.h"
#include "ps/client/program_variable.h"
#include "ps/client/ps_client.h"
#include "ps/client/server_session.h"
#include "ps/client/write_set.h"
#include "ps/program_wire.h"

namespace muster::v1 {
class Initializer;
class OptimizerSpec;
class PsAddress;
}  // namespace muster::v1

namespace muster::ps {

// A variable that is to be made.
struct VariableSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape{};
  // The server of each shard, by its task index; rows are divided evenly ("div"). See
  // common/partition/placer.h.
  std::vector<std::uint32_t> servers{};
};

// One variable's part of a read.
struct ReadRequest {
  VariableHandle variable;
  // Rows by id; else the whole variable.
  bool rows = false;
  std::span<const std::int64_t> ids{};
  // As large as what is read.
  std::span<std::byte> into{};
  // Instead of `into`, where it is not null: gets the values in memory of their own. On one host
  // that is, for a whole variable of one shard, where the server has put them: nothing is copied.
  Lent* lend = nullptr;
  // 0: the values; k: slot k - 1 of its optimizer.
  std::uint32_t slot = 0;
};

class ProgramClient {
 public:
  using Server = ProgramServer;
  using Options = ProgramClientOptions;

  // Connects to every server.
  static Result<std::unique_ptr<ProgramClient>> Open(std::vector<Server> servers, Options options);
  virtual ~ProgramClient() = default;

  // Makes a variable with its value, or as the initializer says. Nothing of it stays after an
  // error, but on a server that did not answer, until DeleteUnmade(), or another Create() of the
  // name, has an answer.
  //   kInvalidArgument: shape, dtype, servers or value are impossible.  kAlreadyExists: the name.
  //   kResourceExhausted: a server has no memory for it.
  virtual Result<VariableHandle> Create(const VariableSpec& spec,
                                        std::span<const std::byte> value) = 0;
  virtual Result<VariableHandle> Create(const VariableSpec& spec, ShardValues values) = 0;
  virtual Result<VariableHandle> Create(const VariableSpec& spec,
                                        const v1::Initializer& initializer, std::uint64_t seed) = 0;
  // kNotFound: there is none of the name.
  virtual Result<VariableHandle> Find(const std::string& name) = 0;
  // Frees it; its handle is of no use any more.
  virtual Status Delete(const VariableHandle& variable) = 0;
  // Frees what servers may have of variables that could not be made.
  //   kUnavailable, kDeadlineExceeded, kDataLoss: one of them does not answer, still.
  virtual Status DeleteUnmade() = 0;
  // Gives variables an optimizer; the learning rate comes with each gradient. `updates`: how many
  // it has had, for values that are restored.
  //   kFailedPrecondition: one has another optimizer.  kUnimplemented: this one is not for
  //   programs.
  virtual Status Attach(std::span<const VariableHandle> variables, const v1::OptimizerSpec& spec,
                        std::optional<std::uint64_t> updates = std::nullopt) = 0;

  // All in one frame for each server. With `own`, a closure sees what it has written and not sent;
  // its gradients of these variables are flushed first, for only the server can apply them. (Of a
  // synchronous step it sees the beginning, and over it what it has not flushed.)
  //   kInvalidArgument: sizes, ids or slots do not fit.  kNotFound: the variable was deleted.
  virtual Status Read(std::span<const ReadRequest> requests, WriteSet* own = nullptr) = 0;
  // The most updates that its optimizer has made on a shard.
  virtual Result<std::uint64_t> Updates(const VariableHandle& variable) = 0;

  // Sends what the set holds and empties it. After an error it may be flushed again, also when
  // there is more in it: what has been applied is not applied twice. A server that is too far
  // behind is waited for.
  //   kFailedPrecondition: a gradient of a variable without an optimizer; nothing was sent.
  //   kNotFound: one of a variable that was deleted.
  virtual Status Flush(WriteSet& set) = 0;
  // After a flush that failed: what that has sent goes again, and nothing else of the set does.
  virtual Status EndFlush(WriteSet& set) = 0;

  // All closures of synchronous steps before `step` have ended: what they have written is applied.
  virtual Status EndSteps(std::uint64_t step) = 0;

  // Every closure up to it has ended for good. Told to the servers with all that is sent, and by a
  // thread of this client's. Lower numbers change nothing.
  virtual void SetSettled(ClosureId closure) = 0;
  // Tells it now.
  virtual Status Settle() = 0;

  // By task index, in the order of the servers given.
  virtual std::vector<SpaceId> spaces() const = 0;
  virtual LinkBytes bytes() const = 0;
  // In the same order.
  virtual std::vector<ReadCounts> reads() const = 0;
};

// What to connect to, of the addresses that a driver or an executor was told.
ServerSession::Target TargetOf(const v1::PsAddress& address);

}  // namespace muster::ps
