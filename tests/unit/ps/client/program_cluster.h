// Parameter servers in this process, and clients of a program's variables.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "common/partition/placer.h"
#include "muster/v1/common.pb.h"
#include "ps/apply_pool.h"
#include "ps/client/program_client.h"
#include "ps/server/ps_server.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps::testing {

inline const std::string kProgram = "job-9";

template <class T>
std::span<const std::byte> Raw(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

class ProgramCluster {
 public:
  explicit ProgramCluster(std::uint32_t servers, PsServer::Options base = {})
      : host_id_(*net::HostId()), base_(std::move(base)) {
    base_.unix_directory = directory_.path();
    base_.token = kToken;
    base_.host_id = host_id_;
    base_.apply_pool = &pool_;
    for (std::uint32_t i = 0; i < servers; ++i) {
      servers_.push_back(std::move(PsServer::Start(base_)).value());
      v1::PsAddress& address = addresses_.emplace_back();
      address.set_index(i);
      *address.mutable_data() = servers_.back()->endpoint();
    }
  }

  // A new server where server `i` was.
  void Restart(std::uint32_t i) {
    PsServer::Options options = base_;
    options.tcp_address = servers_[i]->endpoint().tcp_address();
    servers_[i].reset();
    servers_[i] = std::move(PsServer::Start(options)).value();
    *addresses_[i].mutable_data() = servers_[i]->endpoint();
  }

  ProgramClient::Options Options(LinkMode link = LinkMode::kAuto, std::uint64_t incarnation = 1,
                                 std::uint64_t epoch = 1) const {
    return {.job_id = kProgram,
            .key = net::JobKey(kToken, kProgram, Epoch(epoch)),
            .epoch = Epoch(epoch),
            .incarnation = Incarnation(incarnation),
            .link = link,
            .host_id = host_id_,
            .timeout = Millis(20'000)};
  }
  std::vector<ProgramClient::Server> Servers() const {
    std::vector<ProgramClient::Server> servers;
    for (const v1::PsAddress& address : addresses_) servers.push_back({TargetOf(address)});
    return servers;
  }
  Result<std::unique_ptr<ProgramClient>> Open(const ProgramClient::Options& options) const {
    return ProgramClient::Open(Servers(), options);
  }
  std::unique_ptr<ProgramClient> Client(LinkMode link = LinkMode::kAuto) const {
    return std::move(Open(Options(link))).value();
  }
  PsServer& server(std::size_t i) { return *servers_[i]; }
  const v1::PsAddress& address(std::size_t i) const { return addresses_[i]; }
  const std::string& directory() const { return directory_.path(); }
  const std::string& host_id() const { return host_id_; }

 private:
  muster::testing::TempFolder directory_;
  std::string host_id_;
  ApplyPool pool_{1};
  PsServer::Options base_;
  std::vector<v1::PsAddress> addresses_;
  std::vector<std::unique_ptr<PsServer>> servers_;
};

// What each server has been asked to read since `before`: requests, and parts of them.
using Reads = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
inline Reads ReadsSince(const std::vector<ReadCounts>& before, const ProgramClient& client) {
  Reads since;
  for (const ReadCounts& now : client.reads()) {
    const ReadCounts& then = before.at(since.size());
    since.emplace_back(now.requests - then.requests, now.parts - then.parts);
  }
  return since;
}

template <class T>
std::vector<T> ReadAll(ProgramClient& client, const VariableHandle& variable,
                       WriteSet* own = nullptr, std::uint32_t slot = 0) {
  std::vector<T> values(variable->bytes() / sizeof(T));
  const ReadRequest request{
      .variable = variable, .into = std::as_writable_bytes(std::span(values)), .slot = slot};
  const Status status = client.Read(std::span(&request, 1), own);
  if (!status.ok()) throw std::runtime_error(ToString(status));
  return values;
}

template <class T>
std::vector<T> Gather(ProgramClient& client, const VariableHandle& variable,
                      const std::vector<std::int64_t>& ids, WriteSet* own = nullptr) {
  std::vector<T> values(ids.size() * variable->row_bytes / sizeof(T));
  const ReadRequest request{.variable = variable,
                            .rows = true,
                            .ids = ids,
                            .into = std::as_writable_bytes(std::span(values))};
  const Status status = client.Read(std::span(&request, 1), own);
  if (!status.ok()) throw std::runtime_error(ToString(status));
  return values;
}

}  // namespace muster::ps::testing
