// Members that come late, twice, or are gone before their group has formed.
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives/process/lobby.h"
#include "collectives/process/watch.h"
#include "common/base/folder_lock.h"
#include "common/base/forming_time.h"
#include "common/process/wait_page.h"
#include "tests/support/environment_variables.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A member of a group, on a thread, and its page.
class Waiting {
 public:
  explicit Waiting(const Address& address, int rank = 0) {
    auto page = process::WaitPage::Create();
    REQUIRE(page.ok());
    page_ = *std::move(page);
    GroupSpec spec = address.Of(rank);
    spec.wait_page = page_->path();
    thread_ =
        std::thread([this, spec, &listener = address.listeners[static_cast<std::size_t>(rank)]] {
          group_ = FormGroup(spec, listener);
        });
  }
  ~Waiting() {
    if (thread_.joinable()) thread_.join();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Whether it says in time that it waits for exactly these.
  bool Shows(const std::string& whom) const {
    return Shows([&](const std::string& awaited) { return awaited == whom; });
  }
  bool Shows(const std::function<bool(const std::string&)>& is_right) const {
    const auto until = steady_clock::now() + seconds(30);
    while (steady_clock::now() < until) {
      const auto wait = page_->Get();
      if (is_right(wait ? wait->awaited : "")) return true;
      std::this_thread::yield();
    }
    return false;
  }
  std::optional<process::Wait> shown() const { return page_->Get(); }
  const Result<std::unique_ptr<Group>>& Ended() {
    if (thread_.joinable()) thread_.join();
    return group_;
  }

 private:
  std::unique_ptr<process::WaitPage> page_;
  Result<std::unique_ptr<Group>> group_ = Internal("it has not formed");
  std::thread thread_;
};

std::string Whom(const Address& address, std::size_t rank) {
  const GroupMember& member = address.spec.members[rank];
  return fmt::format("{} ({})", member.task, member.address);
}

std::string Joins(const Address& address, int rank) {
  const auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
  return ToString(group.status());
}

TEST_CASE("who has not come is on the page of those who wait until the group has formed",
          "[collectives][process]") {
  Address address(3);
  Waiting first(address);
  REQUIRE(first.Shows(Whom(address, 1) + ", " + Whom(address, 2)));
  std::string second, third;
  std::thread comes([&] { second = Joins(address, 1); });
  CHECK(first.Shows(Whom(address, 2)));
  const auto shown = first.shown();
  std::thread last([&] { third = Joins(address, 2); });
  comes.join();
  last.join();

  REQUIRE(first.Ended().ok());
  CHECK(second == ToString(Ok()));
  CHECK(third == ToString(Ok()));
  REQUIRE(shown.has_value());
  CHECK(shown->call == "forming of the group");
  CHECK(shown->operation == 0);
  CHECK(shown->generation == Generation(1));
  CHECK(shown->limit == address.spec.form_within);
  CHECK(shown->lasts >= Millis(900));
  CHECK_FALSE(first.shown().has_value());
}

TEST_CASE("a member without descriptors waits for some, and the group forms then",
          "[collectives][process]") {
  Address address(2);
  Waiting first(address);
  CHECK(first.Shows(Whom(address, 1)));
  const net::Fd late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string& at = address.spec.members[0].address;
  const sockaddr_in door{
      .sin_family = AF_INET,
      .sin_port = htons(static_cast<std::uint16_t>(std::stoi(at.substr(at.rfind(':') + 1)))),
      .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
      .sin_zero = {}};
  testing::KnockWithoutDescriptors(late.get(), door, 500, [] {});
  CHECK(Joins(address, 1) == "OK");
  CHECK(ToString(first.Ended().status()) == "OK");
}

TEST_CASE("a member that can have no thread says so", "[collectives][process][faults]") {
  const Address address(1);
  const testing::NoThreads none;

  const Status status = FormGroup(address.Of(0), address.listeners[0]).status();

  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(Message(status).find("a thread for a group that forms") != std::string::npos);
}

TEST_CASE("a child that the process starts while a group forms does not get the member's port",
          "[collectives][process]") {
  Address address(2);
  const Waiting first(address);
  REQUIRE(first.Shows(Whom(address, 1)));
  const auto port_of = [](int fd) {
    sockaddr_in bound{};
    socklen_t size = sizeof(bound);
    const bool known = ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
    return known && bound.sin_family == AF_INET ? bound.sin_port : 0;
  };
  int listening = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (port_of(fd) != port_of(address.listeners[0].fd.get())) continue;
    ++listening;
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  // The test's, and that of who forms the group.
  CHECK(listening == 2);
  CHECK(Joins(address, 1) == ToString(Ok()));
}

TEST_CASE("who cannot be reached is on the page with the reason", "[collectives][process]") {
  Address address(2);
  address.spec.form_within = Millis(4'000);
  address.listeners[0].fd = net::Fd();
  Waiting second(address, 1);
  CHECK(second.Shows([&](const std::string& awaited) {
    return awaited.starts_with(Whom(address, 0) + ": ") &&
           awaited.find("refused") != std::string::npos;
  }));
  CHECK(second.Ended().status().code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("who waits for a lower member in vain does not blame those that it has not let in yet",
          "[collectives][process]") {
  Address address(3);
  address.spec.form_within = Millis(100);
  address.listeners[0].fd = net::Fd();

  const Status status = FormGroup(address.Of(1), address.listeners[1]).status();

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status).find("it waits for " + Whom(address, 0)) != std::string::npos);
  CHECK(Message(status).find("worker:2") == std::string::npos);
}

TEST_CASE("what members left that were killed while a group formed is removed by the next group",
          "[collectives][process][faults]") {
  namespace fs = std::filesystem;
  const testing::TempFolder temporary;
  const testing::EnvironmentVariables variables({{"TMPDIR", temporary.path()}});
  const auto is_empty = [&] { return fs::is_empty(temporary.path()); };
  {
    const Address address(2);
    const Process killed([&] { return Joins(address, 0); });
    const auto until = steady_clock::now() + seconds(30);
    while (is_empty() && steady_clock::now() < until) std::this_thread::yield();
    killed.Signal(SIGKILL);
  }
  REQUIRE_FALSE(is_empty());
  // One whose process lives, and what is none of ours.
  const std::string held = temporary / fmt::format("muster-group-{}-living", ::geteuid());
  fs::create_directory(held);
  const auto lock = FolderLock::Take(held, FolderLock::How::kAlone, Millis(0));
  REQUIRE(lock.ok());
  const std::string other = temporary / "muster-groups";
  fs::create_directory(other);

  InGroup(Address(2), [](Group&) {});

  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(temporary.path())) {
    left.insert(entry.path().string());
  }
  CHECK(left == std::set<std::string>{held, other});
}

TEST_CASE("members of one host that do not find each other's sockets form a group over TCP",
          "[collectives][process][faults]") {
  const testing::TempFolder elsewhere;
  Address address(2);
  address.spec.form_within = Millis(20'000);
  // The socket's path begins in another folder there than here: so it is with two /tmp.
  const Process first([&] {
    std::filesystem::create_directory(elsewhere / "own");
    const bool moved =
        ::chdir(elsewhere.path().c_str()) == 0 && ::setenv("TMPDIR", "own", /*replace=*/1) == 0;
    return moved ? Joins(address, 0) : "no folder";
  });

  CHECK(Joins(address, 1) == ToString(Ok()));
  CHECK(first.Told() == ToString(Ok()));
}

TEST_CASE("members that are children of units meet in the folder that these share",
          "[collectives][process]") {
  const testing::TempFolder shared;
  const testing::EnvironmentVariables variables({{"RUNTIME_DIRECTORY", shared.path()}});
  const Address address(2);
  const Process first([&] { return Joins(address, 0); });
  const auto is_empty = [&] { return std::filesystem::is_empty(shared.path()); };

  const auto until = steady_clock::now() + seconds(30);
  while (is_empty() && steady_clock::now() < until) std::this_thread::yield();

  CHECK_FALSE(is_empty());
}

TEST_CASE("a member that is stopped when all have come, before the group has formed, is noticed",
          "[collectives][process][faults]") {
  const Address address(3);
  const Process second([&] { return Joins(address, 1); });
  Waiting first(address);
  REQUIRE(first.Shows(Whom(address, 2)));
  second.Signal(SIGSTOP);
  const auto stopped = steady_clock::now();
  const Process third([&] { return Joins(address, 2); });

  const Status status = first.Ended().status();

  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(Message(status).find("worker:1 was lost while the group formed") != std::string::npos);
  CHECK(steady_clock::now() - stopped < seconds(15));
}

TEST_CASE("a member that is lost when it has said its last word of the forming ends the group",
          "[collectives][process][faults]") {
  auto lobby = Lobby::Create({.job = "test", .tasks = {"worker:0", "worker:1"}});
  REQUIRE(lobby.ok());
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  (*lobby)->Seat(1,
                 std::make_unique<net::DuplexLink>(std::make_shared<net::Stream>(net::Fd(ends[0])),
                                                   net::LinkKind::kUnix, "worker:1",
                                                   net::DuplexLink::Options{}),
                 /*asks=*/false);
  ::close(ends[1]);
  REQUIRE((*lobby)->Await(1, steady_clock::now() + seconds(30)).status().code() ==
          StatusCode::kUnavailable);
  std::promise<void> over;

  const auto watch = Watch::Create(0, {"worker:0", "worker:1"}, (*lobby)->Leave(), {},
                                   [&over] { over.set_value(); });

  REQUIRE(watch.ok());
  REQUIRE(over.get_future().wait_for(seconds(30)) == std::future_status::ready);
  CHECK((*watch)->failure().code() == StatusCode::kUnavailable);
  CHECK(Message((*watch)->failure()).find("worker:1 was lost") != std::string::npos);
}

// A lobby of worker:0 with others, by the other ends of their links.
class Hosted {
 public:
  explicit Hosted(int guests) {
    std::vector<std::string> tasks{"worker:0"};
    for (int r = 1; r <= guests; ++r) tasks.push_back(fmt::format("worker:{}", r));
    auto lobby = Lobby::Create({.job = "test", .tasks = tasks});
    REQUIRE(lobby.ok());
    lobby_ = *std::move(lobby);
    for (int r = 1; r <= guests; ++r) {
      int ends[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
      const auto over = [](int end, int rank) {
        return std::make_unique<net::DuplexLink>(
            std::make_shared<net::Stream>(net::Fd(end)), net::LinkKind::kUnix,
            fmt::format("worker:{}", rank), net::DuplexLink::Options{});
      };
      lobby_->Seat(r, over(ends[0], r), /*asks=*/false);
      guests_[r] = over(ends[1], 0);
    }
  }
  Lobby& lobby() { return *lobby_; }
  void Says(int rank, net::FrameKind kind) {
    REQUIRE(guests_[rank]->Queue({.kind = kind}, {}, {}).ok());
    REQUIRE(guests_[rank]->Flush().ok());
  }
  // Its link is closed, and the lobby knows it.
  void Loses(int rank) {
    guests_.erase(rank);
    const auto until = steady_clock::now() + seconds(30);
    while (lobby_->Has(rank) && steady_clock::now() < until) std::this_thread::yield();
    REQUIRE_FALSE(lobby_->Has(rank));
  }

 private:
  std::unique_ptr<Lobby> lobby_;
  std::map<int, std::unique_ptr<net::DuplexLink>> guests_;
};

TEST_CASE("who was lost first is named and not who gave up because of it",
          "[collectives][process][faults]") {
  Hosted members(3);
  members.Loses(3);
  members.Loses(1);

  const auto heard = members.lobby().Await(1, steady_clock::now() + seconds(30));

  CHECK(heard.status().code() == StatusCode::kUnavailable);
  CHECK(Message(heard.status()).find("worker:3 was lost") != std::string::npos);
  const Status told = members.lobby().Say(1, net::kFirstOfProtocols + 10, 0, {});
  CHECK(Message(told).find("worker:3 was lost") != std::string::npos);
}

TEST_CASE("one that has formed the group and left is no loss to those who form it still",
          "[collectives][process]") {
  Hosted members(2);
  members.Says(2, net::kFirstOfProtocols + 1);
  members.Loses(2);
  members.Says(1, net::kFirstOfProtocols + 10);

  const auto heard = members.lobby().Await(1, steady_clock::now() + seconds(30));

  REQUIRE(heard.ok());
  CHECK(heard->has_value());
}

TEST_CASE("who waits for the shared memory of one that is lost does not wait for the deadline",
          "[collectives][process][faults]") {
  Hosted members(1);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const net::Fd hears(ends[0]), says(ends[1]);
  members.Loses(1);

  const Status lost = members.lobby().AwaitBytes(hears.get(), steady_clock::now() + seconds(300));
  REQUIRE(::write(says.get(), "m", 1) == 1);
  const Status there = members.lobby().AwaitBytes(hears.get(), steady_clock::now() + seconds(300));

  CHECK(lost.code() == StatusCode::kUnavailable);
  CHECK(Message(lost).find("worker:1 was lost") != std::string::npos);
  CHECK(ToString(there) == "OK");
}

TEST_CASE("one that comes again takes the place of its process that answers nothing any more",
          "[collectives][process][faults]") {
  const Address address(3);
  // As a host does that has crashed: its end of the link is open, and nobody is behind it.
  const Process gone([&] { return Joins(address, 1); });
  Waiting first(address);
  REQUIRE(first.Shows(Whom(address, 2)));
  gone.Signal(SIGSTOP);

  std::string again, third;
  std::thread second([&] { again = Joins(address, 1); });
  REQUIRE(first.Shows(Whom(address, 1) + ", " + Whom(address, 2)));
  std::thread last([&] { third = Joins(address, 2); });
  second.join();
  last.join();

  INFO(ToString(first.Ended().status()));
  CHECK(first.Ended().ok());
  CHECK(again == ToString(Ok()));
  CHECK(third == ToString(Ok()));
}

TEST_CASE("the last of many members has the time to greet all others from 10 ms away",
          "[collectives][process]") {
  constexpr Millis kGreeting{2 * 4 * 10};

  CHECK(TimeToForm(2) < seconds(3));
  CHECK(TimeToForm(40) > 39 * kGreeting);
  CHECK(TimeToForm(kMostMembers) > (kMostMembers - 1) * kGreeting);
}

TEST_CASE("two processes that live and say that they are one member are told so as all others are",
          "[collectives][process]") {
  const Address address(4);
  const Process second([&] { return Joins(address, 1); });
  const Process third([&] { return Joins(address, 2); });
  Waiting first(address);
  REQUIRE(first.Shows(Whom(address, 3)));

  const std::string again = Joins(address, 1);

  CHECK(again.find("two processes say that they are worker:1") != std::string::npos);
  const Status status = first.Ended().status();
  CHECK(status.code() == StatusCode::kAlreadyExists);
  const std::string told = "ALREADY_EXISTS: two processes say that they are worker:1";
  CHECK(second.Told() == told);
  CHECK(third.Told() == told);
}

}  // namespace
}  // namespace muster::collectives
