#include "collectives/elastic/elastic_groups.h"

#include <atomic>
#include <chrono>
#include <random>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>

#include "collectives/elastic/messages.h"
#include "collectives/process/wait_sign.h"
#include "common/base/forming_time.h"
#include "common/base/time_left.h"
#include "common/net/channel.h"
#include "common/net/greeters.h"
#include "common/net/host_id.h"
#include "common/net/listen_at.h"
#include "common/process/no_more.h"
#include "common/process/several_at_once.h"
#include "common/telemetry/log.h"

namespace muster::collectives {
namespace {

using std::chrono::steady_clock;

constexpr net::FrameKind kQuestion = net::kFirstOfProtocols;
constexpr net::FrameKind kAnswer = net::kFirstOfProtocols + 1;
// A live worker answers at once; this is for a busy host.
constexpr Millis kAnswerWithin{300};
// So many are asked at a time: each that does not answer takes kAnswerWithin, and a host that is
// lost may have had many.
constexpr std::size_t kAskedAtOnce = 16;
// How often this worker looks around; later, when it has waited for a while.
constexpr Millis kLook{20};
constexpr Millis kLookLater{200};
constexpr Millis kLater{2'000};
// So long it may take until the processes are told that one of them has come to the end.
constexpr Millis kToldWithin{5'000};
constexpr Millis kTick{200};
// Connections that have not proved themselves, and how long they are left when there are more.
constexpr std::size_t kMostGreeters = 64;
constexpr Millis kPatience{100};
// Without descriptors the next connection cannot be taken, and stays at the door.
constexpr Millis kNoRoom{100};

Incarnation NewIncarnation() {
  std::random_device random;
  return Incarnation((static_cast<std::uint64_t>(random()) << 32U | random()) | 1U);
}

template <class M>
Status SendMessage(net::Channel& channel, net::FrameKind kind, const M& message, TimePoint until) {
  const std::string bytes = message.SerializeAsString();
  return channel.Send({.kind = kind}, std::as_bytes(std::span(bytes)), {}, until);
}

template <class M>
Result<M> ReceiveMessage(net::Channel& channel, net::FrameKind kind, TimePoint until) {
  MUSTER_TRY_ASSIGN(const auto frame, channel.ReadFrame(until));
  if (!frame.has_value()) return Unavailable("{} closed the connection", channel.link().peer());
  M message;
  const bool parsed =
      message.ParseFromArray(channel.meta().data(), static_cast<int>(channel.meta().size()));
  if (frame->kind != kind || !parsed) {
    return DataLoss("{} sent a frame of kind {} that is none", channel.link().peer(), frame->kind);
  }
  return message;
}

Status StoodStill() { return Unavailable("this worker stood still meanwhile"); }

net::FrameLimits Limits() { return {.meta_bytes = 1U << 20U, .payload_bytes = 0}; }

}  // namespace

Result<std::unique_ptr<ElasticGroups>> ElasticGroups::Create(Options options) {
  std::unique_ptr<ElasticGroups> groups(new ElasticGroups(std::move(options)));
  const auto self = static_cast<std::size_t>(groups->options_.rules.self);
  if (groups->workers_.size() > Rendezvous::kMostWorkers) {
    return InvalidArgument("{} workers may come and go; at most {} can", groups->workers_.size(),
                           Rendezvous::kMostWorkers);
  }
  MUSTER_TRY_ASSIGN(groups->door_, net::ListenAt(groups->workers_[self].address));
  MUSTER_TRY_ASSIGN(groups->identity_.host_id, net::HostId());
  groups->wake_ = net::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!groups->wake_.valid()) return FromErrno(errno, "eventfd");
  try {
    groups->thread_ = std::thread([one = groups.get()] { one->Answer(); });
  } catch (const std::system_error& error) {
    return process::NoMore(error.code().value(), "a thread that answers other workers");
  }
  return groups;
}

ElasticGroups::ElasticGroups(Options options)
    : options_(std::move(options)),
      workers_(options_.workers),
      identity_{.token = options_.key, .host_id = {}, .tls = options_.tls},
      rendezvous_(options_.rules, NewIncarnation(), options_.signature, options_.first_step),
      awake_(steady_clock::now()) {}

ElasticGroups::~ElasticGroups() {
  stop_.store(true);
  const std::uint64_t one = 1;
  if (wake_.valid()) (void)!::write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

std::string ElasticGroups::host() const {
  const std::string& own = workers_[static_cast<std::size_t>(options_.rules.self)].address;
  return own.substr(0, own.rfind(':') + 1);
}

void ElasticGroups::ReadWorkers() {
  if (options_.now == nullptr) return;
  const Result<WorkersNow> now = options_.now();
  if (!now.ok()) {
    log::Warning("the workers are taken to be where they were: {}", Message(now.status()));
    return;
  }
  if (now->ended) {
    const MutexLock lock(mutex_);
    rendezvous_.SetEnded();
  }
  for (std::size_t worker = 0; worker < workers_.size() && worker < now->addresses.size();
       ++worker) {
    if (worker != static_cast<std::size_t>(options_.rules.self)) {
      workers_[worker].address = now->addresses[worker];
    }
  }
}

void ElasticGroups::NoteTime() {
  const TimePoint now = steady_clock::now();
  if (now - awake_ <= Rendezvous::kSilent) return;
  rendezvous_.Slept();
  awake_ = slept_at_ = now;
}

// What was asked for before this process stood still says nothing of who has gone on since: such a
// report would take its member for seen again.
bool ElasticGroups::SleptSince(TimePoint since) {
  NoteTime();
  return slept_at_ >= since;
}

// The thread at the door.
void ElasticGroups::Answer() {
  net::Greeters greeters(kMostGreeters, kPatience);
  while (!stop_.load()) {
    auto accepted = net::Accept({&door_, 1}, wake_.get(), kTick);
    {
      const MutexLock lock(mutex_);
      NoteTime();
      awake_ = steady_clock::now();
    }
    if (!accepted.ok()) (void)net::Accept({}, wake_.get(), kNoRoom);
    if (!accepted.ok() || !accepted->fd.valid()) continue;
    greeters.Begin(*std::move(accepted), [this](net::Accepted taken, net::Greeters::Guest&) {
      AnswerOne(std::move(taken));
    });
  }
}

void ElasticGroups::AnswerOne(net::Accepted accepted) {
  net::Channel channel(std::move(accepted.fd), net::LinkKind::kTcp, accepted.peer,
                       net::SpinMode::kOff, nullptr, Limits());
  const TimePoint until = channel.After(kAnswerWithin);
  const TimePoint came = steady_clock::now();
  const auto all = [](const net::Hello&) { return Ok(); };
  if (!net::WelcomeClient(channel, identity_, until, all).ok()) return;
  const auto question = ReceiveMessage<v1::ElasticQuestion>(channel, kQuestion, until);
  if (!question.ok()) return;
  (void)SendMessage(channel, kAnswer, AnswerTo(*question, came), until);
}

v1::ElasticAnswer ElasticGroups::AnswerTo(const v1::ElasticQuestion& question, TimePoint came) {
  v1::ElasticAnswer answer;
  const MutexLock lock(mutex_);
  const auto report = FromMessage(question.report());
  const bool old = SleptSince(came);
  if (report.ok() && !old) rendezvous_.OnReport(*report, steady_clock::now());
  if (old) {
    answer.set_refusal("it stood still meanwhile");
  } else if (question.has_formation()) {
    const auto formation = FromMessage(question.formation());
    const Status agreed = formation.ok() ? rendezvous_.Accept(*formation) : formation.status();
    if (agreed.ok()) {
      agreed_ = *formation;
    } else {
      answer.set_refusal(Message(agreed));
    }
  }
  *answer.mutable_report() = ToMessage(rendezvous_.report());
  changed_.notify_all();
  return answer;
}

// One connection for one question: known of the other afterwards is its own report, or which kind
// of silence it kept. The answer is its refusal of `formation`, empty where it agrees.
Result<std::string> ElasticGroups::Ask(int worker, const Formation* formation) {
  const GroupMember& other = workers_[static_cast<std::size_t>(worker)];
  const TimePoint asked = steady_clock::now();
  const TimePoint until = asked + kAnswerWithin;
  if (other.address.empty()) {
    const MutexLock lock(mutex_);
    if (SleptSince(asked)) return StoodStill();
    rendezvous_.OnSilence(worker, Silence::kVacant, asked);
    return Unavailable("there is no {} now", other.task);
  }
  auto socket = net::ConnectTcp(other.address, until);
  if (!socket.ok()) {
    const MutexLock lock(mutex_);
    if (SleptSince(asked)) return StoodStill();
    rendezvous_.OnSilence(
        worker, net::IsRefused(socket.status()) ? Silence::kEnded : Silence::kCutOff, asked);
    return socket.status();
  }
  const auto talk = [&]() -> Result<v1::ElasticAnswer> {
    net::Channel channel(*std::move(socket), net::LinkKind::kTcp, other.task, net::SpinMode::kOff,
                         nullptr, Limits());
    MUSTER_TRY(net::GreetServer(channel, identity_, "elastic", net::Subject{}, until));
    v1::ElasticQuestion question;
    {
      const MutexLock lock(mutex_);
      *question.mutable_report() = ToMessage(rendezvous_.report());
    }
    if (formation != nullptr) *question.mutable_formation() = ToMessage(*formation);
    MUSTER_TRY(SendMessage(channel, kQuestion, question, until));
    return ReceiveMessage<v1::ElasticAnswer>(channel, kAnswer, until);
  };
  const Result<v1::ElasticAnswer> answer = talk();
  Result<WorkerReport> report = answer.ok() ? FromMessage(answer->report()) : answer.status();
  const MutexLock lock(mutex_);
  if (SleptSince(asked)) return StoodStill();
  if (!report.ok()) {
    rendezvous_.OnSilence(worker, Silence::kMute, asked);
    // To who waits it is one that does not answer.
    if (report.status().code() == StatusCode::kUnauthenticated &&
        !std::exchange(said_refused_, true)) {
      log::Warning("{} at {} refuses this worker: {}; were all given the same workers, or key?",
                   other.task, other.address, Message(report.status()));
    }
    return report.status();
  }
  if (report->name.worker != worker) {
    // Another one has got that port since.
    rendezvous_.OnSilence(worker, Silence::kEnded, asked);
    return Unavailable("{} answers in place of {}", report->name.worker, other.task);
  }
  rendezvous_.OnReport(*report, steady_clock::now());
  return answer->refusal();
}

bool ElasticGroups::IsToBeAsked(int worker) {
  const MutexLock lock(mutex_);
  // Who has agreed to a group is awaited there, and not for long.
  if (agreed_.has_value()) return false;
  return rendezvous_.IsToBeAsked(worker, steady_clock::now());
}

void ElasticGroups::AskAll() {
  const auto others = static_cast<std::size_t>(options_.rules.workers) - 1;
  process::SeveralAtOnce(others, kAskedAtOnce, [&](std::size_t i) {
    // Not all workers begin with the same ones.
    const int next = options_.rules.self + 1 + static_cast<int>(i);
    const int worker = next % options_.rules.workers;
    if (IsToBeAsked(worker)) (void)Ask(worker, nullptr);
  });
}

// Several at a time: the first that agrees waits for the group while the last is asked, and not for
// long (TimeToForm()). After a refusal nobody else is asked.
bool ElasticGroups::AllAgree(const Formation& formation) {
  std::atomic<bool> refused{false};
  process::SeveralAtOnce(formation.members.size() - 1, kAskedAtOnce, [&](std::size_t i) {
    if (refused) return;
    // Who leads is the first of them.
    const int worker = formation.members[i + 1].name.worker;
    const Result<std::string> refusal = Ask(worker, &formation);
    if (refusal.ok() && refusal->empty()) return;
    refused = true;
    log::Info("worker {} does not come to generation {}: {}", worker, formation.generation,
              refusal.ok() ? *refusal : Message(refusal.status()));
  });
  return !refused;
}

// Asks everybody. When this worker leads and all has been said: asks the members of the next group
// whether they agree. Who has agreed to one that does not come about finds out soon.
Result<std::optional<Formation>> ElasticGroups::LookAround() {
  ReadWorkers();
  AskAll();
  std::optional<Formation> next;
  {
    const MutexLock lock(mutex_);
    NoteTime();
    if (agreed_.has_value()) return std::exchange(agreed_, std::nullopt);
    MUSTER_TRY_ASSIGN(next, rendezvous_.Propose(steady_clock::now()));
    if (!next.has_value() || !rendezvous_.Accept(*next).ok()) return std::optional<Formation>();
  }
  if (AllAgree(*next)) return next;
  const MutexLock lock(mutex_);
  rendezvous_.GiveUp();
  return std::optional<Formation>();
}

Result<std::unique_ptr<Group>> ElasticGroups::FormNow(const Formation& formation, int rank,
                                                      const net::Listener& listener) const {
  if (formation.members.size() == 1) return std::unique_ptr<Group>();
  GroupSpec spec{.job = "elastic",
                 .generation = formation.generation,
                 .rank = rank,
                 .members = {},
                 .key = options_.key,
                 .tls = options_.tls,
                 .form_within = TimeToForm(formation.members.size()),
                 .costs = options_.costs,
                 .wait_page = options_.wait_page};
  for (const WorkerReport& member : formation.members) {
    const auto worker = static_cast<std::size_t>(member.name.worker);
    spec.members.push_back({workers_[worker].task, member.address});
  }
  return FormGroup(spec, listener);
}

// Looks around until a formation is agreed on and its group stands. One that fails to form is given
// up and the search goes on; time does not run while too few workers seek to begin at all.
Result<ElasticGroups::Next> ElasticGroups::Form(Millis within) {
  MUSTER_TRY_ASSIGN(const net::Listener listener, net::ListenAt(host() + "0"));
  const TimePoint began = steady_clock::now();
  TimePoint deadline = After(within);
  WaitSign sign(options_.wait_page);
  std::optional<TimePoint> gone_since;
  bool new_here = false;
  WorkerName self;
  {
    const MutexLock lock(mutex_);
    const std::string& bound = listener.address;
    rendezvous_.Seek(host() + bound.substr(bound.rfind(':') + 1), began);
    agreed_.reset();
    self = rendezvous_.report().name;
    new_here = rendezvous_.report().generation == Generation();
  }
  while (true) {
    Result<std::optional<Formation>> looked = LookAround();
    if (looked.status().code() == StatusCode::kFailedPrecondition) sign.SayTooLate();
    // Who starts workers says that they have come to the end after these have gone: until it could,
    // all that had the state are not taken for lost by one that never had it.
    if (looked.status().code() == StatusCode::kUnavailable && new_here && options_.now != nullptr) {
      const TimePoint now = steady_clock::now();
      if (!gone_since.has_value()) gone_since = now;
      if (now - *gone_since < kToldWithin) looked = std::optional<Formation>();
    }
    MUSTER_TRY_ASSIGN(std::optional<Formation> formation, std::move(looked));
    if (formation.has_value()) {
      const int rank = formation->RankOf(self);
      sign.Clear();  // the group's own from here on
      auto group = FormNow(*formation, rank, listener);
      const MutexLock lock(mutex_);
      if (group.ok()) {
        rendezvous_.Formed(*formation, !formation->Fresh(rank));
        return Next{*std::move(group), *std::move(formation), rank};
      }
      log::Info("generation {} has not formed: {}", formation->generation, Message(group.status()));
      rendezvous_.GiveUp();
    }
    const MutexLock lock(mutex_);
    const TimePoint now = steady_clock::now();
    const bool started = options_.now != nullptr;
    if (started && rendezvous_.seekers() < options_.rules.min_workers) deadline = After(within);
    if (now >= deadline) return DeadlineExceeded("{}", rendezvous_.Awaited(now));
    const auto lasts = std::chrono::floor<Millis>(now - began);
    const std::string awaited = rendezvous_.Awaited(now);
    sign.Show({.call = "search for the next group", .awaited = awaited, .lasts = lasts});
    if (sign.LogsAfter(lasts)) {
      log::Warning("no group for {} s: {}", lasts.count() / 1'000, awaited);
    }
    if (formation.has_value() || agreed_.has_value()) continue;
    (void)changed_.wait_until(mutex_, now + (now - began < kLater ? kLook : kLookLater));
  }
}

void ElasticGroups::HaveState(const Formation& formation) {
  const MutexLock lock(mutex_);
  rendezvous_.Formed(formation, /*has_state=*/true);
}
void ElasticGroups::Prepared(std::uint64_t step) {
  const MutexLock lock(mutex_);
  rendezvous_.Prepared(step);
}
void ElasticGroups::Committed(std::uint64_t step) {
  const MutexLock lock(mutex_);
  rendezvous_.Committed(step);
}
void ElasticGroups::Finish() {
  const MutexLock lock(mutex_);
  rendezvous_.Finish();
}
std::uint64_t ElasticGroups::committed() {
  const MutexLock lock(mutex_);
  return rendezvous_.report().committed;
}
std::uint64_t ElasticGroups::prepared() {
  const MutexLock lock(mutex_);
  return rendezvous_.report().prepared;
}
bool ElasticGroups::SomebodyWaits() {
  const MutexLock lock(mutex_);
  return rendezvous_.SomebodyWaits(steady_clock::now());
}

}  // namespace muster::collectives
