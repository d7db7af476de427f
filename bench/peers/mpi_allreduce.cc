// muster-mpi-allreduce: what `muster-bench allreduce` compares with, by MPI. Run by mpirun; rank 0
// prints one JSON object.
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include <mpi.h>

#include "bench/collective_timing.h"
#include "common/base/status.h"

namespace muster::bench {
namespace {

Status FromMpi(int code) {
  return code == MPI_SUCCESS ? Ok() : Internal("MPI's error code {}", code);
}

int Run() {
  int rank = 0;
  CollectiveCalls calls;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &calls.size);
  calls.all_reduce = [](std::span<const float> values, std::span<float> sums) {
    return FromMpi(MPI_Allreduce(values.data(), sums.data(), static_cast<int>(values.size()),
                                 MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
  };
  calls.broadcast = [](std::int64_t& number) {
    return FromMpi(MPI_Bcast(&number, 1, MPI_INT64_T, 0, MPI_COMM_WORLD));
  };
  calls.barrier = [] { return FromMpi(MPI_Barrier(MPI_COMM_WORLD)); };
  const auto figures = TimeCollectives(calls);
  if (!figures.ok()) {
    std::fprintf(stderr, "muster-mpi-allreduce: %s\n", ToString(figures.status()).c_str());
    return 1;
  }
  if (rank == 0) std::printf("%s\n", figures->c_str());
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int code = muster::bench::Run();
  MPI_Finalize();
  return code;
}
