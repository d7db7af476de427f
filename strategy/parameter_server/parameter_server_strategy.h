// Variables on the parameter servers of the program's cluster, which its workers read and write.
//
//   struct Model {
//     muster::ParameterServerStrategy strategy;
//     muster::Variable w;
//     Model() {
//       const auto scope = strategy.scope();
//       w = muster::Variable::create("w", torch::zeros({4, 3}));
//     }
//   };
//   std::unique_ptr<Model> make_model() { return std::make_unique<Model>(); }
//   MUSTER_PROGRAM(make_model);
//   void step(Model& model, const torch::Tensor& batch) { model.w.assign_add(...); }
//   MUSTER_FUNCTION(step);
//
// The driver makes variables, in the strategy's scope; the other processes make the same ones in
// their scopes and get the driver's, by name: names are unique in a program. Shape and type must be
// the same everywhere (INVALID_ARGUMENT, where the variable is used, names both).
//
// In a closure the first read of a variable fetches it, and later ones see that snapshot until the
// closure writes the variable. What a closure writes is sent together when its function returns,
// before its result is, and counts exactly once, however often the closure runs. In a synchronous
// step it counts when the step is over: all its closures see what the steps before have made, and
// beside that what they write themselves, but for what they have flushed. Replicas of run() write
// beside each other; what they have written is the closure's when they meet, and when run() has
// returned. The driver reads and writes at once. A lost server is a PsUnavailable wherever its
// variables are used, and for closures in schedule() and join(): its values are gone, and nothing
// brings them back.
//
// With Writes::kImmediate each write of a closure is sent when it is made, and stays though the
// function throws later; the next read of the variable fetches it. A closure that runs again sends
// its k-th write again, or each of its replicas does, and it counts once if it is to the same
// variable.
//
// Variables that the driver drops are freed on the servers.
//
// All workers have as many replicas: others are INVALID_ARGUMENT in schedule() and join(), which
// names two that differ.
//
// run() and reduce() are for closures; elsewhere they compute here, and the first such call says so
// on standard error. Distributed datasets are for ClusterCoordinator::create_per_worker_dataset():
// iterated elsewhere they are INVALID_ARGUMENT.
//
// Threading, lifetime: as Strategy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/core/strategy.h"
#include "strategy/parameter_server/consistency.h"
#include "strategy/parameter_server/partitioner.h"

namespace muster {

struct ParameterServerOptions {
  // Without one each variable lies on one server.
  VariablePartitioner partitioner = nullptr;
  // What a worker's replicas compute on; none named: its GPUs, else its CPU.
  std::vector<std::string> devices = {};
  // One for each program; the driver's counts.
  Consistency consistency = {};
  // So many closures are a step, from 1 to 4096; where consistency is not async.
  std::uint32_t gradients_per_step = 1;
  // So many closures of a synchronous step may be executed a second time at once, by workers that
  // would have nothing to do, when they take much longer than others; what ends first counts. Not
  // those that are given a worker's own values.
  std::uint32_t speculative = 0;
  // When the writes of closures are applied; the same in every process. Not kImmediate in
  // synchronous steps, where what closures write counts when the step is over.
  Writes writes = Writes::kTogether;
  // The driver's counts. What is colocated with another variable lies there, whatever this says.
  Placement placement = Placement::kRoundRobin;
};

class ParameterServerStrategy final : public Strategy {
 public:
  // Its cluster is this process's program's. A worker's replicas compute on `devices` of its
  // machine; none named: its GPUs, else its CPU. Without a partitioner each variable lies on one
  // server; they go round the servers as they are made.
  //   INVALID_ARGUMENT: the cluster has no parameter server, or a device is not there or named
  //   twice.  PsUnavailable: a server does not answer.  DEADLINE_EXCEEDED: within 10 s the
  //   coordinator has not said which servers there are.
  //   FAILED_PRECONDITION: not in a process of a program.
  explicit ParameterServerStrategy(VariablePartitioner partitioner = nullptr,
                                   const std::vector<std::string>& devices = {});
  //   INVALID_ARGUMENT, too: gradients_per_step or staleness (at most 10,000); immediate writes in
  //   synchronous steps; speculative (at most 1,000) without these.
  //   FAILED_PRECONDITION, too: the program has another consistency.
  explicit ParameterServerStrategy(const ParameterServerOptions& options);
  ~ParameterServerStrategy() override;

  std::string_view name() const override { return "ParameterServerStrategy"; }
  // Those of Strategy, and where they compute is said.
  template <class Op, class T>
  auto reduce(Op op, const T& value) {
    note_here("reduce()");
    return Strategy::reduce(op, value);
  }
  template <class Op, class T>
  auto reduce(Op op, const T& value, const Axes& axes) {
    note_here("reduce()");
    return Strategy::reduce(op, value, axes);
  }
  // Sends what the closure has written so far, of its replicas this one's; without effect
  // elsewhere. PsUnavailable.
  void flush();

  internal::ComponentMaker* component_maker() const override;
  // INVALID_ARGUMENT: not in a function on a worker.
  void require_iteration() const override;

 protected:
  void run_replicas(const std::function<void(int)>& replica) override;

 private:
  class Maker;

  // That `call` computes here, unless this thread is in a closure.
  void note_here(std::string_view call) const;

  std::unique_ptr<Maker> maker_;
};

}  // namespace muster
