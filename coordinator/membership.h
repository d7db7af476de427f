// Decides which daemons are alive.
//
// A daemon registers on its control stream, gets a session, and holds a lease that every message
// renews. It is lost when the lease runs out (a stopped process, a cut wire) or when its stream has
// been reset for longer than a short grace (a killed process). A lost daemon must register again.
//
// A lease is counted in looks, one in each heartbeat interval, not in time: when this process
// itself stands still (stopped, frozen with its machine, waiting for a disk) it hears nobody, and
// that is no word about them. After a stall everybody has all looks again, and a broken stream a
// whole lease to be made anew.
//
// The newer process wins a task: the older one's stream ends with kAborted, and it cannot take the
// task back while the newer one lives.
//
// A task that an operator has taken out (muster drain) is told so, and drains. Its next process may
// register, so that whoever starts daemons anew need not know; it is held: it keeps its lease, and
// for everybody else it is not there.
//
// Invariant: at most one process (boot id) holds a task at any moment; sessions never repeat.
// Threading: not thread-safe; one strand owns it. Observers are called on it, after the change.
// Lifetime: `scheduler` and `observer` outlive it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/messages/task_proto.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/jobs.pb.h"
#include "muster/v1/journal.pb.h"

namespace muster::coordinator {

// The coordinator's end of one Attach stream. Neither call waits; after End() nothing is sent.
class DaemonLink {
 public:
  virtual ~DaemonLink() = default;
  virtual void Send(const v1::CoordinatorMessage& message) = 0;
  virtual void End(const Status& status) = 0;
};

struct Member {
  enum class State { kUp, kDraining, kHeld, kLost };

  TaskId task;
  State state = State::kUp;
  SessionId session;
  v1::Register info;
  v1::Heartbeat heartbeat;
  // Moved on by the time that the coordinator itself slept.
  TimePoint last_heard;
  // Looks since then.
  int silent_looks = 0;
  // Owned by the stream too, which may outlive the session.
  std::shared_ptr<DaemonLink> link;
  // Lost: "its connection was reset", "nothing was heard of it for 3.0 s".
  std::string how;
  // Lost: it had been asked to end before.
  bool was_draining = false;
  TimePoint lost_at;

  // There, and of use.
  bool alive() const { return state == State::kUp || state == State::kDraining; }
  // Its process is registered, of use or not.
  bool attached() const { return state != State::kLost; }
};

// What an observer learns of a registration.
struct Arrival {
  // The process that held the task before: its memory is what it was.
  bool same_process = false;
  // It had been lost for so long.
  std::optional<Millis> gap;
};

class Membership {
 public:
  struct Options {
    Millis lease{3'000};
    Millis heartbeat{250};
    Millis reset_grace{500};
    Epoch epoch;
    // The tasks of the cluster spec; empty: any ps and worker may come.
    std::vector<TaskId> tasks;
    // Without a cluster spec: who will come, for saying who is missing. Others may come too.
    std::vector<TaskId> expected = {};
  };
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnUp(const Member& member, const Arrival& arrival) = 0;
    virtual void OnDraining(const Member& member, const std::string& reason) = 0;
    // The session is over: nothing sent to it will be answered. For a registration of the same
    // process while it was up, OnUp() follows without OnLost().
    virtual void OnSessionEnded(SessionId session, const std::string& why) = 0;
    virtual void OnLost(const Member& member) = 0;
    // A process of a task that was taken out has registered, and is held.
    virtual void OnHeld(const Member& member) = 0;
    // This process stood still for so long; nobody was given up for it.
    virtual void OnStall(Millis slept) = 0;
  };

  Membership(Options options, Scheduler& scheduler, Observer& observer);
  ~Membership();

  // Answers Welcome on the link. kFailedPrecondition: not a task of this cluster, or it has obeyed
  // a coordinator with a higher epoch. kAborted: a newer process holds the task.
  Result<SessionId> Register(const v1::Register& info, std::shared_ptr<DaemonLink> link);
  // Renews the lease; acknowledges. Unknown and lost sessions are told to register again.
  void OnHeartbeat(SessionId session, const v1::Heartbeat& heartbeat);
  // Any other message renews too. False: the session is over; drop the message.
  bool OnMessage(SessionId session);
  void OnDraining(SessionId session, const std::string& reason);
  // The stream broke or ended.
  void OnStreamEnded(SessionId session);
  // Its process has ended, says its parent: lost at once, and `how` is known.
  void OnExit(const TaskId& task, std::uint32_t pid, const std::string& how);

  // Takes a task out. The process `record` names is told to drain, if it is there; others are held.
  void TakeOut(v1::TakenOut record);
  // A held process is up from now on. False: the task was not taken out.
  bool LetIn(const TaskId& task);
  // Null: it is not taken out.
  const v1::TakenOut* Out(const TaskId& task) const;
  // Nobody need wait for it: it is taken out, and no process is on its way out.
  bool IsOut(const TaskId& task) const;
  // Whether it is in the cluster spec, expected, or seen.
  bool Knows(const TaskId& task) const;

  // Alive members only.
  const Member* Find(const TaskId& task) const;
  // Attached ones.
  const Member* Find(SessionId session) const;
  // Alive or lost; null: never seen.
  const Member* Known(const TaskId& task) const;
  // Why one that is not Known() is missing, in words. This coordinator does not know who was there
  // before it was started again, so it then says nothing about that.
  std::string Unseen() const;
  // Alive members of a type, by index. Draining ones are left out.
  std::vector<const Member*> Up(std::string_view type) const;
  // How many of `least` workers have to come yet, in words; nothing where all are there, and where
  // none is, which is everybody's to say.
  std::vector<std::string> MissingWorkers(std::size_t least) const;
  // Those that were asked to end and have not.
  std::vector<const Member*> Draining() const;
  // Every known task and those of the spec that were never seen; without workers that nobody has
  // named beforehand and that have ended as they were asked to: a cluster that has become smaller
  // is whole. One of them is there again when it registers.
  std::vector<v1::TaskState> Describe() const;
  v1::TaskState Describe(const TaskId& task) const;
  const Options& options() const { return options_; }

 private:
  void Tick();
  void Heard(Member& member);
  void NoticeStall();
  // A daemon whose stream broke may connect again for a while before it is lost.
  void AwaitReturn(SessionId session);
  void Lose(Member& member, const std::string& how);
  Member* BySession(SessionId session);
  // In the cluster spec, or expected.
  std::set<TaskId> Named() const;
  std::set<TaskId> Tasks() const;
  bool HasLeft(const TaskId& task) const;
  void TellToDrain(const Member& member, const v1::TakenOut& out);
  void Release(const Member& member);

  const Options options_;
  Scheduler& scheduler_;
  Observer& observer_;
  std::map<TaskId, Member> members_;
  std::map<SessionId, TaskId> sessions_;
  std::map<TaskId, v1::TakenOut> out_;
  // Boot ids that lost their task to a newer process.
  std::map<TaskId, std::set<std::string>> superseded_;
  std::map<SessionId, Scheduler::TimerId> grace_;
  Scheduler::TimerId tick_ = 0;
  TimePoint last_look_;
  // Until then a broken stream may be the fault of a stall here.
  TimePoint forgiving_until_;
  std::uint32_t last_session_ = 0;
};

// Evaluates the checkpoints of model jobs that ask for it, beside training.
inline const TaskId kEvaluator{"evaluator", 0};

// "submitter ana", "an operator".
std::string WhoTook(const v1::TakenOut& out);

}  // namespace muster::coordinator
