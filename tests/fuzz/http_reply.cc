// Answers of the services that know who is in a cluster: any bytes on the connection, and any body
// for each resolver. The first byte says which.
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/environment.h"
#include "common/cluster/google_resolvers.h"
#include "common/cluster/http_client.h"
#include "common/cluster/kubernetes_resolver.h"
#include "common/net/fd.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace muster;
using namespace std::chrono_literals;

// Says the same to everybody, whatever is asked; but to the fourth that there is no more, since an
// answer may name a next page.
class Server {
 public:
  Server() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    fuzz::Require(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                      ::listen(listener_.get(), 16) == 0 &&
                      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0,
                  "a port to listen at");
    url_ = fmt::format("http://127.0.0.1:{}", ntohs(at.sin_port));
    thread_ = std::thread([this] {
      while (true) {
        const net::Fd client(::accept(listener_.get(), nullptr, nullptr));
        if (!client.valid()) return;
        Serve(client.get());
      }
    });
  }
  ~Server() {
    (void)::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  const std::string& url() const { return url_; }
  // From now on: an answer that is on its way goes on with what it began with.
  void Say(std::string answer) {
    const std::scoped_lock lock(mutex_);
    answer_ = std::make_shared<const std::string>(std::move(answer));
    asked_ = 0;
  }

 private:
  void Serve(int client) {
    std::string request;
    char part[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(client, part, sizeof(part), 0);
      if (got <= 0) return;
      request.append(part, static_cast<std::size_t>(got));
    }
    const auto answer = Next();
    std::string_view rest = *answer;
    while (!rest.empty()) {
      const ssize_t sent = ::send(client, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
    (void)::shutdown(client, SHUT_WR);
  }

  std::shared_ptr<const std::string> Next() {
    const std::scoped_lock lock(mutex_);
    if (++asked_ <= 3) return answer_;
    return std::make_shared<const std::string>(
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  }

  const net::Fd listener_;
  std::string url_;
  std::mutex mutex_;
  std::shared_ptr<const std::string> answer_;
  int asked_ = 0;
  std::thread thread_;
};

// Shown on one line.
void CheckError(const Status& status) {
  if (status.ok()) return;
  const std::string text = Message(status);
  fuzz::Require(!text.empty(), "an error says why");
  for (const char one : text) {
    fuzz::Require(static_cast<unsigned char>(one) >= 0x20, "an error has no control characters");
  }
}

void ResolveKubernetes(const std::string& url) {
  const Environment none = [](const std::string&) { return std::nullopt; };
  const auto resolver = cluster::KubernetesResolver::Create(
      none, {.location = cluster::ExecutableLocation::kOffCluster, .endpoint = url});
  fuzz::Require(resolver.ok(), "a resolver");
  CheckError((*resolver)->Cluster().status());
}

void ResolveGce(const std::string& url) {
  cluster::GceResolver resolver({.project = "p",
                                 .zone = "z",
                                 .instance_group = "g",
                                 .endpoint = url,
                                 .identity = {.metadata_endpoint = url}});
  CheckError(resolver.Cluster().status());
}

void ResolveTpu(const std::string& url) {
  const Environment none = [](const std::string&) { return std::nullopt; };
  const auto resolver = cluster::TpuResolver::Create(none, {.tpu = "t",
                                                            .zone = "z",
                                                            .project = "p",
                                                            .endpoint = url,
                                                            .identity = {.metadata_endpoint = ""}});
  fuzz::Require(resolver.ok(), "a resolver");
  CheckError((*resolver)->Cluster().status());
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static Server server;
  const std::string text(fuzz::Text(data + 1, size - 1));
  const auto as_body = [&] {
    server.Say(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", text.size(), text));
  };
  switch (data[0] % 4) {
    case 0: {
      server.Say(text);
      const auto answer = cluster::FetchJson(
          {.url = server.url() + "/"},
          {.deadline = std::chrono::steady_clock::now() + 10s, .max_body_bytes = 4096});
      CheckError(answer.status());
      break;
    }
    case 1:
      as_body();
      ResolveKubernetes(server.url());
      break;
    case 2:
      as_body();
      ResolveGce(server.url());
      break;
    default:
      as_body();
      ResolveTpu(server.url());
  }
  return 0;
}
