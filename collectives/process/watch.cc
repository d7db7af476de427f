#include "collectives/process/watch.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

#include "collectives/process/link_news.h"
#include "common/process/no_more.h"

namespace muster::collectives {
namespace {

// Frames of the watch, beside pings. PROGRESS and LEFT: meta is a Progress. OVER: the header's
// status and meta say by what.
constexpr net::FrameKind kProgress = net::kFirstOfProtocols;
constexpr net::FrameKind kLeft = net::kFirstOfProtocols + 1;
constexpr net::FrameKind kOver = net::kFirstOfProtocols + 2;

// The last words of a member that leaves may take this long.
constexpr Millis kLastWords{1'000};
// An operation's link breaks a moment before the reason is told.
constexpr Millis kReasonWithin{1'000};

std::array<std::byte, sizeof(Progress)> BytesOf(Progress progress) {
  return std::bit_cast<std::array<std::byte, sizeof(Progress)>>(progress);
}

void Ring(const net::Fd& fd) {
  const std::uint64_t one = 1;
  (void)!::write(fd.get(), &one, sizeof(one));
}

}  // namespace

Result<std::unique_ptr<Watch>> Watch::Create(int rank, std::vector<std::string> tasks,
                                             std::vector<Link> links, const Show& show,
                                             std::function<void()> on_over) {
  net::Fd wake_thread(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  net::Fd wake_caller(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_thread.valid() || !wake_caller.valid()) return FromErrno(errno, "eventfd");
  try {
    return std::unique_ptr<Watch>(new Watch(rank, std::move(tasks), std::move(links), show,
                                            std::move(on_over), std::move(wake_thread),
                                            std::move(wake_caller)));
  } catch (const std::system_error& error) {
    return process::NoMore(error.code().value(), "a thread that watches over a group");
  }
}

Watch::Watch(int rank, std::vector<std::string> tasks, std::vector<Link> links, const Show& show,
             std::function<void()> on_over, net::Fd wake_thread, net::Fd wake_caller)
    : on_over_(std::move(on_over)),
      wake_thread_(std::move(wake_thread)),
      wake_caller_(std::move(wake_caller)),
      state_(rank, std::move(tasks)),
      generation_(show.generation),
      sign_(show.wait_page) {
  const MutexLock lock(mutex_);
  for (Link& link : links) links_.push_back(std::move(link.link));
  for (int r = 0; r < static_cast<int>(links.size()); ++r) {
    const Link& link = links[static_cast<std::size_t>(r)];
    bool left = false;
    for (const EarlyFrame& frame : link.early) {
      left = left || frame.header.kind == kLeft;
      if (const Status status = OnFrame(r, frame.header, frame.meta); !status.ok()) {
        state_.OnLost(r, status);
      }
    }
    if (!left) state_.Fail(link.lost);
  }
  // What is over already is said at once.
  if (!state_.failure().ok()) Ring(wake_thread_);
  thread_ = std::thread([this] { Run(); });
}

bool Watch::IsLastWord(const EarlyFrame& frame) {
  return frame.header.kind == kLeft || frame.header.kind == kOver;
}

Watch::~Watch() {
  stop_ = true;
  Ring(wake_thread_);
  thread_.join();
}

Result<std::uint64_t> Watch::Begin(std::uint64_t signature) {
  const std::uint64_t operation = begun_.load(std::memory_order_relaxed) + 1;
  signatures_[operation & 1].store(signature, std::memory_order_release);
  // In one order with OnFrame()'s, which stores the one and reads the other: somebody sees it.
  begun_.store(operation);
  if (operation > last_possible_.load() || over_.load()) {
    const MutexLock lock(mutex_);
    if (state_.failure().ok()) state_.Fail(state_.Check(operation));
    Settle();
    return state_.failure();
  }
  return operation;
}

// The caller's thread may begin operations meanwhile. Who reads the signature of one that is two
// later sees that the next one was begun.
Progress Watch::progress() const {
  while (true) {
    Progress seen{.begun = begun_.load(), .done = done_.load()};
    seen.signature = signatures_[seen.begun & 1].load(std::memory_order_acquire);
    if (begun_.load() == seen.begun) return seen;
  }
}

Status Watch::Fail(const Status& status) {
  MutexLock lock(mutex_);
  const bool hearsay =
      status.code() == StatusCode::kCancelled || status.code() == StatusCode::kUnavailable;
  if (hearsay) {
    const TimePoint until = std::chrono::steady_clock::now() + kReasonWithin;
    while (state_.failure().ok() && std::chrono::steady_clock::now() < until) {
      (void)known_.wait_until(mutex_, until);
    }
  }
  state_.Fail(status);
  Settle();
  return state_.failure();
}

void Watch::Lasts(std::string call, Millis limit, std::span<const int> waiting) {
  {
    const MutexLock lock(mutex_);
    const std::uint64_t operation = begun_.load(std::memory_order_relaxed);
    if (!lasting_.has_value() || lasting_->operation != operation) {
      lasting_ = {.operation = operation,
                  .since = std::chrono::steady_clock::now() - Waiter::kPatience,
                  .limit = limit,
                  .call = std::move(call),
                  .waiting = {}};
    }
    lasting_->waiting.assign(waiting.begin(), waiting.end());
  }
  // The others are told, too, that this member is in it.
  Ring(wake_thread_);
}

void Watch::ShowWait(TimePoint now) {
  const Progress mine = progress();
  if (lasting_.has_value() && (lasting_->operation != mine.begun || mine.begun == mine.done)) {
    lasting_.reset();
  }
  if (!lasting_.has_value() || !state_.failure().ok()) return sign_.Clear();
  sign_.Show({.generation = generation_,
              .operation = lasting_->operation,
              .call = lasting_->call,
              .awaited = state_.Awaited(lasting_->operation, lasting_->waiting),
              .lasts = std::chrono::floor<Millis>(now - lasting_->since),
              .limit = lasting_->limit});
}

void Watch::Abort(const Status& why) {
  const MutexLock lock(mutex_);
  state_.Fail(why);
  Settle();
}

std::string Watch::Awaited(const std::vector<int>& waiting) {
  const MutexLock lock(mutex_);
  return state_.Awaited(begun_.load(std::memory_order_relaxed), waiting);
}

Status Watch::failure() {
  const MutexLock lock(mutex_);
  return state_.failure();
}

// The thread: listens to all links, asks quiet ones, and says what there is to say, until the owner
// goes; then the last words.
void Watch::Run() {
  std::vector<net::DuplexLink*> open;
  LinkNews news;
  {
    // What came with the end of a handshake is in the stream's memory, where poll() sees nothing.
    const MutexLock lock(mutex_);
    for (int r = 0; r < static_cast<int>(links_.size()); ++r) Listen(r);
  }
  while (!stop_) {
    {
      const MutexLock lock(mutex_);
      open.clear();
      for (const auto& link : links_) open.push_back(link.get());
    }
    // An operation that begins from now on rings when it lasts.
    const Progress mine = progress();
    const bool within = mine.begun != mine.done;
    news.Await(
        open, wake_thread_.get(),
        within ? std::chrono::steady_clock::now() + GroupState::kSayEvery : TimePoint::max());
    std::uint64_t rung = 0;
    (void)!::read(wake_thread_.get(), &rung, sizeof(rung));
    const MutexLock lock(mutex_);
    for (int r = 0; r < static_cast<int>(links_.size()); ++r) {
      if (news.Has(static_cast<std::size_t>(r))) Listen(r);
    }
    Say(state_.Tick(progress(), std::chrono::steady_clock::now()));
    Settle();
    ShowWait(std::chrono::steady_clock::now());
  }
  const MutexLock lock(mutex_);
  sign_.Clear();
  const auto last = BytesOf(progress());
  SayToAll({.kind = kLeft}, last);
  const TimePoint until = std::chrono::steady_clock::now() + kLastWords;
  for (const auto& link : links_) {
    while (link != nullptr && link->unsent() > 0 && std::chrono::steady_clock::now() < until) {
      net::DuplexLink* const one = link.get();
      if (!link->Flush().ok()) break;
      if (link->unsent() > 0) net::WaitForLinks({&one, 1}, -1, until, nullptr);
    }
  }
}

void Watch::Listen(int rank) {
  auto& link = links_[static_cast<std::size_t>(rank)];
  if (link == nullptr) return;
  const auto handle = [&](const net::FrameHeader& header, std::span<const std::byte> meta,
                          std::span<const std::byte>)
                          MUSTER_REQUIRES(mutex_) { return OnFrame(rank, header, meta); };
  auto received = link->Receive(handle);
  Status status = received.status();
  if (status.ok()) status = link->Tick();
  if (status.ok()) status = link->Flush().status();
  if (status.ok()) return;
  state_.OnLost(rank, status);
  link.reset();
}

Status Watch::OnFrame(int rank, const net::FrameHeader& header, std::span<const std::byte> meta) {
  if (header.kind == kOver) {
    const std::string text(reinterpret_cast<const char*>(meta.data()), meta.size());
    state_.OnEnd(rank, MakeStatus(static_cast<StatusCode>(header.status), text));
    return Ok();
  }
  Progress theirs;
  if (meta.size() != sizeof(theirs) || (header.kind != kProgress && header.kind != kLeft)) {
    return DataLoss("a frame of kind {} with {} bytes is none of a group's", header.kind,
                    meta.size());
  }
  std::memcpy(&theirs, meta.data(), sizeof(theirs));
  if (header.kind == kProgress) {
    state_.OnProgress(rank, theirs);
    return Ok();
  }
  state_.OnLeft(rank, theirs);
  last_possible_ = std::min(last_possible_.load(), theirs.done);
  const Progress mine = progress();
  if (mine.begun != mine.done) state_.Fail(state_.Check(mine.begun));
  return Ok();
}

void Watch::Settle() {
  if (state_.failure().ok() || over_) return;
  over_.store(true, std::memory_order_release);
  Say(state_.Tick(progress(), std::chrono::steady_clock::now()));
  known_.notify_all();
  Ring(wake_caller_);
  on_over_();
}

void Watch::Say(const GroupState::News& news) {
  if (news.progress.has_value()) SayToAll({.kind = kProgress}, BytesOf(*news.progress));
  if (!news.end.has_value()) return;
  const std::string text = Message(*news.end);
  SayToAll({.kind = kOver, .status = static_cast<std::uint32_t>(news.end->code())},
           std::as_bytes(std::span(text)));
}

void Watch::SayToAll(const net::FrameHeader& header, std::span<const std::byte> meta) {
  for (const auto& link : links_) {
    // A link that is broken is found by Listen().
    if (link != nullptr && link->Queue(header, meta, {}).ok()) (void)link->Flush();
  }
}

}  // namespace muster::collectives
