// Speaks HTTP to a server of ours, byte by byte: what it sends need not be HTTP.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "common/net/fd.h"

namespace muster::testing {

// A listener on loopback, and its port.
struct Listener {
  Listener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(fd.get(), 1'024) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no port");
    }
    port = ntohs(address.sin_port);
  }
  net::Fd fd;
  int port = 0;
};

// Whether an answer has come with all of its body.
inline bool IsWhole(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  const std::size_t length = answer.find("Content-Length: ");
  return end != std::string::npos && length < end &&
         answer.size() >= end + 4 + std::stoul(answer.substr(length + 16));
}

class HttpClient {
 public:
  explicit HttpClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("nobody listens");
    }
  }

  int fd() const { return fd_.get(); }
  void EndWrites() { (void)::shutdown(fd_.get(), SHUT_WR); }

  // False: the peer has closed.
  bool Send(const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t piece =
          ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (piece <= 0) return false;
      sent += static_cast<std::size_t>(piece);
    }
    return true;
  }

  // One answer, or what there is of it when the peer closes or `limit` is over.
  std::string Answer(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    std::string text;
    while (true) {
      if (IsWhole(text)) return text;
      if (!Readable(until)) return text;
      char bytes[4'096];
      const ssize_t count = ::recv(fd_.get(), bytes, sizeof bytes, 0);
      if (count <= 0) return text;
      text.append(bytes, static_cast<std::size_t>(count));
    }
  }

  // Whether the peer closes, sending nothing more, within `limit`.
  bool Closed(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    char byte = 0;
    return Readable(until) && ::recv(fd_.get(), &byte, 1, 0) <= 0;
  }

 private:
  bool Readable(std::chrono::steady_clock::time_point until) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd wanted{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return left.count() > 0 && ::poll(&wanted, 1, static_cast<int>(left.count())) == 1;
  }

  net::Fd fd_;
};

inline std::string Get(int port, const std::string& path, const std::string& host = "localhost") {
  HttpClient client(port);
  client.Send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  return client.Answer();
}

}  // namespace muster::testing
