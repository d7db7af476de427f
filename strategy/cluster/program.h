// A program of a cluster: the first line of its main(), and what its job is to it.
//
//   int main(int argc, char** argv) {
//     muster::init(argc, argv);
//     muster::ClusterCoordinator coordinator;
//     ...
//
// `muster submit -- prog args` runs one executable in several roles: its driver, whose main() goes
// on behind init(), and executors, which serve its registered functions there.
//
// Threading: init() from main's thread, before others begin; the rest from any.
#pragma once

#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/base/version.h"

namespace muster {
namespace internal {

// `built_with`: what init() below hands over is compiled into the program, and stays what it was
// built with, whatever library the host has.
void init(int argc, char** argv, std::string_view built_with);

}  // namespace internal

// Returns in the driver and in the evaluator. In an executor it serves closures and never returns;
// nothing before it should take long, print or need the arguments. Without a cluster it prints the
// line of `muster submit` that would run the program, and ends with exit code 2. An exception that
// leaves main() is told to the cluster as the job's error.
inline void init(int argc, char** argv) { internal::init(argc, argv, kHeaderVersion); }

// Requested when a user has asked the job to stop: save what is to be kept and return from main();
// the process is killed when the grace is over. In the evaluator also when the driver's main() has
// ended. Never requested outside of a job.
std::stop_token stop_requested();

// Whether this process is the job's evaluator (`muster submit --evaluator`): a process beside the
// driver that runs main(), too, and takes no part in training. It has no coordinator.
bool is_evaluator();
// An event of the job.
//   FAILED_PRECONDITION: not in the evaluator.
using Evaluation = std::map<std::string, double>;
void report_evaluation(const std::string& checkpoint, const Evaluation& values);
// The evaluator's life: evaluates each checkpoint as it appears, those that are there first, oldest
// first, and returns when the driver's main() has ended and none is left. `list` names the
// checkpoints there are, oldest first (CheckpointManager::checkpoints()); what `evaluate` returns
// is reported. A checkpoint that is deleted before its turn is left out.
//   FAILED_PRECONDITION: not in the evaluator.
void evaluate_checkpoints(const std::function<std::vector<std::string>()>& list,
                          const std::function<Evaluation(const std::string& checkpoint)>& evaluate);
// What the program is at, for people who look at the job: "epoch 3". Without effect outside of a
// job.
void report(const std::string& phase);

}  // namespace muster
