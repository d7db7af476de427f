#include "bench/ps_peer.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/pin.h"
#include "common/net/host_id.h"
#include "common/net/socket.h"
#include "ps/apply_pool.h"
#include "ps/job_shards.h"
#include "ps/server/ps_server.h"

namespace muster::bench {
namespace {

constexpr const char* kTokenVariable = "MUSTER_BENCH_TOKEN";
constexpr const char* kDirectoryVariable = "MUSTER_BENCH_DIRECTORY";
constexpr const char* kPinVariable = "MUSTER_BENCH_PIN";

// What the client of the bare socket asks for.
struct BareRequest {
  std::uint64_t push = 0;
  std::uint64_t bytes = 0;
};

Status SendAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), net::kBytesPerOperation);
    const ssize_t sent = ::send(fd, bytes.data(), n, MSG_NOSIGNAL);
    if (sent <= 0) return FromErrno(errno, "bare send");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return Ok();
}

Status ReceiveAll(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), net::kBytesPerOperation);
    const ssize_t got = ::recv(fd, bytes.data(), n, 0);
    if (got <= 0) return FromErrno(errno, "bare receive");
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Ok();
}

void Block(int fd) {
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void ServeBare(int fd) {
  Block(fd);
  std::vector<std::byte> memory;
  for (;;) {
    BareRequest request;
    if (!ReceiveAll(fd, std::as_writable_bytes(std::span(&request, 1))).ok()) return;
    if (memory.size() < request.bytes) memory.resize(request.bytes);
    const auto bytes = std::span(memory).first(request.bytes);
    const bool good = request.push != 0
                          ? ReceiveAll(fd, bytes).ok() && SendAll(fd, bytes.first(1)).ok()
                          : SendAll(fd, bytes).ok();
    if (!good) return;
  }
}

v1::JobPlan Plan(std::uint64_t number) {
  v1::JobPlan plan;
  plan.set_job_id(fmt::format("bench-{}", number));
  plan.set_job_number(number);
  plan.set_epoch(1);
  plan.set_view(1);
  plan.set_total_steps(1'000'000);
  plan.add_ps();
  return plan;
}

void AddVariable(v1::JobPlan& plan, const std::string& name, std::int64_t rows,
                 std::int64_t row_floats) {
  v1::VariableLayout& layout = *plan.add_variables();
  layout.set_id(static_cast<std::uint32_t>(plan.variables_size() - 1));
  layout.set_name(name);
  layout.set_dtype(v1::DTYPE_FLOAT32);
  layout.add_shape(rows);
  if (row_floats > 1) layout.add_shape(row_floats);
  layout.set_embedding(row_floats > 1);
  layout.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ZEROS);
  layout.add_shards()->set_rows(rows);
}

// Two servers of the same shards and the bare socket: tells where they are, and works until its
// parent ends.
Status Serve() {
  const char* token = std::getenv(kTokenVariable);
  const char* directory = std::getenv(kDirectoryVariable);
  if (token == nullptr || directory == nullptr) {
    return InvalidArgument("this is a helper process of muster-bench ps: do not call it yourself");
  }
  if (std::getenv(kPinVariable) != nullptr) MUSTER_TRY(PinTo(1));
  MUSTER_TRY_ASSIGN(const std::string host_id, net::HostId());
  ps::PsServer::Options options;
  options.unix_directory = directory;
  options.token = token;
  options.host_id = host_id;
  options.on_warning = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  MUSTER_TRY_ASSIGN(const auto server, ps::PsServer::Start(options));
  options.unix_directory.clear();
  options.tls = tls::KeyContext::Make();
  MUSTER_TRY_ASSIGN(const auto encrypted, ps::PsServer::Start(options));
  ps::ApplyPool pool(1);
  for (const v1::JobPlan& plan : {DensePlan(), RowsPlan()}) {
    MUSTER_TRY_ASSIGN(auto shards, ps::JobShards::Create(plan, 0, "", pool));
    encrypted->Publish(JobNumber(plan.job_number()), shards);
    server->Publish(JobNumber(plan.job_number()), std::move(shards));
  }
  MUSTER_TRY_ASSIGN(const net::Listener bare, net::ListenTcp("127.0.0.1:0"));
  const v1::DataEndpoint endpoint = server->endpoint();
  fmt::print("{}\n{}\n{}\n{}\n", endpoint.tcp_address(), endpoint.unix_path(),
             encrypted->endpoint().tcp_address(), bare.address);
  (void)std::fflush(stdout);
  const auto accepted = net::Accept(std::span(&bare, 1), STDIN_FILENO, Millis(60'000));
  if (accepted.ok() && accepted->fd.valid()) {
    std::thread([fd = accepted->fd.get()] { ServeBare(fd); }).detach();
    // Blocks until the parent ends or closes it.
    for (char c = 0; ::read(STDIN_FILENO, &c, 1) > 0;) {
    }
    (void)::shutdown(accepted->fd.get(), SHUT_RDWR);
  }
  encrypted->Stop();
  server->Stop();
  return Ok();
}

}  // namespace

v1::JobPlan DensePlan() {
  v1::JobPlan plan = Plan(1);
  plan.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  plan.mutable_optimizer()->set_learning_rate(0.01);
  for (const DenseVariable& variable : kDense) AddVariable(plan, variable.name, variable.floats, 1);
  return plan;
}

v1::JobPlan RowsPlan() {
  v1::JobPlan plan = Plan(2);
  plan.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAGRAD);
  plan.mutable_optimizer()->set_learning_rate(0.01);
  AddVariable(plan, "table", kTableRows, kRowFloats);
  return plan;
}

Result<std::unique_ptr<Peer>> Peer::Start(bool pin) {
  std::unique_ptr<Peer> peer(new Peer);
  MUSTER_TRY_ASSIGN(peer->host_id_, net::HostId());
  MUSTER_TRY_ASSIGN(peer->scratch_, Scratch::Make(std::filesystem::temp_directory_path().string()));
  peer->token_ = peer->scratch_->path();
  (void)::setenv(kTokenVariable, peer->token_.c_str(), 1);
  (void)::setenv(kDirectoryVariable, peer->scratch_->path().c_str(), 1);
  if (pin) (void)::setenv(kPinVariable, "1", 1);
  MUSTER_TRY_ASSIGN(peer->process_, SelfProcess::Start("ps-peer"));
  MUSTER_TRY_ASSIGN(peer->tcp_address_, peer->process_->ReadLine());
  MUSTER_TRY_ASSIGN(peer->unix_path_, peer->process_->ReadLine());
  MUSTER_TRY_ASSIGN(peer->tls_address_, peer->process_->ReadLine());
  MUSTER_TRY_ASSIGN(const std::string bare, peer->process_->ReadLine());
  MUSTER_TRY_ASSIGN(peer->bare_, net::ConnectTcp(bare, std::chrono::steady_clock::now() +
                                                           std::chrono::seconds(5)));
  Block(peer->bare_.get());
  return peer;
}

Peer::~Peer() {
  bare_.Reset();
  process_.reset();
}

void Peer::Complete(v1::JobPlan& plan, bool tls) const {
  v1::DataEndpoint& data = *plan.mutable_ps(0)->mutable_data();
  data.set_tcp_address(tls ? tls_address_ : tcp_address_);
  data.set_unix_path(unix_path_);
  data.set_host_id(host_id_);
}

Status Peer::BarePull(std::span<std::byte> into) {
  const BareRequest request{.push = 0, .bytes = into.size()};
  MUSTER_TRY(SendAll(bare_.get(), std::as_bytes(std::span(&request, 1))));
  return ReceiveAll(bare_.get(), into);
}

Status Peer::BarePush(std::span<const std::byte> bytes) {
  const BareRequest request{.push = 1, .bytes = bytes.size()};
  MUSTER_TRY(SendAll(bare_.get(), std::as_bytes(std::span(&request, 1))));
  MUSTER_TRY(SendAll(bare_.get(), bytes));
  std::byte answer{};
  return ReceiveAll(bare_.get(), std::span(&answer, 1));
}

int RunPeer() {
  const Status status = Serve();
  if (status.ok()) return 0;
  std::fprintf(stderr, "muster-bench: %s\n", ToString(status).c_str());
  return 1;
}

}  // namespace muster::bench
