// Groups whose links over TCP are encrypted by their key.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

// Stands between members and one of them, and keeps what passes from them to it.
class Relay {
 public:
  explicit Relay(std::string behind) : behind_(std::move(behind)) {
    auto listener = net::ListenTcp("127.0.0.1:0");
    REQUIRE(listener.ok());
    listener_ = *std::move(listener);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    wake_[0] = net::Fd(ends[0]);
    wake_[1] = net::Fd(ends[1]);
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() { (void)Seen(); }
  const std::string& address() const { return listener_.address; }
  // Ends it; all that has passed.
  const std::string& Seen() {
    wake_[1].Reset();
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  void Run() {
    std::vector<std::array<net::Fd, 2>> pairs;
    std::vector<char> bytes(1 << 16);
    for (;;) {
      std::vector<pollfd> entries = {{wake_[0].get(), POLLIN, 0}, {listener_.fd.get(), POLLIN, 0}};
      for (const auto& pair : pairs) {
        for (const net::Fd& end : pair) entries.push_back({end.get(), POLLIN, 0});
      }
      if (::poll(entries.data(), entries.size(), -1) < 0 || entries[0].revents != 0) return;
      if (entries[1].revents != 0) {
        auto accepted = net::Accept({&listener_, 1}, -1, Millis(0));
        auto onward =
            net::ConnectTcp(behind_, std::chrono::steady_clock::now() + std::chrono::seconds(10));
        if (accepted.ok() && accepted->fd.valid() && onward.ok()) {
          pairs.push_back({std::move(accepted->fd), *std::move(onward)});
        }
        continue;
      }
      for (std::size_t i = 2; i < entries.size(); ++i) {
        if (entries[i].revents == 0) continue;
        auto& pair = pairs[(i - 2) / 2];
        const std::size_t from = (i - 2) % 2;
        if (!Pass(pair[from].get(), pair[1 - from].get(), bytes, from == 0)) {
          pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>((i - 2) / 2));
        }
        break;  // the entries may be others now
      }
    }
  }
  bool Pass(int from, int to, std::vector<char>& bytes, bool keep) {
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    if (keep) seen_.append(bytes.data(), static_cast<std::size_t>(got));
    for (ssize_t done = 0; done < got;) {
      const ssize_t sent = ::send(to, bytes.data() + done, static_cast<std::size_t>(got - done),
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        done += sent;
        continue;
      }
      if (sent < 0 && errno != EAGAIN) return false;
      pollfd room{to, POLLOUT, 0};
      (void)::poll(&room, 1, -1);
    }
    return true;
  }

  const std::string behind_;
  net::Listener listener_;
  std::array<net::Fd, 2> wake_;
  std::string seen_;
  std::thread thread_;
};

constexpr std::string_view kMark = "these are the gradients of a model";

// What passes between two members over TCP while they gather a text; `tls`: encrypted.
std::string PassedIn(bool tls) {
  Address address(2);
  address.spec.transport = Transport::kTcp;
  if (tls) address.spec.tls = tls::KeyContext::Make();
  Relay relay(address.spec.members[0].address);
  address.spec.members[0].address = relay.address();
  InGroup(address, [](Group& group) {
    std::vector<char> text(kMark.begin(), kMark.end());
    std::vector<char> all(text.size() * 2);
    const GatherBuffer buffer{
        .in = text.data(), .out = all.data(), .block_bytes = {text.size(), text.size()}};
    if (const Status status = group.AllGather({&buffer, 1}); !status.ok()) {
      FAIL_CHECK(ToString(status));
    }
    if (std::memcmp(all.data(), text.data(), text.size()) != 0) FAIL_CHECK("another text came");
  });
  return relay.Seen();
}

}  // namespace

TEST_CASE("members of an encrypted group speak unreadably for who stands between them",
          "[collectives][tls][unit]") {
  CHECK(PassedIn(false).find(kMark) != std::string::npos);
  CHECK(PassedIn(true).find(kMark) == std::string::npos);
}

TEST_CASE("an encrypted group of three sums small and large tensors as one in the clear",
          "[collectives][tls][unit]") {
  Address address(3);
  address.spec.transport = Transport::kTcp;
  address.spec.tls = tls::KeyContext::Make();

  InGroup(address, [](Group& group) {
    for (const std::size_t count : {1U, 1000U, 70'000U, 1'500'000U}) {
      std::vector<float> mine(count, static_cast<float>(group.rank() + 1));
      std::vector<float> sum(count);
      const ReduceBuffer buffer{.type = DType::kFloat32,
                                .shape = {static_cast<std::int64_t>(count)},
                                .in = mine.data(),
                                .out = sum.data()};
      const Status status = group.AllReduce(Reduction::kSum, {&buffer, 1});
      if (!status.ok()) FAIL_CHECK(ToString(status));
      if (!std::ranges::all_of(sum, [](float v) { return v == 6; })) FAIL_CHECK("a wrong sum");
    }
    if (const Status status = group.Barrier(); !status.ok()) FAIL_CHECK(ToString(status));
  });
}

TEST_CASE("who has another key, or speaks in the clear, does not become a member",
          "[collectives][tls][unit]") {
  const auto said = [](const std::function<void(GroupSpec&)>& change) {
    Address address(2);
    address.spec.tls = tls::KeyContext::Make();
    address.spec.form_within = Millis(1'000);
    Status status = Ok();
    std::thread stranger([&] {
      GroupSpec spec = address.Of(1);
      change(spec);
      status = FormGroup(spec, address.listeners[1]).status();
    });
    const Status waited = FormGroup(address.Of(0), address.listeners[0]).status();
    stranger.join();
    CHECK(waited.code() == StatusCode::kDeadlineExceeded);
    return status;
  };

  CHECK(said([](GroupSpec& spec) { spec.key = "another"; }).code() == StatusCode::kUnauthenticated);
  CHECK_FALSE(said([](GroupSpec& spec) { spec.tls = nullptr; }).ok());
}

}  // namespace muster::collectives
