#include "collectives/process/lobby.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "collectives/process/link_news.h"
#include "common/net/socket_calls.h"
#include "common/process/no_more.h"
#include "common/telemetry/log.h"

namespace muster::collectives {
namespace {

using std::chrono::steady_clock;

// The group does not form; meta: why, the header's status is the code.
constexpr net::FrameKind kFailed = net::kFirstOfProtocols + 11;

// Who waits says so to its daemon this often (process::WaitPage::kFresh).
constexpr Millis kShowEvery{500};
// Who waits for bytes looks this often whether somebody was lost.
constexpr Millis kLookForLosses{200};

}  // namespace

Result<std::unique_ptr<Lobby>> Lobby::Create(Options options) {
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return FromErrno(errno, "eventfd");
  try {
    return std::unique_ptr<Lobby>(new Lobby(std::move(options), std::move(wake)));
  } catch (const std::system_error& error) {
    return process::NoMore(error.code().value(), "a thread for a group that forms");
  }
}

Lobby::Lobby(Options options, net::Fd wake)
    : options_(std::move(options)),
      wake_(std::move(wake)),
      began_(steady_clock::now()),
      guests_(options_.tasks.size()),
      sign_(options_.wait_page) {
  thread_ = std::thread([this] { Run(); });
}

Lobby::~Lobby() { End(); }

void Lobby::End() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  Ring();
  if (thread_.joinable()) thread_.join();
}

void Lobby::Ring() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Lobby::Seat(int rank, std::unique_ptr<net::DuplexLink> link, bool asks) {
  {
    const MutexLock lock(mutex_);
    Guest& one = guest(rank);
    if (one.link != nullptr) {
      ++one.losses;
      gone_.push_back(std::move(one.link));
    }
    one = Guest{.link = std::move(link), .frames = {}, .lost = Ok(), .losses = one.losses};
    // A link asks nobody who has said nothing: the first ping makes both ask.
    if (asks && one.link->Queue({.kind = net::kPing}, {}, {}).ok()) (void)one.link->Flush();
  }
  Ring();
}

Lobby::Place Lobby::Knock(int rank) {
  const MutexLock lock(mutex_);
  Guest& one = guest(rank);
  if (one.link == nullptr) return Place::kFree;
  if (!std::exchange(one.knocked, true)) one.heard = false;
  return one.heard ? Place::kTaken : Place::kAsked;
}

bool Lobby::Has(int rank) {
  const MutexLock lock(mutex_);
  return guest(rank).link != nullptr;
}

int Lobby::losses(int rank) {
  const MutexLock lock(mutex_);
  return guest(rank).losses;
}

void Lobby::WaitsFor(std::string whom) {
  const MutexLock lock(mutex_);
  waits_for_ = std::move(whom);
}

Status Lobby::Say(int rank, net::FrameKind kind, std::uint64_t request,
                  std::span<const std::byte> meta) {
  const MutexLock lock(mutex_);
  Guest& one = guest(rank);
  if (one.link == nullptr) {
    MUSTER_TRY(FirstLost());
    return one.lost;
  }
  MUSTER_TRY(one.link->Queue({.kind = kind, .request = request}, meta, {}));
  return one.link->Flush().status();
}

Result<std::optional<Watch::EarlyFrame>> Lobby::Await(int rank, TimePoint deadline) {
  const MutexLock lock(mutex_);
  Guest& one = guest(rank);
  while (one.frames.empty()) {
    MUSTER_TRY(FirstLost());
    MUSTER_TRY(one.lost);
    if (steady_clock::now() >= deadline) return std::optional<Watch::EarlyFrame>();
    (void)changed_.wait_until(mutex_, deadline);
  }
  std::optional<Watch::EarlyFrame> first = std::move(one.frames.front());
  one.frames.erase(one.frames.begin());
  return first;
}

Status Lobby::AwaitBytes(int fd, TimePoint deadline) {
  while (true) {
    const TimePoint look = std::min(deadline, steady_clock::now() + kLookForLosses);
    if (net::PollUntil(fd, POLLIN, look) != 0 || look == deadline) return Ok();
    const MutexLock lock(mutex_);
    MUSTER_TRY(FirstLost());
  }
}

// One that has formed the group and left it, or told the others of its end, has said so.
Status Lobby::FirstLost() const {
  MUSTER_TRY(verdict_);
  const Guest* first = nullptr;
  for (const Guest& one : guests_) {
    if (one.lost.ok() || (first != nullptr && first->lost_as < one.lost_as)) continue;
    if (std::ranges::none_of(one.frames, &Watch::IsLastWord)) first = &one;
  }
  return first == nullptr ? Ok() : first->lost;
}

Status Lobby::AnyLost(int end) {
  const MutexLock lock(mutex_);
  MUSTER_TRY(verdict_);
  for (int rank = 0; rank < end; ++rank) MUSTER_TRY(guest(rank).lost);
  return Ok();
}

Status Lobby::TellAll(const Status& why) {
  const MutexLock lock(mutex_);
  verdict_ = why;
  SayVerdict();
  return why;
}

void Lobby::SayVerdict() {
  const std::string text = Message(verdict_);
  const auto code = static_cast<std::uint32_t>(verdict_.code());
  for (const Guest& one : guests_) {
    if (one.link == nullptr) continue;
    const Status queued =
        one.link->Queue({.kind = kFailed, .status = code}, std::as_bytes(std::span(text)), {});
    if (queued.ok()) (void)one.link->Flush();
  }
}

std::vector<Watch::Link> Lobby::Leave() {
  End();
  const MutexLock lock(mutex_);
  std::vector<Watch::Link> links;
  for (Guest& one : guests_) {
    links.push_back({std::move(one.link), std::move(one.frames), one.lost});
  }
  return links;
}

void Lobby::Run() {
  std::vector<net::DuplexLink*> open;
  LinkNews news;
  while (true) {
    {
      const MutexLock lock(mutex_);
      gone_.clear();
      for (std::size_t r = 0; r < guests_.size(); ++r) {
        // What came along with a handshake is in the stream's memory, where poll() sees nothing.
        if (guests_[r].is_new || news.Has(r)) Listen(static_cast<int>(r));
      }
      Show(steady_clock::now());
      if (stop_) break;
      open.clear();
      for (const Guest& one : guests_) open.push_back(one.link.get());
    }
    changed_.notify_all();
    news.Await(open, wake_.get(), steady_clock::now() + kShowEvery);
    std::uint64_t rung = 0;
    (void)!::read(wake_.get(), &rung, sizeof(rung));
  }
  const MutexLock lock(mutex_);
  sign_.Clear();
}

// What has come from one member; and whether it lives.
void Lobby::Listen(int rank) {
  Guest& one = guest(rank);
  if (one.link == nullptr) return;
  one.is_new = false;
  const bool knew = !verdict_.ok();
  const auto received =
      one.link->Receive([&](const net::FrameHeader& header, std::span<const std::byte> meta,
                            auto) MUSTER_REQUIRES(mutex_) {
        if (header.kind == kFailed) {
          const std::string text(reinterpret_cast<const char*>(meta.data()), meta.size());
          if (!knew) verdict_ = MakeStatus(static_cast<StatusCode>(header.status), text);
          return Ok();
        }
        one.frames.push_back({header, {meta.begin(), meta.end()}});
        return Ok();
      });
  if (!knew && !verdict_.ok()) SayVerdict();
  Status status = received.status();
  if (status.ok()) {
    one.heard = one.heard || *received > 0;
    status = one.link->Tick();
  }
  if (status.ok()) status = one.link->Flush().status();
  if (status.ok()) return;
  one.lost = Unavailable("{} was lost while the group formed: {}",
                         options_.tasks[static_cast<std::size_t>(rank)], Message(status));
  ++one.losses;
  one.lost_as = ++lost_;
  gone_.push_back(std::move(one.link));
}

void Lobby::Show(TimePoint now) {
  if (stop_ || waits_for_.empty()) return sign_.Clear();
  const auto lasts = std::chrono::floor<Millis>(now - began_);
  const bool shown = sign_.Show({.generation = options_.generation,
                                 .operation = 0,
                                 .call = "forming of the group",
                                 .awaited = waits_for_,
                                 .lasts = lasts,
                                 .limit = options_.limit});
  if (!shown || !sign_.LogsAfter(lasts)) return;
  log::Warning("group {} of {} has been forming for {} s: it waits for {}", options_.generation,
               options_.job, lasts.count() / 1'000, waits_for_);
}

}  // namespace muster::collectives
