// The groups of an elastic run, one after another, as one worker takes part in them: the shell
// around rendezvous.h.
//
// A thread answers other workers' questions at this worker's own address for as long as the object
// lives, also while its caller computes. Each group listens at a port of its own.
//
// Threading: calls by one thread, which may block in Form(). Lifetime: the groups may outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/elastic/rendezvous.h"
#include "collectives/group.h"
#include "collectives/process/form_group.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"

namespace muster::v1 {
class ElasticAnswer;
class ElasticQuestion;
}  // namespace muster::v1

namespace muster::collectives {

// What who starts workers knows of them.
struct WorkersNow {
  // One for each worker; empty where there is none now.
  std::vector<std::string> addresses;
  // One of them has come to the end of the run.
  bool ended = false;
};

class ElasticGroups {
 public:
  struct Options {
    Rendezvous::Options rules;
    // All that there may be, at the addresses at which each answers; where `now` is given, as they
    // are now.
    std::vector<GroupMember> workers;
    // Asked before each look around. An error leaves all as it was.
    std::function<Result<WorkersNow>()> now = nullptr;
    // What all prove to each other; not empty.
    std::string key;
    // As in GroupSpec.
    std::shared_ptr<tls::KeyContext> tls = nullptr;
    std::uint64_t signature = 0;
    std::uint64_t first_step = 0;
    // As in GroupSpec.
    std::string wait_page = {};
    std::optional<LinkCosts> costs = std::nullopt;
  };
  // kUnavailable: this worker's port is in use. kResourceExhausted: no thread for it.
  static Result<std::unique_ptr<ElasticGroups>> Create(Options options);
  ~ElasticGroups();
  ElasticGroups(const ElasticGroups&) = delete;
  ElasticGroups& operator=(const ElasticGroups&) = delete;

  struct Next {
    // Null: this worker is alone.
    std::unique_ptr<Group> group;
    Formation formation;
    int rank = 0;
  };
  // Waits `within` until this worker is a member of a group; HaveState() or another Form() follows.
  // Whom it waits for is on the wait page after a second, and in the log every 30 s.
  //   kDeadlineExceeded: nothing came of it until then; says who is missing. Where somebody starts
  //   workers (Options::now) the time begins when as many as are needed look for a group. And the
  //   errors of Rendezvous::Propose(); that this worker has come too late is on the wait page, too.
  Result<Next> Form(Millis within);
  // This worker has the state of the group's target.
  void HaveState(const Formation& formation);

  void Prepared(std::uint64_t step);
  void Committed(std::uint64_t step);
  // Others are told from now on that the run is over.
  void Finish();
  std::uint64_t committed();
  std::uint64_t prepared();
  // One that is no member asks to be let in.
  bool SomebodyWaits();

 private:
  explicit ElasticGroups(Options options);
  void Answer();
  // That this process stood still is seen by the time. Before anything that is heard is taken in.
  void NoteTime() MUSTER_REQUIRES(mutex_);
  bool SleptSince(TimePoint since) MUSTER_REQUIRES(mutex_);
  void AnswerOne(net::Accepted accepted);
  // `came`: when it may first have been written.
  v1::ElasticAnswer AnswerTo(const v1::ElasticQuestion& question, TimePoint came);
  bool IsToBeAsked(int worker);
  void AskAll();
  // Whether all other members come to that group.
  bool AllAgree(const Formation& formation);
  // One question to another worker; what it answers is taken in.
  Result<std::string> Ask(int worker, const Formation* formation);
  // What came of this look around: a group to form.
  Result<std::optional<Formation>> LookAround();
  Result<std::unique_ptr<Group>> FormNow(const Formation& formation, int rank,
                                         const net::Listener& listener) const;
  void ReadWorkers();
  std::string host() const;

  const Options options_;
  // Written by the thread that calls Form() alone, while nobody is asked.
  std::vector<GroupMember> workers_;
  net::Identity identity_;
  net::Listener door_;
  net::Fd wake_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  Rendezvous rendezvous_ MUSTER_GUARDED_BY(mutex_);
  std::optional<Formation> agreed_ MUSTER_GUARDED_BY(mutex_);
  bool said_refused_ MUSTER_GUARDED_BY(mutex_) = false;
  // When the thread at the door was last seen to run.
  TimePoint awake_ MUSTER_GUARDED_BY(mutex_);
  TimePoint slept_at_ MUSTER_GUARDED_BY(mutex_) = TimePoint::min();
  Condition changed_;
  std::thread thread_;
};

}  // namespace muster::collectives
