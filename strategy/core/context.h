// Which strategy and which replica the running code belongs to. Every thread has its own answer.
//
// Cross-replica context: inside scope(), and in the function of merge_call(). Replica context:
// inside run(). Outside any scope: the replica context of the default strategy.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace muster {

class ReplicaContext;
class Strategy;

// The current strategy; the default strategy outside any scope.
Strategy& get_strategy();
// Whether it is another than the default strategy.
bool has_strategy();
bool in_cross_replica_context();
// Null in a replica context, and outside any scope.
Strategy* get_cross_replica_context();
// Null in cross-replica context; the default strategy's outside any scope.
ReplicaContext* get_replica_context();
// The same, for use where there must be one. FAILED_PRECONDITION in cross-replica context.
ReplicaContext& replica_context();

// Makes `strategy` current for every thread without a scope of its own; null: the default strategy.
// It must outlive its reign: where it has not, all that asks for the current strategy throws
// FAILED_PRECONDITION. FAILED_PRECONDITION: inside a scope.
void set_global_strategy(Strategy* strategy);

// In the function of update(): the component that is being updated; else absent.
std::optional<int> get_update_replica_id();

// Where variables and, on CPUs, tensors that are made inside it lie; the innermost counts. With a
// GPU its card is libtorch's current one (torch::kCUDA); tensors lie there that are made there.
class DeviceScope {
 public:
  // INVALID_ARGUMENT: no device's name, or a GPU that this machine does not have.
  explicit DeviceScope(const std::string& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Opened by Strategy::scope(); ends with the block that it stands in, and before the strategy:
// while the scope of a destroyed one is open, all that asks for the current strategy on its thread
// throws FAILED_PRECONDITION.
//   close() ends it early; FAILED_PRECONDITION "... scope nesting error" while a device scope or a
//   variable creator scope that was opened inside it is open. The destructor never throws: it logs,
//   and the scope ends when the inner one does.
// Threading: must end on the thread that opened it; on another one close() throws
// FAILED_PRECONDITION, and it stays open.
class [[nodiscard]] Scope {
 public:
  explicit Scope(Strategy& strategy);
  Scope(Scope&& other) noexcept;
  Scope& operator=(Scope&&) = delete;
  Scope(const Scope&) = delete;
  ~Scope();
  void close();

 private:
  std::size_t ticket_;  // 0: closed
};

}  // namespace muster
