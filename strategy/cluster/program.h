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

#include <stop_token>
#include <string>

namespace muster {

// Returns in the driver. In an executor it serves closures and never returns; nothing before it
// should take long, print or need the arguments. Without a cluster it prints the line of `muster
// submit` that would run the program, and ends with exit code 2. An exception that leaves main()
// is told to the cluster as the job's error.
void init(int argc, char** argv);

// Requested when a user has asked the job to stop: save what is to be kept and return from main();
// the process is killed when the grace is over. Never requested outside of a job.
std::stop_token stop_requested();
// What the program is at, for people who look at the job: "epoch 3". Without effect outside of a
// job.
void report(const std::string& phase);

}  // namespace muster
