// The programs of muster-bench. Each gets its own arguments (argv[0] is its name) and returns an
// exit code: 0, 1 something failed, 2 wrong usage.
#pragma once

namespace muster::bench {

// Parameter server: pull, push and rows against memcpy, a bare socket and a bare apply.
int RunPs(int argc, char** argv);

// Connections: in the clear, and behind TLS by a job's key.
int RunConnect(int argc, char** argv);

// Dispatch: empty closures through schedule, join and fetch against a bare ping-pong.
int RunSchedule(int argc, char** argv);

// Collectives: all-reduce between processes against memcpy and a bare ping-pong.
int RunAllreduce(int argc, char** argv);

// Training: the demo job on a cluster of processes against a plain libtorch loop.
int RunTrain(int argc, char** argv);

// A step of several workers, its sums at its end and in its backward pass. Replaces this process by
// muster-backward-bench.
int RunBackward(int argc, char** argv);

// The C++ API against plain libtorch. Replaces this process by muster-strategy-bench.
int RunStrategy(int argc, char** argv);

}  // namespace muster::bench
