// A group whose members are processes. Made by form_group.h.
//
// Every operation has a number, which all members count alike, and a deadline where the caller
// gives one; without one it ends when a member is lost, stopped or cut off (4 s). Errors name the
// operation, who was waited for, and how long.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/group.h"
#include "collectives/process/common_memory.h"
#include "collectives/process/group_spec.h"
#include "collectives/process/mesh_operations.h"
#include "collectives/process/shared_memory.h"
#include "collectives/process/shared_operations.h"
#include "collectives/process/signature.h"
#include "collectives/process/watch.h"
#include "common/base/ids.h"
#include "common/net/duplex_link.h"

namespace muster::collectives {

class ProcessGroup final : public Group {
 public:
  // Links and hosts by rank. `memory`: of the members on this host.
  static Result<std::unique_ptr<Group>> Create(const GroupSpec& spec, std::vector<Mesh::Peer> data,
                                               std::vector<Watch::Link> watches,
                                               std::optional<SharedMemory> memory,
                                               const std::vector<std::uint64_t>& hosts);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(tasks_.size()); }
  std::string name_of(int member) const override {
    return tasks_[static_cast<std::size_t>(member)];
  }
  Status AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                   Timeout timeout = {}) override;
  Result<std::vector<std::vector<std::int64_t>>> Exchange(std::string_view call,
                                                          std::span<const std::int64_t> mine,
                                                          Timeout timeout = {}) override;
  Status AllGather(std::span<const GatherBuffer> buffers, Timeout timeout = {}) override;
  Status Broadcast(std::span<std::byte> data, int root, Timeout timeout = {}) override;
  Status ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                       Timeout timeout = {}) override;
  Status AllToAll(std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives, Timeout timeout = {}) override;
  Status Barrier(Timeout timeout = {}) override;
  Result<std::shared_ptr<std::byte>> AllocateCommon(std::size_t bytes,
                                                    Timeout timeout = {}) override;
  Status Health() const override { return watch_->failure(); }
  void Abort(const Status& why) override;

 private:
  ProcessGroup(const GroupSpec& spec, std::vector<Mesh::Peer> data,
               std::optional<SharedMemory> memory, const std::vector<std::uint64_t>& hosts);
  // Runs `work` as the next operation: numbers it, gives it its deadline, and tells all others when
  // it fails. `call` says in words what is called.
  template <class Call, class Work>
  Status Run(const Signature& signature, Timeout timeout, const Call& call, const Work& work);
  // The members' parts, once all have mapped them. Where all are on one host.
  Result<std::shared_ptr<CommonMemory>> MapCommonMemory(const Operation& operation,
                                                        std::size_t bytes);
  Status Explain(const Status& status, std::uint64_t operation, const std::string& call,
                 Timeout timeout, std::string_view after, const std::vector<int>& waiting);

  const int rank_;
  const Generation generation_;
  std::vector<std::string> tasks_;
  net::SpinLimit spin_limit_;
  Mesh mesh_;
  std::optional<SharedMemory> memory_;
  std::unique_ptr<SharedOperations> by_memory_;
  MeshOperations by_mesh_;
  // The quickest that all members can use.
  Operations& best_;
  std::vector<std::byte> scratch_;
  // The last to be made and the first to go: its thread ends the mesh's links.
  std::unique_ptr<Watch> watch_;
};

}  // namespace muster::collectives
