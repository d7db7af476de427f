// Operations over links, by the schedules of collectives/schedule.h. Where members of a host share
// memory, sums within the host go through that.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/cost_model.h"
#include "collectives/process/mesh.h"
#include "collectives/process/operations.h"
#include "collectives/process/shared_operations.h"
#include "collectives/schedule.h"

namespace muster::collectives {

class MeshOperations final : public Operations {
 public:
  struct Options {
    // The same on all members: what one sends is what the other waits for.
    AlgorithmCosts costs;
    // By rank; equal numbers: one host. Of hosts with several members one speaks for its host.
    std::vector<std::uint64_t> hosts;
  };
  // `on_host`: over the memory that the members on this one's host share, all of that host or none;
  // null: there is none. Lifetime: `mesh` and `on_host` outlive it.
  MeshOperations(Mesh& mesh, int rank, Options options, SharedOperations* on_host = nullptr);

  Status AllReduce(const Operation& operation, Reduction reduction,
                   std::span<const ReduceBuffer> buffers) override;
  Status Gather(const Operation& operation, std::span<const std::byte> mine,
                std::span<const std::span<std::byte>> into) override;
  Status Broadcast(const Operation& operation, std::span<std::byte> data, int root) override;
  Status Barrier(const Operation& operation) override;
  Status ReduceScatter(const Operation& operation, Reduction reduction, DType type,
                       const std::byte* in, std::span<const Range> ranges, std::byte* out) override;
  Status AllToAll(const Operation& operation, std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives) override;
  const std::vector<int>& waiting() const override {
    return failed_on_host_ ? on_host_->waiting() : mesh_.waiting();
  }

 private:
  int size() const { return mesh_.size(); }
  Status ReduceFlat(const Operation& operation, Reduction reduction, DType type,
                    const std::byte* in, std::byte* out, std::size_t count);
  // The host's sum through its memory, then that of all hosts.
  Status ReduceByHost(const Operation& operation, Reduction reduction, DType type,
                      const std::byte* in, std::byte* out, std::size_t count,
                      Algorithm between_hosts);
  // As ReduceScatter(), of at least one element.
  Status DirectReduce(const Operation& operation, Reduction reduction, DType type,
                      const std::byte* in, std::span<const Range> ranges, std::byte* out);
  Status RunDirect(const Operation& operation, Reduction reduction, DType type, const std::byte* in,
                   std::byte* out, const Schedule& schedule);
  Status RunRounds(const Operation& operation, Reduction reduction, DType type, const std::byte* in,
                   std::byte* out, std::size_t count, const Schedule& schedule);
  Status ReduceRound(const Operation& operation, Reduction reduction, DType type, std::byte* data,
                     const Round& round);
  // What comes replaces elements of `data`.
  Status SpreadRounds(const Operation& operation, std::size_t element, std::byte* data,
                      std::span<const Round> rounds);
  std::span<std::byte> Scratch(std::size_t bytes);

  Mesh& mesh_;
  const int rank_;
  const Options options_;
  SharedOperations* const on_host_;
  bool failed_on_host_ = false;
  std::vector<int> hosts_;  // numbered from 0; empty unless some, but not all, share one
  int speakers_;            // members that sum among each other: one of each host, else all
  std::vector<std::byte> scratch_;
  std::vector<std::byte> packed_;
  std::vector<Outgoing> sends_;
  std::vector<Incoming> receives_;
};

}  // namespace muster::collectives
