// One connection of the admin port, against a peer that sends anything and hangs up.
#include <array>
#include <memory>
#include <string>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "services/admin/http_session.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  // A pair of sockets holds this much without a reader.
  if (size > 60'000) return 0;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) return 0;
  const net::Fd peer(ends[1]);
  if (::write(ends[1], data, size) < 0) return 0;
  (void)::shutdown(ends[1], SHUT_WR);

  const services::HttpServer::Options options;
  const services::HttpHandler handler = [](const services::HttpRequest& request,
                                           const services::HttpRespond& respond) {
    fuzz::Require(request.path.starts_with('/'), "a path begins with /");
    for (const char one : request.path) {
      fuzz::Require(static_cast<unsigned char>(one) >= 0x20, "a path has no control characters");
    }
    respond({.body = request.path});
  };
  const auto loop = std::make_shared<services::HttpLoop>();
  boost::asio::ip::tcp::socket socket(loop->io(), boost::asio::ip::tcp::v4(), ends[0]);
  boost::asio::co_spawn(
      loop->io(),
      std::make_shared<services::HttpSession>(std::move(socket), loop, options, handler)->Run(),
      boost::asio::detached);
  loop->io().run();

  std::array<char, 5> answer{};
  const ssize_t got = ::read(ends[1], answer.data(), answer.size());
  fuzz::Require(got <= 0 || std::string_view(answer.data(), 5) == "HTTP/", "it speaks HTTP");
  return 0;
}
