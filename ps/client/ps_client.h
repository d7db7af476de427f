// Pulls parameters from the parameter servers and pushes gradients to them, for one job and view.
//
// A variable's value and gradient have fixed places in memory that this client allocates: on one
// host in a sealed memfd arena that the servers map, so tensor bytes never enter a socket; else on
// the heap, and bytes go over TCP. The caller computes in place.
//
// Threading: one caller at a time. Errors: kUnavailable, a server is lost or silent (which one is
// named); kAborted, the job has a newer view or this attempt is superseded; kUnauthenticated, the
// key is wrong; kPermissionDenied, the plan's number is another job's; kDeadlineExceeded, names
// whom it waited for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/spin.h"
#include "ps/client/server_session.h"

namespace muster::v1 {
class JobPlan;
}

namespace muster::ps {

// The gradient of some rows of an embedding. Ids must be unique.
struct RowGradient {
  std::uint32_t variable = 0;
  std::span<const std::int64_t> ids{};
  // [ids.size(), dim], from RowGradientBuffer() of the same variable.
  std::span<const float> rows{};
};

class PsClient {
 public:
  struct Options {
    // net::JobKey of the plan's job, of no epoch: its executors outlive a coordinator.
    std::string key{};
    // See ServerSession::Options.
    std::shared_ptr<tls::KeyContext> tls = nullptr;
    LinkMode link = LinkMode::kAuto;
    // common/net's host id of this process; servers with the same one are reached by shared memory.
    std::string host_id{};
    // For one request, and more for many bytes; connecting retries until it has passed.
    Millis timeout{10'000};
    // See ServerSession::Options.
    Millis ping_after{1'000};
    Millis ping_limit{4'000};
    net::SpinMode spin = net::SpinMode::kAdaptive;
  };

  // Connects to every server that holds a shard and allocates the dense variables' memory.
  static Result<std::unique_ptr<PsClient>> Connect(const v1::JobPlan& plan, Options options);
  virtual ~PsClient() = default;

  // Where PullDense() writes variable `id`, and where Push() reads its gradient: row-major, whole
  // variable, 64-byte aligned, valid as long as the client. Empty for an embedding.
  virtual std::span<float> Value(std::uint32_t variable) = 0;
  virtual std::span<float> Gradient(std::uint32_t variable) = 0;

  // Pulls these variables, all servers at once. Each shard's value is one that whole updates made.
  // For a closure that trains its number: servers wait until it may read (StepRule); kUnavailable
  // says which closure it has waited for in vain.
  virtual Status PullDense(std::span<const std::uint32_t> variables, ClosureId closure = {}) = 0;
  // Rows of an embedding, [ids.size(), dim], valid until the next PullRows() of the same variable.
  //   kOutOfRange: an id is not in [0, rows).
  virtual Result<std::span<float>> PullRows(std::uint32_t variable,
                                            std::span<const std::int64_t> ids,
                                            ClosureId closure = {}) = 0;
  // Memory for the gradient of n rows; valid until the next call for the same variable.
  virtual Result<std::span<float>> RowGradientBuffer(std::uint32_t variable, std::size_t n) = 0;

  // Pushes the gradients of one closure; returns when every shard has applied it or says that it
  // had been applied before (a success). A closure must push every variable that trains, rows or
  // not.
  virtual Status Push(ClosureId closure, Attempt attempt, std::span<const std::uint32_t> dense,
                      std::span<const RowGradient> rows) = 0;
  // Sets a variable before the first closure of the view (an archive's initial value).
  //   kFailedPrecondition: a closure has been applied.
  virtual Status Assign(std::uint32_t variable, std::span<const float> value) = 0;

  virtual LinkBytes bytes() const = 0;
};

}  // namespace muster::ps
