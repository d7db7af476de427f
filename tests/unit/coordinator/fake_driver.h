// A model job's driver in one process with the coordinator of a test: the real dispatcher and the
// real story of its closures, without links. Daemons' executors are given closures and end them
// when the test says so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/core/closure_dispatcher.h"

#include "common/base/ids.h"
#include "common/base/status.h"
#include "coordinator/model_job.h"
#include "muster/v1/program.pb.h"
#include "services/trainer/closure_story.h"

namespace muster::coordinator::testing {

class Cluster;

// What an executor has been given.
struct Given {
  std::string job;
  std::uint64_t view = 0;
  v1::Closure what;
  ClosureId number;  // the driver's
  Incarnation by;    // the driver
  std::uint64_t attempt_number = 0;
  std::uint64_t buffers_version = 0;
  const v1::Closure& closure() const { return what; }
  std::uint64_t attempt() const { return attempt_number; }
  std::uint64_t buffers() const { return buffers_version; }
};

class FakeDriver {
 public:
  FakeDriver(Cluster& cluster, const v1::ProgramStart& start) : cluster_(cluster), start_(start) {}

  // As its process does when it begins; it takes over what the one before it has left.
  void Begin();
  void Obey(const v1::ToProgram& message);
  Incarnation number() const { return Incarnation(start_.incarnation()); }
  bool begun() const { return dispatcher_.has_value(); }
  // Those that it has not scheduled before. An earlier closure's error.
  Status Schedule(v1::ClosureKind kind, std::uint64_t from, std::uint64_t to);
  // OK: whether all has ended. A closure's own error, once.
  Result<bool> Join();
  void OnResult(const TaskId& worker, const Given& given, const Status& status);
  void Pump();
  // Time has passed.
  void Tick();
  std::uint64_t done() const { return done_; }
  v1::ModelReport Report(bool with_news);
  std::uint64_t buffers = 0;

 private:
  void Say();
  void SetMembers(const v1::ProgramMembers& members);
  void OnVerdict(const v1::ExecutorVerdict& verdict);
  void Remove(const std::string& task);

  Cluster& cluster_;
  const v1::ProgramStart start_;
  std::vector<v1::ToProgram> waiting_;
  std::optional<dispatch::ClosureDispatcher> dispatcher_;
  trainer::ClosureStory story_;
  // By task: its handle, and the number of its executor.
  std::map<std::string, std::pair<dispatch::WorkerHandle, std::uint64_t>> members_;
  v1::ModelPace pace_;
  std::uint64_t scheduled_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t view_ = 0;
  std::uint64_t evaluated_ = 0;
  std::map<std::uint64_t, bool> ended_;  // steps beyond done_
  std::map<std::uint64_t, v1::ExecutorWork> work_;
  std::map<std::uint64_t, v1::ClosureKind> kinds_;  // of what is not over
};

}  // namespace muster::coordinator::testing
