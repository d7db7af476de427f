// A worker of a simulation: the real decisions about launched processes (worker/launches.h) behind
// a network with latency, which is cut and whose connections break, over processes that obey, or
// are slow to, by chance.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "common/base/lifeline.h"
#include "tests/unit/coordinator/fake_cluster.h"
#include "worker/launches.h"

namespace muster::coordinator::testing {

// One process of a launch.
struct LaunchedHere {
  std::uint64_t launch = 0;
  std::uint32_t place = 0;
  std::uint32_t restarts = 0;  // as it was told
  bool alive = true;
  bool asked = false;
  TimePoint began;
};

// What the simulation does by chance, and what it looks at.
class LaunchChance {
 public:
  virtual ~LaunchChance() = default;
  virtual int Upto(int most) = 0;
  virtual void OnSent(const TaskId& worker, const v1::Command& command) = 0;
  virtual void OnRun(const TaskId& worker, const LaunchedHere& process) = 0;
  // It was asked to end, and nothing needs it any more.
  virtual void OnReleased(const TaskId& worker) = 0;
};

// One process of a worker daemon. Lifetime: cluster and chance outlive it.
class LaunchWorker : public worker::LaunchIo {
 public:
  LaunchWorker(Cluster& cluster, LaunchChance& chance, TaskId task, std::string boot_id, int pid);

  // --- What happens to it.
  // Registers, unless it is connected or cut off.
  void Connect();
  // Its connection is over: what was on its way is lost. `noticed`: by the coordinator, too.
  void Reset(bool noticed);
  void Cut() { cut_ = true; }
  // What was on its way comes now, where the connection has outlived it.
  void Mend();
  // The coordinator is gone, and nobody hears of it.
  void LoseCoordinator();
  // It was asked to end.
  void Drain();
  void Beat();
  // A process ends by itself.
  void Exit(worker::LaunchedId id, std::uint32_t code, std::uint32_t signal);
  // The daemon ends, by whatever, and takes its processes along; its parent may tell of it.
  void Die(bool told);

  // --- How it is.
  bool cut() const { return cut_; }
  bool draining() const { return draining_; }
  bool dead() const { return dead_; }
  bool connected() const { return session_ != SessionId(); }
  // The coordinator knows all that there is to know of it.
  bool InContact() const;
  const std::map<worker::LaunchedId, LaunchedHere>& processes() const { return processes_; }
  int Alive() const;
  // It has the working folder of a job, and has run processes there. (Of one that was only readied
  // for them it tells nobody.)
  bool ran() const { return holds_ && ran_; }
  int pid() const { return pid_; }

  // --- See LaunchIo.
  void Look(const v1::LaunchSpec&, std::function<void(const Status&)> then) override { then(Ok()); }
  void Prepare(const std::string& job_id, LaunchNumber launch, const v1::LaunchSpec& spec,
               std::uint32_t addresses) override;
  void WriteWorkers(const std::string& job_id, LaunchNumber launch,
                    const std::string& text) override;
  Status Run(worker::LaunchedId id, const std::string& job_id, const v1::LaunchSpec& spec,
             const v1::LaunchProcess& process) override;
  void Ask(worker::LaunchedId id) override;
  void Kill(worker::LaunchedId id) override;
  std::optional<process::Wait> WaitOf(worker::LaunchedId) const override { return std::nullopt; }
  std::uint64_t MemoryOf(worker::LaunchedId) override { return 0; }
  void Release(const std::string&) override {}
  void Forget(const std::string&) override { holds_ = false; }
  void ToCoordinator(v1::DaemonMessage message) override;
  void Reply(StreamId stream, v1::CommandResult result) override;

 private:
  class Link;
  void FromCoordinator(StreamId stream, const v1::CoordinatorMessage& message);
  void OnEnded(StreamId stream);
  void Obey(const v1::CoordinatorMessage& message);
  void DeliverDown();
  void DeliverUp();
  void Disconnect();
  // While the daemon lives, and `millis` from now.
  void After(int millis, std::function<void()> then);

  Cluster& cluster_;
  LaunchChance& chance_;
  const TaskId task_;
  const std::string boot_id_;
  const int pid_;
  std::uint64_t last_stream_ = 0;
  StreamId stream_;
  SessionId session_;
  bool ended_ = false;  // by the coordinator, which has not come through
  bool cut_ = false;
  bool draining_ = false;
  bool dead_ = false;
  bool holds_ = false;
  bool ran_ = false;
  std::optional<TimePoint> attached_;
  std::uint64_t starting_ = 0;  // the launch whose processes Run() is asked for
  std::deque<v1::CoordinatorMessage> down_;
  std::deque<v1::DaemonMessage> up_;
  std::map<worker::LaunchedId, LaunchedHere> processes_;
  std::uint64_t beats_ = 0;
  Lifeline lifeline_;
  worker::Launches launches_;
};

}  // namespace muster::coordinator::testing
