// Jobs whose variables live on parameter servers: every worker takes closures, or as many as the
// strategy's `workers` says; a server that lost its memory ends the view.
//
// A lost server does not end it by itself: if its own process comes back (it was stopped, or cut
// off), its memory is what it was, and the job goes on where it stood.
//
// Threading and lifetimes: see Kind and View.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/kind.h"
#include "coordinator/view.h"

namespace muster::coordinator {

class PsKind : public Kind {
 public:
  PsKind(const World& world, const Story& story) : world_(world), story_(story) {}
  std::vector<std::string> Missing() const override;
  bool MakeDo() override;
  // Onto the servers that there are now, however many there were.
  void Reset() override { Replan(); }
  std::unique_ptr<View> NewView(ModelJob& job) override;

  // Whom the next view needs: those of the cluster spec, else those of the last view, else those
  // that were announced, else those that are there.
  std::set<int> Required() const;
  // The next view makes do with whoever is there, unless the cluster spec names them.
  void Replan() { replan_ = !SpecNamesServers(); }
  void NoteOpen() { replan_ = false; }

 private:
  bool SpecNamesServers() const;

  const World& world_;
  const Story& story_;
  bool replan_ = false;
};

class PsView : public View {
 public:
  PsView(ModelJob& job, PsKind& kind) : View(job), kind_(kind) {}

 private:
  std::vector<v1::PsAddress> Servers() const override;
  void MakeVariables(const std::string& restored_from) override;
  void AskHolders() override;
  bool MustBeMadeAnew() const override { return NeedsAssign(); }
  bool OneWorker() const override { return false; }
  std::vector<TaskId> Holders() const override;
  std::string WhereVariablesLive() const override;
  bool NeedsDrainingTask() const override;
  bool Needs(const TaskId& task) const override;
  void StartExecutors() override;
  void FillStart(const TaskId& worker, v1::StartExecutor& start) override;
  void OnOpen() override { kind_.NoteOpen(); }
  void OnServerUp(const Member& server) override;
  void OnWorkerLost(const Member& worker) override;
  void OnServerLost(const Member& server) override;
  void OnServerOut(const TaskId& server) override;
  void OnReady(const TaskId& worker) override;
  void OnStartEnded(const TaskId& worker) override;
  // One worker gives the archive's values to the servers before any other may start.
  bool MustWait(const TaskId&) const override { return NeedsAssign() && assigner_; }
  bool OnLeftOut(const TaskId&, const Status&) override { return false; }
  bool OnOtherProcess(const TaskId&, const v1::ExecutorEvent&) override { return false; }
  std::string Consequence(const std::vector<ClosureKey>& had) const override;
  bool OnExecutorEnd(const TaskId&, const ExecutorEnd&) override { return false; }
  void RenewExecutor(const Member& worker, const std::string& what) override;

  // kUnavailable: one of the plan's servers is away. kNotFound: one is another process now.
  Status LookAtServers() const;
  // One worker must still give the archive's values to the servers.
  bool NeedsAssign() const;
  // The server's place in the view; null: it has none.
  const v1::PsAddress* Planned(const TaskId& server) const;

  PsKind& kind_;
  std::optional<TaskId> assigner_;
  bool assigned_ = false;
};

}  // namespace muster::coordinator
