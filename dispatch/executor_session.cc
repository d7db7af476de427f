#include "dispatch/executor_session.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <new>
#include <string_view>
#include <utility>

#include "dispatch/core/assignment.h"
#include "dispatch/core/per_worker_values.h"
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "common/base/thrown.h"

namespace muster::dispatch {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Answers go out together, but none waits longer than this for those after it.
constexpr std::size_t kAnswersTogether = 64;
constexpr std::chrono::microseconds kAnswerWithin{100};
// Jobs that one runner takes at a time while others could have some.
constexpr std::size_t kShare = 16;
// Pings and cancelling wait this long at most while everybody runs closures.
constexpr Millis kUnwatched{5};
// A driver that takes no more is not told of a closure that was given up.
constexpr Millis kLastWords{1'000};

std::string GoesOn(ClosureId closure, Millis grace, std::string_view why) {
  return fmt::format(
      "{} goes on {} ms after it was cancelled, since {}: a function that takes long asks "
      "muster::cancellation()",
      PerWorkerValues::IsPinned(closure) ? "a per-worker value"
                                         : fmt::format("closure {}", closure),
      grace.count(), why);
}

bool Pinned(const WireRecord& record) { return PerWorkerValues::IsPinned(record.closure); }

// How many times fork() has led to this process; asking the kernel for its pid would cost each
// closure a system call.
std::uint64_t ForksUpToHere() {
  static std::atomic<std::uint64_t> forks{0};
  [[maybe_unused]] static const int watched = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return forks;
}

}  // namespace

ExecutorSession::ExecutorSession(std::unique_ptr<net::DuplexLink> link,
                                 const FunctionTable& functions, Options options,
                                 RunningTable& running, net::Fd wake)
    : link_(std::move(link)),
      functions_(functions),
      options_(std::move(options)),
      closures_at_a_time_(options_.closures_at_a_time),
      table_(running),
      forks_(ForksUpToHere()),
      wake_(std::move(wake)),
      spinner_(options_.spin, options_.spin_limit),
      alive_(closures_at_a_time_ + 1) {
  const auto start = [this](auto life) {
    threads_.emplace_back([this, life] {
      life();
      const MutexLock lock(mutex_);
      --alive_;
      ended_.notify_all();
    });
  };
  for (std::uint32_t slot = 0; slot < closures_at_a_time_; ++slot) {
    start([this, slot] { Run(slot); });
  }
  start([this] { Watch(); });
}

ExecutorSession::~ExecutorSession() {
  Over();
  if (options_.on_stuck) {
    const TimePoint deadline = SteadyClock::now() + options_.cancel_grace;
    bool ended = false;
    {
      const MutexLock lock(mutex_);
      while (alive_ > 0 && ended_.wait_until(mutex_, deadline)) {
      }
      ended = alive_ == 0;
    }
    const std::vector<RunningTable::Entry> running = table_.Now();
    if (!ended && !running.empty()) {
      options_.on_stuck(
          GoesOn(running.front().closure, options_.cancel_grace, "its driver is gone"));
    }
  }
  for (std::thread& thread : threads_) thread.join();
}

void ExecutorSession::SayDraining() {
  draining_ = true;
  // Before the driver has spoken nothing may be said; it hears it as the answer then.
  if (!spoken_to_) return;
  if (!SayCredit().ok()) return Over();
  Wake();  // the leader, which may have to send the rest
}

Status ExecutorSession::SayCredit() {
  Batch credit(Verb::kCredit);
  credit.Add({.function = draining_ ? 0 : closures_at_a_time_});
  MUSTER_TRY(credit.QueueOn(*link_));
  return link_->Flush().status();
}

void ExecutorSession::Over() {
  // First the link: what closures say of being cancelled is not the driver's any more.
  link_->ShutDown();
  cancellation_.CancelTo(ClosureId(std::numeric_limits<std::uint64_t>::max()));
  {
    const MutexLock lock(mutex_);
    over_ = true;
    jobs_.clear();
  }
  Wake();
  work_.notify_all();
  watch_.notify_all();
}

void ExecutorSession::Wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  // After the write: what is not written yet must not count as read.
  wake_written_ = true;
}

template <class Work>
void ExecutorSession::Busy(const Work& work) {
  ++running_;
  // The others: for what is left, and for the link.
  const bool more = waiting_ > 0 && (!jobs_.empty() || !leading_);
  mutex_.unlock();
  if (more) work_.notify_one();
  work();
  mutex_.lock();
  --running_;
}

// Destructors of users: they run as builds do, so that one that stands still is seen.
void ExecutorSession::EndValues(std::vector<Released>& values, std::size_t slot) {
  for (Released& one : values) {
    table_.Begin(slot, one.id, Attempt());
    one.value.reset();
  }
  table_.Begin(slot, ClosureId(), Attempt());
  values.clear();
}

// Jobs come first, then the link, then waiting: the thread that has read a closure runs it.
void ExecutorSession::Run(std::size_t slot) {
  std::vector<Job> mine;
  std::vector<Released> ended;
  MutexLock lock(mutex_);
  while (!over_) {
    if (!released_.empty()) {
      ended.swap(released_);
      Busy([&] { EndValues(ended, slot); });
      continue;
    }
    TakeJobs(mine);
    if (!mine.empty()) {
      const bool build = Pinned(mine.front().record);
      Busy([&] {
        RunJobs(mine, slot);
        mine.clear();
      });
      if (build) {
        build_runs_ = false;
        work_.notify_all();
      }
      continue;
    }
    if (!leading_) {
      leading_ = true;
      lock.unlock();
      Lead(&spinner_, TimePoint::max());
      lock.lock();
      leading_ = false;
      ++turns_;
      continue;
    }
    // The watcher gives the link to a runner that has nothing else to do.
    if (watcher_leads_) Wake();
    ++waiting_;
    work_.wait(mutex_);
    --waiting_;
  }
  // Whoever waits for the link or for a build.
  work_.notify_all();
}

void ExecutorSession::Watch() {
  MutexLock lock(mutex_);
  std::uint64_t seen = turns_;
  while (!over_) {
    (void)watch_.wait_until(mutex_, SteadyClock::now() + kUnwatched);
    const bool unwatched = !leading_ && running_ > 0 && seen == turns_;
    seen = turns_;
    // What begins after it was cancelled ends at once.
    if (running_ == 0) cancelled_.clear();
    if (over_ || running_ == 0) continue;
    if (unwatched) leading_ = watcher_leads_ = true;
    const std::optional<Limited> late = TakeLate();
    const std::optional<ClosureId> deaf = TakeDeaf();
    lock.unlock();
    if (late) GiveUp(*late);
    if (deaf) {
      options_.on_stuck(GoesOn(*deaf, options_.cancel_grace, "another one has failed"));
    }
    // A runner that is in a long closure cannot send what came before it.
    AnswerNow();
    if (unwatched) Lead(nullptr, SteadyClock::now() + kUnwatched);
    lock.lock();
    if (!unwatched) continue;
    leading_ = watcher_leads_ = false;
    work_.notify_one();
  }
}

// One turn: what has come is taken, and if that is nothing, waited for.
void ExecutorSession::Lead(net::Spinner* spinner, TimePoint until) {
  const auto on_frame = [this](const net::FrameHeader& header, std::span<const std::byte> meta,
                               const KeptBytes& payload) { return OnFrame(header, meta, payload); };
  net::DuplexLink* const link = link_.get();
  for (bool waited = false;; waited = true) {
    auto got = link_->Receive(on_frame);
    Status status = got.status();
    if (status.ok()) status = link_->Tick();
    if (status.ok() && link_->unsent() > 0) status = link_->Flush().status();
    if (!status.ok()) return Over();
    if (*got > 0 || waited) return;
    net::WaitForLinks(std::span(&link, 1), wake_.get(), until, spinner);
    if (wake_written_.exchange(false)) {
      std::uint64_t woken = 0;
      (void)!::read(wake_.get(), &woken, sizeof(woken));
    }
  }
}

// What the driver says takes effect at once, but for closures, which wait for RunJobs().
Status ExecutorSession::OnFrame(const net::FrameHeader& header, std::span<const std::byte> meta,
                                const KeptBytes& payload) {
  switch (static_cast<Verb>(header.kind)) {
    case Verb::kCredit:
      spoken_to_ = true;
      return SayCredit();
    case Verb::kClosures: {
      const MutexLock lock(mutex_);
      return ReadBatch(meta, payload,
                       [this](const WireRecord& record, const KeptBytes& arguments)
                           MUSTER_REQUIRES(mutex_) {
                             jobs_.emplace_back();
                             jobs_.back().record = record;
                             jobs_.back().arguments.Assign(arguments);
                             if (options_.on_arrival) {
                               options_.on_arrival(record.function, arguments);
                             }
                             return Ok();
                           });
    }
    case Verb::kCancel:
      return ReadBatch(meta, payload, [this](const WireRecord& record, const KeptBytes&) {
        if ((record.flags & kFlagRelease) != 0) {
          std::shared_ptr<void> value = values_.Take(record.closure);
          const MutexLock lock(mutex_);
          if (value != nullptr) released_.push_back({record.closure, std::move(value)});
        } else {
          cancellation_.CancelTo(record.closure);
          const MutexLock lock(mutex_);
          cancelled_.push_back({record.closure, SteadyClock::now() + options_.cancel_grace});
        }
        return Ok();
      });
    case Verb::kResults:
      break;
  }
  return DataLoss("{}: a frame of kind {} for an executor", link_->peer(), header.kind);
}

void ExecutorSession::TakeJobs(std::vector<Job>& into) {
  // A build runs alone: what comes after it may use what it builds.
  if (jobs_.empty() || build_runs_) return;
  if (Pinned(jobs_.front().record)) {
    if (running_ > 0) return;
    build_runs_ = true;
    into.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
    return;
  }
  std::size_t share = jobs_.size();
  if (closures_at_a_time_ > 1) {
    share = std::clamp<std::size_t>(share / closures_at_a_time_, 1, kShare);
  }
  while (share-- > 0 && !jobs_.empty() && !Pinned(jobs_.front().record)) {
    into.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
  }
}

void ExecutorSession::RunJobs(std::vector<Job>& jobs, std::size_t slot) {
  std::vector<std::byte> value;
  TimePoint clock = SteadyClock::now();
  TimePoint answered = clock;
  for (const Job& job : jobs) {
    table_.Begin(slot, job.record.closure, job.record.attempt);
    const bool limited = IsLimited(job.record);
    if (limited) {
      const MutexLock lock(mutex_);
      limited_.push_back({job.record, clock + Millis(job.record.run_time)});
    }
    const bool full = RunOne(job, value, clock);
    table_.End(slot);
    if (limited) (void)TakeLimit(job.record);
    if (!full && clock - answered < kAnswerWithin) continue;
    Answer();
    answered = clock;
  }
  Answer();
}

bool ExecutorSession::IsLimited(const WireRecord& record) const {
  return record.run_time > 0 && functions_.Find(record.function) != nullptr;
}

bool ExecutorSession::TakeLimit(const WireRecord& record) {
  const MutexLock lock(mutex_);
  return std::erase_if(limited_, [&](const Limited& one) {
           return one.record.closure == record.closure && one.record.attempt == record.attempt;
         }) > 0;
}

std::optional<ExecutorSession::Limited> ExecutorSession::TakeLate() {
  if (limited_.empty()) return std::nullopt;
  const TimePoint now = SteadyClock::now();
  const auto found =
      std::ranges::find_if(limited_, [&](const Limited& one) { return one.until <= now; });
  if (found == limited_.end()) return std::nullopt;
  const Limited late = *found;
  limited_.erase(found);
  return late;
}

std::optional<ClosureId> ExecutorSession::TakeDeaf() {
  if (cancelled_.empty() || !options_.on_stuck) return std::nullopt;
  const TimePoint now = SteadyClock::now();
  const auto due =
      std::ranges::find_if(cancelled_, [&](const CancelledTo& one) { return one.until <= now; });
  if (due == cancelled_.end()) return std::nullopt;
  const ClosureId to = due->closure;
  cancelled_.erase(due);
  for (const RunningTable::Entry& one : table_.Now()) {
    if (one.closure <= to) return one.closure;
  }
  return std::nullopt;
}

// Tells the driver, and then whoever may end this process. What the function returns after all
// comes too late: the driver drops it. One that takes nothing is told nothing: this is the watcher,
// which waits for no runner that waits for room.
void ExecutorSession::GiveUp(const Limited& late) {
  const std::string what = fmt::format("{} has run for {} ms, its deadline",
                                       functions_.name(late.record.function), late.record.run_time);
  ClosureError error;
  error.status = DeadlineExceeded("{}: it was given up, and its executor ends", what);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const std::uint64_t ran = std::uint64_t{1'000'000} * late.record.run_time;
  const WireRecord record{.closure = late.record.closure,
                          .attempt = late.record.attempt,
                          .flags = kFlagError,
                          .run_time = static_cast<std::uint32_t>(std::min(ran, kMost))};
  const std::vector<std::byte> bytes = EncodeError(error);
  const TimePoint end = SteadyClock::now() + kLastWords;
  bool said = AnswerNow(record, bytes);
  while ((!said || (options_.on_stuck && link_->unsent() > 0)) && SteadyClock::now() < end) {
    pollfd room{.fd = link_->fd(), .events = POLLOUT, .revents = 0};
    (void)::poll(&room, 1, static_cast<int>(kUnwatched.count()));
    if (!link_->Flush().ok()) break;
    if (!said) said = AnswerNow(record, bytes);
  }
  if (options_.on_stuck)
    options_.on_stuck(fmt::format("closure {}: {}", late.record.closure, what));
}

bool ExecutorSession::AddResult(const WireRecord& record, const KeptBytes& bytes) {
  const MutexLock lock(results_mutex_);
  // One frame takes one such value, whatever other runners have added meanwhile. An error stays
  // with the link, where Answer() finds it.
  if (!results_.empty() && results_.bytes() + bytes.size() > kMostBytes) (void)QueueResults();
  return results_.Add(record, bytes) || results_.size() >= kAnswersTogether;
}

// A driver that takes results slower than they come holds this runner up; the link is read by
// others.
Status ExecutorSession::QueueResults() {
  Status status = results_.QueueOn(*link_);
  while (status.code() == StatusCode::kResourceExhausted) {
    pollfd room{.fd = link_->fd(), .events = POLLOUT, .revents = 0};
    (void)::poll(&room, 1, static_cast<int>(kUnwatched.count()));
    status = link_->Flush().status();
    if (status.ok()) status = results_.QueueOn(*link_);
  }
  return status;
}

void ExecutorSession::Answer() {
  MutexLock results(results_mutex_);
  if (results_.empty()) return;
  const Status status = QueueResults();
  results.unlock();
  SendQueued(status);
}

// A runner that waits for room has the lock, and sends everything itself. Without the watcher
// nobody would hear meanwhile what the driver cancels, or notice that it stands still.
void ExecutorSession::AnswerNow() {
  if (!results_mutex_.try_lock()) return;
  const bool any = !results_.empty();
  const Status status = any ? results_.QueueOn(*link_) : Ok();
  results_mutex_.unlock();
  if (any && status.code() != StatusCode::kResourceExhausted) SendQueued(status);
}

bool ExecutorSession::AnswerNow(const WireRecord& record, std::span<const std::byte> bytes) {
  Batch last(Verb::kResults);
  (void)last.Add(record, bytes);
  if (!results_mutex_.try_lock()) return false;
  Status status = results_.empty() ? Ok() : results_.QueueOn(*link_);
  if (status.ok()) status = last.QueueOn(*link_);
  results_mutex_.unlock();
  if (status.code() == StatusCode::kResourceExhausted) return false;
  SendQueued(status);
  return true;
}

void ExecutorSession::SendQueued(Status status) {
  if (status.ok()) {
    const auto all = link_->Flush();
    status = all.status();
    // The leader may sleep without looking for room.
    if (status.ok() && !*all) Wake();
  }
  if (!status.ok()) Over();
}

Status ExecutorSession::Call(const WireRecord& record, ClosureContext& context) const {
  if (!Pinned(record) && context.cancelled()) return Cancelled("cancelled before it began");
  const FunctionTable::Function* function = functions_.Find(record.function);
  if (function == nullptr) {
    return InvalidArgument("there is no function {}, only {}", record.function, functions_.size());
  }
  try {
    return (*function)(context);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{} found no memory (std::bad_alloc)",
                             functions_.name(record.function));
  } catch (const std::exception& thrown) {
    return Unknown("{} threw: {}", functions_.name(record.function), thrown.what());
  } catch (...) {
    return Unknown("{} threw what is no std::exception{}", functions_.name(record.function),
                   TextOfThrown());
  }
}

void ExecutorSession::EndIfForked(const WireRecord& record) const {
  if (ForksUpToHere() == forks_) return;
  const std::string said = fmt::format(
      "muster: process {}, which {} has forked, has come back from the function, and is ended: it "
      "would answer in the place of its parent; end it by _exit() or exec\n",
      ::getpid(), functions_.name(record.function));
  (void)!::write(STDERR_FILENO, said.data(), said.size());
  ::_exit(1);
}

// `clock` is when the run before it ended, and then when this one has.
bool ExecutorSession::RunOne(const Job& job, std::vector<std::byte>& value, TimePoint& clock) {
  value.clear();
  std::span<const std::byte> arguments = job.arguments.view();
  Result<Bookmark> bookmark = Bookmark();
  if ((job.record.flags & kFlagBookmark) != 0) bookmark = TakeBookmark(arguments);
  const auto ends_in_time = [this, &job] {
    EndIfForked(job.record);
    return !IsLimited(job.record) || TakeLimit(job.record);
  };
  ClosureContext context(job.record.closure, arguments,
                         {.cancellation = cancellation_,
                          .values = values_,
                          .worker_index = options_.worker_index,
                          .ends_in_time = ends_in_time},
                         value, job.record.attempt);
  Status status = bookmark.status();
  if (status.ok()) {
    context.set_bookmark(*bookmark);
    status = Call(job.record, context);
    EndIfForked(job.record);
  }
  if (status.ok() && value.size() > kMostBytes) {
    status =
        ResourceExhausted("its value has {} bytes, at most {} are taken", value.size(), kMostBytes);
  }
  const TimePoint now = SteadyClock::now();
  const auto run = std::chrono::nanoseconds(std::exchange(clock, now) - now) * -1;
  WireRecord record{.closure = job.record.closure, .attempt = job.record.attempt};
  record.run_time = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(run.count(), 1, std::numeric_limits<std::uint32_t>::max()));
  if (context.has_bookmarks()) record.flags |= kFlagBookmarks;
  if (status.ok()) {
    if ((job.record.flags & kFlagNoValue) != 0) value.clear();
    if (context.has_bookmarks()) context.AppendBookmarksTo(value);
    // What is long goes out from where the function has put it.
    if (value.size() >= kLongBytes)
      return AddResult(record, KeptBytes::Of(std::exchange(value, {})));
    return AddResult(record, value);
  }
  ClosureError error = context.blame();
  error.status = status;
  if (Pinned(job.record)) {
    error.phase = Phase::kBuild;
    values_.Set(context.closure(), {.value = status, .again = MayGoAway(error)});
  }
  record.flags |= kFlagError;
  std::vector<std::byte> bytes = EncodeError(error);
  if (context.has_bookmarks()) context.AppendBookmarksTo(bytes);
  return AddResult(record, bytes);
}

}  // namespace muster::dispatch
