#include "bench/ps_program_bench.h"

#include "common/net/handshake.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::bench {
namespace {

constexpr std::uint64_t kEpoch = 1;
// Closures that may run at once, for the servers.
constexpr std::uint64_t kRunning = 64;

Result<ps::VariableHandle> Make(ps::ProgramClient& client, const std::string& name,
                                std::int64_t floats) {
  v1::Initializer zeros;
  return client.Create({.name = name, .shape = {floats}, .servers = {0}}, zeros, 0);
}

}  // namespace

// Makes its variables on the server, and attaches SGD to those that are written.
Result<std::unique_ptr<ProgramSide>> ProgramSide::Open(const Peer& peer, const std::string& name,
                                                       ps::LinkMode link, net::SpinMode spin) {
  std::unique_ptr<ProgramSide> side(new ProgramSide);
  v1::JobPlan plan = DensePlan();
  const bool tls = name == "tls";
  peer.Complete(plan, tls);
  const std::string job = "bench-" + name;
  MUSTER_TRY_ASSIGN(side->client_,
                    ps::ProgramClient::Open({{ps::TargetOf(plan.ps(0))}},
                                            {.job_id = job,
                                             .key = net::JobKey(peer.token(), job, Epoch(kEpoch)),
                                             .tls = tls ? peer.tls() : nullptr,
                                             .epoch = Epoch(kEpoch),
                                             .incarnation = Incarnation(1),
                                             .link = link,
                                             .host_id = peer.host_id(),
                                             .spin = spin}));
  for (const DenseVariable& variable : kDense) {
    MUSTER_TRY_ASSIGN(ps::VariableHandle made,
                      Make(*side->client_, variable.name, variable.floats));
    side->dense_.push_back(std::move(made));
  }
  for (std::size_t i = 0; i < kInFlight; ++i) {
    MUSTER_TRY_ASSIGN(ps::VariableHandle made,
                      Make(*side->client_, fmt::format("small {}", i), kDense[0].floats));
    side->small_.push_back(std::move(made));
  }
  v1::OptimizerSpec sgd;
  sgd.set_kind(v1::OPTIMIZER_KIND_SGD);
  MUSTER_TRY(side->client_->Attach(side->dense_, sgd));
  const std::size_t most = side->dense_.back()->bytes() / sizeof(float);
  side->memory_ = std::make_shared<std::vector<float>>(most, 1e-3F);
  side->into_.assign(most, 0);
  return side;
}

Status ProgramSide::Read(std::size_t variable) {
  const ps::VariableHandle& handle = dense_[variable];
  const ps::ReadRequest request{
      .variable = handle, .into = std::as_writable_bytes(std::span(into_)).first(handle->bytes())};
  return client_->Read(std::span(&request, 1));
}

Status ProgramSide::View(std::size_t variable) {
  ps::Lent lent;
  const ps::ReadRequest request{.variable = dense_[variable], .lend = &lent};
  return client_->Read(std::span(&request, 1));
}

Status ProgramSide::ReadMany() {
  std::vector<ps::ReadRequest> requests;
  requests.reserve(small_.size());
  std::span<std::byte> into = std::as_writable_bytes(std::span(into_));
  for (const ps::VariableHandle& handle : small_) {
    requests.push_back({.variable = handle, .into = into.first(handle->bytes())});
    into = into.subspan(handle->bytes());
  }
  return client_->Read(requests);
}

Status ProgramSide::Write(std::size_t variable) {
  const ps::VariableHandle& handle = dense_[variable];
  ps::WriteSet writes(ClosureId(++closure_), Attempt(1));
  if (closure_ > kRunning) client_->SetSettled(ClosureId(closure_ - kRunning));
  const ps::Operands gradient{.bytes = std::as_bytes(std::span(*memory_)).first(handle->bytes()),
                              .owner = memory_};
  MUSTER_TRY(writes.Gradient(handle, gradient, 0.01));
  return client_->Flush(writes);
}

}  // namespace muster::bench
