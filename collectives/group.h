// A group of members that make the same collective calls in the same order: threads of one process
// (local_group.h), or processes, on one host or on several (process/form_group.h).
//
// One object is one member's end. Every call returns on all members, with the same status, but the
// last of a group of processes: one may have its result when another loses a peer. After an error a
// group of processes is over: every later call returns that error, and a new group has to be
// formed. Threading: one call at a time for each member.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/kernels.h"
#include "collectives/pending.h"
#include "common/base/dtype.h"
#include "common/base/status.h"

namespace muster::collectives {

// A buffer that is reduced over all members: `out` gets ResultType() elements, and may be `in` when
// that is the same type.
struct ReduceBuffer {
  DType type = DType::kUnspecified;
  std::vector<std::int64_t> shape;
  const void* in = nullptr;
  void* out = nullptr;

  std::size_t count() const {
    std::size_t product = 1;
    for (const std::int64_t size : shape) product *= static_cast<std::size_t>(size);
    return product;
  }
};

// A buffer that is joined with those of all members: block b of `out` is block b of member 0, then
// block b of member 1, and so on.
struct GatherBuffer {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t blocks = 1;
  // The size of one block, for each member in rank order.
  std::vector<std::size_t> block_bytes;
};

// A reduction of which each member gets a part: counts[r] elements go to member r, in rank order.
struct ScatterBuffer {
  DType type = DType::kUnspecified;
  std::vector<std::size_t> counts;
  const void* in = nullptr;  // all of them
  void* out = nullptr;       // the own part, ResultType(); not inside `in`
};

// None: waits for ever. The members that wait longer get DEADLINE_EXCEEDED, which names the others.
using Timeout = std::optional<std::chrono::milliseconds>;

// Zeroed, at a page's boundary: what AllocateCommon() gives where members share no memory.
//   kInvalidArgument: no bytes, or more than 1 TiB. kResourceExhausted: no memory.
Result<std::shared_ptr<std::byte>> OrdinaryMemory(std::size_t bytes);

class Group;
namespace nccl {
class Communicator;
}
// A call, or several one after another, of the group that it is given. It captures what its buffers
// need to live until it has ended, and throws nothing.
using StartedCall = std::function<Status(Group&)>;

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What messages call a member: of processes their task, "worker:1".
  virtual std::string name_of(int member) const { return "member " + std::to_string(member); }

  // Reduces all buffers as one: they are laid end to end, and each member does its share.
  //   kInvalidArgument: "Shape mismatch", other types, another number of buffers, or a type that
  //   has no sum.
  virtual Status AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                           Timeout timeout = {}) = 0;
  // What every member brought, in rank order: shapes and lengths, not data. `call` names what for.
  virtual Result<std::vector<std::vector<std::int64_t>>> Exchange(
      std::string_view call, std::span<const std::int64_t> mine, Timeout timeout = {}) = 0;
  // Everybody's `in` in everybody's `out`. Members agree on blocks and block_bytes (Exchange).
  virtual Status AllGather(std::span<const GatherBuffer> buffers, Timeout timeout = {}) = 0;
  // What `root` has in `data` is in everybody's. All bring as many bytes.
  virtual Status Broadcast(std::span<std::byte> data, int root, Timeout timeout = {}) = 0;
  // kInvalidArgument: as AllReduce(); other counts.
  virtual Status ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                               Timeout timeout = {}) = 0;
  // sends[r] goes to member r; receives[r] gets what member r sends here. Who sends knows how much
  // the other takes.
  virtual Status AllToAll(std::span<const std::span<const std::byte>> sends,
                          std::span<const std::span<std::byte>> receives, Timeout timeout = {}) = 0;
  // Returns when all have come.
  virtual Status Barrier(Timeout timeout = {}) = 0;

  // Memory of this member, zeroed, which all map where all are processes of one host: AllReduce()
  // copies nothing of buffers that lie in it, at the same places on all members: `in` and `out`, or
  // `in` alone where there are two members and every `out` is another. Others go as ever, but wait
  // once more above 32 KiB. Elsewhere it is ordinary memory, as it is to another group. All call
  // it, with as many bytes. It lives as long as the pointer, also beyond the group.
  //   kInvalidArgument: no bytes, or more than 1 TiB together; members ask for other sizes.
  //   kResourceExhausted, kUnavailable: no memory or descriptor for it. Any error ends a group of
  //   processes.
  virtual Result<std::shared_ptr<std::byte>> AllocateCommon(std::size_t bytes,
                                                            Timeout timeout = {});

  // Begins a call that goes on beside what this member does next. All members count started calls
  // and others alike: their order is that in which they were begun. Here: it is made at once.
  virtual Pending Start(StartedCall call) { return Pending::Ended(call(*this)); }

  // kOk while the group lives, else how it has ended. Of threads of one process: kOk. From any
  // thread, also while a call waits.
  virtual Status Health() const { return Ok(); }

  // NCCL between the cards of the same members (nccl/communicator.h), which ends with the group.
  // Null: there is none, and what lies on cards goes through host memory. Set before the group is
  // used by others.
  nccl::Communicator* communicator() const { return communicator_.get(); }
  void set_communicator(std::shared_ptr<nccl::Communicator> communicator) {
    communicator_ = std::move(communicator);
  }

  // Ends a group of processes for all of them: what is called or waits gets `why`. Threads of one
  // process see each other's errors anyway. From any thread.
  virtual void Abort(const Status& why) = 0;

 private:
  std::shared_ptr<nccl::Communicator> communicator_;
};

}  // namespace muster::collectives
