#include "cli/cluster_finder.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>

#include <sys/stat.h>

#include "cli/registry.h"
#include "common/base/host_port.h"
#include "common/base/number_in.h"
#include "common/base/whole_file.h"

namespace muster::cli {
namespace {

std::string FirstOf(const std::string& flag, const Environment& environment,
                    const std::string& variable) {
  return flag.empty() ? environment(variable).value_or("") : flag;
}

// "127.0.0.1:4711", "[::1]:4711", "host.example:4711".
Status CheckAddress(const std::string& source, const std::string& address) {
  const std::optional<HostAndPort> parts = SplitHostPort(address);
  if (parts && parts->host.find_first_of(" \t/@") == std::string_view::npos) {
    const int port = NumberIn<int>(parts->port).value_or(0);
    if (port >= 1 && port <= 65'535) return Ok();
  }
  return InvalidArgument("{}: \"{}\" is no HOST:PORT with a port from 1 to 65535", source, address);
}

}  // namespace

Result<std::string> ReadToken(const std::string& path) {
  const Result<std::string> text = ReadWholeFile(path);
  struct stat info{};
  if (!text.ok()) return Unauthenticated("cannot read the token: {}", Message(text.status()));
  if (::stat(path.c_str(), &info) != 0) {
    return Unauthenticated("cannot read the token: {}", Message(FromErrno(errno, "stat " + path)));
  }
  if ((info.st_mode & 077U) != 0) {
    return Unauthenticated(
        "the token file {} has mode {:04o}: others may read it. Run: chmod 600 {}", path,
        info.st_mode & 07777U, path);
  }
  std::string token = *text;
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.empty()) return Unauthenticated("the token file {} is empty", path);
  if (token.find_first_of("\r\n") != std::string::npos) {
    return Unauthenticated("the token file {} has more than one line", path);
  }
  // It travels in a header, for which gRPC ends the process that gives it another byte.
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c <= '~'; })) {
    return Unauthenticated(
        "the token file {} has a character that is not printable ASCII: it is no token of a "
        "cluster",
        path);
  }
  return token;
}

Result<std::shared_ptr<tls::Context>> FindTls(const Options& options,
                                              const Environment& environment) {
  const tls::Files files{
      .ca = FirstOf(options.tls_ca, environment, "MUSTER_TLS_CA"),
      .certificate = FirstOf(options.tls_certificate, environment, "MUSTER_TLS_CERT"),
      .key = FirstOf(options.tls_key, environment, "MUSTER_TLS_KEY")};
  if (!files.given()) return std::shared_ptr<tls::Context>();
  return tls::Context::FromFiles(files);
}

Result<Cluster> FindCluster(const Options& options, const Environment& environment) {
  Cluster cluster;
  cluster.address = FirstOf(options.coordinator, environment, "MUSTER_COORDINATOR");
  if (!cluster.address.empty()) {
    MUSTER_TRY(CheckAddress(options.coordinator.empty() ? "MUSTER_COORDINATOR" : "--coordinator",
                            cluster.address));
  }
  std::string token_file = FirstOf(options.token_file, environment, "MUSTER_TOKEN_FILE");
  if (cluster.address.empty() || token_file.empty()) {
    const Result<std::string> runtime = RuntimeDirectory(environment);
    const std::optional<Registration> up = runtime.ok() ? NewestUp(*runtime) : std::nullopt;
    if (cluster.address.empty() && !up) {
      return Unavailable(
          "no cluster: none is named and no `muster up` of yours runs. Start one with `muster up`, "
          "or name one with --coordinator HOST:PORT or MUSTER_COORDINATOR");
    }
    // A token belongs to its own cluster only.
    if (token_file.empty() && up && (cluster.address.empty() || cluster.address == up->address)) {
      token_file = up->token_file;
    }
    if (cluster.address.empty()) cluster.address = up->address;
  }
  MUSTER_TRY_ASSIGN(cluster.tls, FindTls(options, environment));
  if (token_file.empty() && cluster.tls != nullptr) return cluster;
  if (token_file.empty()) {
    return Unauthenticated("no token for {}: name its file with --token-file or MUSTER_TOKEN_FILE",
                           cluster.address);
  }
  MUSTER_TRY_ASSIGN(cluster.token, ReadToken(token_file));
  return cluster;
}

}  // namespace muster::cli
