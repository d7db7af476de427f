// NCCL between the members of a group: each has one card, and sums go from card to card without
// passing through host memory.
//
// The group stays who decides. Members agree through it before each call of NCCL, so one that is
// missing, late or calls something else is an error that names it before a card has anything to do;
// while its card works each member looks at the group, too, and no call returns before all cards
// are done. The first error ends the communicator and its group for all, as any error of a group.
//
// Threading: any thread; the order of calls must be the same on all members. Lifetime: it belongs
// to its group (Group::communicator()), and makes no call of the group when it ends.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "collectives/group.h"
#include "collectives/nccl/library.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"

namespace muster::collectives::nccl {

// What NCCL adds as groups do: not float16 and bfloat16, which it would round at every member.
bool Adds(DType type);

class Communicator {
 public:
  struct Options {
    // The card of this member, by a name that no other card in the world has.
    std::string card;
    // For NCCL's own part of the beginning.
    std::chrono::milliseconds form_within = std::chrono::seconds(60);
    // As long as a call may take that has no time limit of its own, or a longer one. None: until a
    // member is lost.
    Timeout call_within = std::nullopt;
  };
  struct Formed {
    std::unique_ptr<Communicator> communicator;  // null on all members, or on none
    std::string why_not = {};
  };
  // All members call it, each with its card current (cudaSetDevice). No communicator, on none of
  // them: `library` is an error or another version on one of them, two have the same card, or NCCL
  // cannot connect them; why_not says which and whose, the same on all.
  //   The group's own errors.
  static Result<Formed> Form(Group& group, Result<Library> library, Options options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  struct Stream {
    void* handle = nullptr;  // a cudaStream_t of the own card
    // Whether what was queued on it has ended; an error of it ends the call.
    std::function<Result<bool>()> done;
  };
  // Group::AllReduce() by SUM, of buffers that lie on the own card and were written by what is
  // queued on `stream`: returns when the results are there, on all members.
  //   The group's own errors, of one that is missing, late or calls something else, too.
  //   kInvalidArgument: "Shape mismatch", other types or another number of buffers; a type that it
  //   does not add. kUnavailable: NCCL failed; the text is its own. kDeadlineExceeded: a card is
  //   not done in time.
  Status AllReduce(std::span<const ReduceBuffer> buffers, const Stream& stream,
                   Timeout timeout = {});

  // "2.21.5"
  std::string version() const { return library_.VersionText(); }

 private:
  Communicator(Group& group, Library library, Options options)
      : group_(group), library_(std::move(library)), options_(std::move(options)) {}
  Status Begin(const UniqueId& id);
  Status Agree(std::span<const ReduceBuffer> buffers, Timeout limit);
  Status Launch(std::span<const ReduceBuffer> buffers, void* stream);
  // Until NCCL has taken on what it was told, and then done() says yes.
  Status Await(const std::function<Result<bool>()>& done, TimePoint deadline) const;
  void End();

  Group& group_;
  const Library library_;
  const Options options_;
  Mutex mutex_;  // held by the call that goes on
  Status failure_ MUSTER_GUARDED_BY(mutex_);
  void* comm_ = nullptr;
};

}  // namespace muster::collectives::nccl
