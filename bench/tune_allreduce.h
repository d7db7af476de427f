// muster-bench allreduce --tune: what all-reduces cost here, by link and algorithm.
#pragma once

#include <string>
#include <vector>

namespace muster::bench {

// Measures every algorithm over TCP and over Unix sockets with these numbers of processes, prints
// what it finds and writes it to `path` (collectives/costs_file.h). The process's exit code.
int TuneAllreduce(const std::vector<int>& ranks, const std::string& path);

}  // namespace muster::bench
