#include "strategy/parameter_server/internal/connection.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "program/executor_endpoint.h"
#include "program/runtime.h"
#include <fmt/format.h>

#include "common/partition/div_layout.h"
#include "muster/v1/program.pb.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/codec.h"
#include "strategy/cluster/function.h"
#include "strategy/parameter_server/internal/strategies.h"

namespace muster::internal {
namespace {

// How often the servers may hear how far closures have settled.
constexpr std::chrono::milliseconds kSettledEvery{50};
// How often replicas are compared when all workers that are there have said how many they have, and
// at least so often while one has not: it may be lost for good.
constexpr std::chrono::milliseconds kCompareEvery{1'000};
// Until then, by the number of workers: each one is a question that holds the driver's lock.
constexpr std::chrono::milliseconds kCompareOne{1};

// A server that did not answer is not asked to delete anything for so long.
constexpr std::chrono::milliseconds kAwayFor{5'000};

struct Process {
  Mutex mutex;
  std::shared_ptr<PsConnection> current MUSTER_GUARDED_BY(mutex);
};
// Threads of the dispatch may ask for it when main() has returned.
Process& ThisProcess() {
  static auto* const process = new Process;
  return *process;
}

void Become(std::shared_ptr<PsConnection> connection) {
  Process& process = ThisProcess();
  const MutexLock lock(process.mutex);
  process.current.swap(connection);  // the one before ends without the lock
}

// "ps:1" of "ps:1 closed the connection"; not that of a variable "steps:1" or "my_ps:1".
std::string ServerIn(const std::string& text) {
  constexpr std::string_view kType = "ps:";
  for (std::size_t at = text.find(kType); at != std::string::npos; at = text.find(kType, at + 1)) {
    const char before = at > 0 ? text[at - 1] : ' ';
    const bool inside = std::isalnum(static_cast<unsigned char>(before)) != 0 ||
                        std::string_view("_-./").find(before) != std::string_view::npos;
    if (inside) continue;
    std::size_t end = at + kType.size();
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    if (end > at + kType.size()) return text.substr(at, end - at);
  }
  return {};
}

// One that is stopped, or cut off, answers as little as one that has gone.
bool IsAway(const Status& from_server) {
  return from_server.code() == StatusCode::kUnavailable ||
         from_server.code() == StatusCode::kDeadlineExceeded;
}

// Whether the strategies of two processes go together. Those that are made later are in one of them
// alone, and one that is gone (0) has none.
bool Agree(const std::vector<std::int32_t>& replicas, const std::vector<std::int32_t>& others) {
  for (std::size_t i = 0; i < std::min(replicas.size(), others.size()); ++i) {
    if (replicas[i] != 0 && others[i] != 0 && replicas[i] != others[i]) return false;
  }
  return true;
}

Bytes Encode(const PsAccess& access, const std::vector<ps::SpaceId>& spaces) {
  Bytes bytes;
  Codec<std::string>::write(access.job_id, bytes);
  append_value(bytes, access.epoch.value());
  append_value(bytes, access.incarnation.value());
  append_value(bytes, static_cast<std::uint64_t>(access.servers.size()));
  for (std::size_t i = 0; i < access.servers.size(); ++i) {
    const ps::ServerSession::Target& target = access.servers[i].target;
    append_value(bytes, target.index);
    Codec<std::string>::write(target.tcp_address, bytes);
    Codec<std::string>::write(target.unix_path, bytes);
    Codec<std::string>::write(target.host_id, bytes);
    append_value(bytes, spaces[i].value());
  }
  return bytes;
}

// Without what this process was told by its own daemon.
PsAccess Decode(std::span<const std::byte> bytes) {
  ByteReader from(bytes);
  PsAccess access;
  access.job_id = Codec<std::string>::read(from);
  access.epoch = Epoch(from.value<std::uint64_t>());
  access.incarnation = Incarnation(from.value<std::uint64_t>());
  for (std::size_t left = from.count(sizeof(std::uint32_t)); left > 0; --left) {
    ps::ProgramClient::Server& server = access.servers.emplace_back();
    server.target.index = from.value<std::uint32_t>();
    server.target.tcp_address = Codec<std::string>::read(from);
    server.target.unix_path = Codec<std::string>::read(from);
    server.target.host_id = Codec<std::string>::read(from);
    server.space = ps::SpaceId(from.value<std::uint64_t>());
  }
  return access;
}

// On every worker, before the closures that are scheduled later. It answers how many replicas its
// strategies have.
void OpenOnWorker(ClosureCall& call) {
  PsConnection::BecomeExecutor(Decode(call.arguments()));
  call.built(std::make_shared<char>());
  Codec<std::vector<std::int32_t>>::write(ReplicasOfStrategies(), call.value());
}
const std::uint32_t kOpenOnWorker =
    register_function("muster: parameter servers of the program", OpenOnWorker);

}  // namespace

std::shared_ptr<PsConnection> PsConnection::Current() {
  Process& process = ThisProcess();
  const MutexLock lock(process.mutex);
  return process.current;
}

std::shared_ptr<PsConnection> PsConnection::OpenAsDriver(const PsAccess& access,
                                                         std::shared_ptr<ClusterLink> link) {
  if (access.servers.empty()) {
    raise(InvalidArgument("job {} has no parameter server: its cluster must have at least one ps",
                          access.job_id));
  }
  std::shared_ptr<PsConnection> connection(new PsConnection(access, std::move(link)));
  (void)connection->client();
  // Before executors are told: those of local_cluster() are threads of this process.
  Become(connection);
  connection->TellExecutors();
  connection->settled_ = std::thread([self = connection.get()] { self->WatchSettled(); });
  return connection;
}

// Takes the place of an earlier driver's.
void PsConnection::BecomeExecutor(PsAccess access) {
  if (const auto current = Current(); current != nullptr &&
                                      current->access_.job_id == access.job_id &&
                                      current->access_.epoch == access.epoch &&
                                      current->access_.incarnation == access.incarnation) {
    return;
  }
  const v1::ProgramStart& start = program::Start();
  access.key = start.key();
  access.host_id = start.host_id();
  access.link = value_of(ps::LinkModeOf(start.link()));
  access.tls = program::TlsOf(start);
  Become(std::shared_ptr<PsConnection>(new PsConnection(std::move(access), nullptr)));
}

PsConnection::~PsConnection() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    stop_changed_.notify_all();
  }
  if (settled_.joinable()) settled_.join();
}

ps::ProgramClient& PsConnection::client() {
  Status status;
  ps::ProgramClient* client = nullptr;
  {
    const MutexLock lock(mutex_);
    if (client_ == nullptr) {
      auto opened = ps::ProgramClient::Open(access_.servers, {.job_id = access_.job_id,
                                                              .key = access_.key,
                                                              .tls = access_.tls,
                                                              .epoch = access_.epoch,
                                                              .incarnation = access_.incarnation,
                                                              .link = access_.link,
                                                              .host_id = access_.host_id});
      status = opened.status();
      if (opened.ok()) client_ = *std::move(opened);
    }
    client = client_.get();
  }
  RaiseUnlessOk(status);
  return *client;
}

void PsConnection::SetSteps(const StepRule& rule, std::uint32_t second_runs) {
  const std::weak_ptr<PsConnection> self = weak_from_this();
  raise_unless_ok(link_->steps().SetRule(rule, [self](std::uint64_t next) {
    if (const auto connection = self.lock()) {
      connection->RaiseUnlessOk(connection->client().EndSteps(next), ClosurePhase::kWrites);
    }
  }));
  link_->driver().SetStaleness(rule.staleness);
  link_->driver().SetSecondRuns(second_runs);
}

void PsConnection::TellExecutors() {
  told_ =
      value_of(link_->driver().CreatePerWorker(kOpenOnWorker, Encode(access_, client().spaces())));
}

void PsConnection::WatchSettled() {
  ps::ProgramClient& servers = client();
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const TimePoint next = std::chrono::steady_clock::now() + kSettledEvery;
      while (!stopping_ && stop_changed_.wait_until(mutex_, next)) {
      }
      if (stopping_) return;
    }
    servers.SetSettled(link_->driver().counts().settled);
    DeleteDropped();
    CompareReplicas();
  }
}

// The first worker that says how many replicas it has is what all others are compared with, also
// when it is lost later: what they have computed until then fits together.
void PsConnection::CompareReplicas() {
  const std::vector<std::string> workers = link_->workers();
  const TimePoint now = std::chrono::steady_clock::now();
  const auto of_all = kCompareOne * static_cast<std::int64_t>(workers.size());
  const auto every = workers.size() == compared_ ? kCompareEvery : std::min(kCompareEvery, of_all);
  if (now < compared_at_ + every) return;
  compared_ = 0;
  compared_at_ = now;
  for (const std::string& task : workers) {
    // Also who has been compared: one that was lost may be back on another host.
    const auto said = link_->driver().AwaitPerWorker(told_, task, TimePoint::min());
    if (!said.ok()) continue;  // not yet
    ++compared_;
    ByteReader from(*said);
    const auto replicas = Codec<std::vector<std::int32_t>>::read(from);
    if (first_.empty()) {
      first_ = task;
      replicas_ = replicas;
    }
    if (Agree(replicas, replicas_)) continue;
    link_->Refuse(
        InvalidArgument("{} has [{}] replicas in its ParameterServerStrategies, {} [{}]: all "
                        "workers have as many (GPUs, unless devices are named)",
                        task, fmt::join(replicas, ", "),
                        task == first_ ? "before it was lost it had" : first_ + " has",
                        fmt::join(replicas_, ", ")));
  }
}

std::string PsConnection::job() const {
  return fmt::format("{} (driver {} of epoch {})", access_.job_id, access_.incarnation,
                     access_.epoch);
}

ps::VariableHandle PsConnection::Find(const std::string& name) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = found_.find(name); found != found_.end()) return found->second;
  }
  auto handle = client().Find(name);
  if (handle.status().code() == StatusCode::kNotFound) return nullptr;
  RaiseUnlessOk(handle.status());
  const MutexLock lock(mutex_);
  // One that was made meanwhile is newer.
  return found_.try_emplace(name, *std::move(handle)).first->second;
}

std::vector<std::uint64_t> PsConnection::ShardBytes(DType dtype,
                                                    const std::vector<std::int64_t>& sizes,
                                                    std::int64_t shards) {
  std::uint64_t row_bytes = SizeOf(dtype);
  for (std::size_t axis = 1; axis < sizes.size(); ++axis) {
    row_bytes *= static_cast<std::uint64_t>(sizes[axis]);
  }
  const partition::DivLayout layout(sizes.empty() ? 1 : sizes[0], shards);
  std::vector<std::uint64_t> bytes;
  for (std::int64_t shard = 0; shard < layout.shards(); ++shard) {
    bytes.push_back(row_bytes * static_cast<std::uint64_t>(layout.Rows(shard)));
  }
  return bytes;
}

std::uint32_t PsConnection::PlaceOf(std::uint32_t index) const {
  const auto found =
      std::ranges::find(access_.servers, index, [](const auto& one) { return one.target.index; });
  return found == access_.servers.end()
             ? 0
             : static_cast<std::uint32_t>(found - access_.servers.begin());
}

// Its place is taken before the servers are asked, so that two that are made at once do not choose
// the same server, and given back when they refuse.
ps::VariableHandle PsConnection::Create(const std::string& name, DType dtype,
                                        const std::vector<std::int64_t>& sizes, std::int64_t shards,
                                        Place place, ps::ShardValues values) {
  using Policy = partition::Placer::Policy;
  ps::ProgramClient& servers = client();
  DeleteDropped(name);
  ps::VariableSpec spec{
      .name = name, .dtype = dtype, .shape = sizes, .servers = std::move(place.colocated)};
  const std::vector<std::uint64_t> bytes = ShardBytes(dtype, sizes, shards);
  std::vector<std::uint32_t> places;
  {
    const MutexLock lock(mutex_);
    if (spec.servers.empty()) {
      places = placer_.Place(
          bytes, place.placement == Placement::kByBytes ? Policy::kByBytes : Policy::kRoundRobin);
      for (const std::uint32_t one : places) {
        spec.servers.push_back(access_.servers[one].target.index);
      }
    } else {
      for (const std::uint32_t index : spec.servers) places.push_back(PlaceOf(index));
      places.resize(bytes.size());
      placer_.Add(places, bytes);
    }
  }
  auto made = servers.Create(spec, values);
  if (!made.ok()) {
    const MutexLock lock(mutex_);
    placer_.Remove(places, bytes);
  }
  RaiseUnlessOk(made.status(), ClosurePhase::kWrites);
  {
    const MutexLock lock(mutex_);
    found_.insert_or_assign(name, *made);
  }
  return *std::move(made);
}

void PsConnection::Delete(const ps::VariableHandle& variable) {
  {
    const auto shards = static_cast<std::int64_t>(variable->shards.size());
    std::vector<std::uint32_t> places;
    for (const auto& shard : variable->shards) places.push_back(PlaceOf(shard.server));
    const MutexLock lock(mutex_);
    placer_.Remove(places, ShardBytes(variable->dtype, variable->shape, shards));
    found_.erase(variable->name);
  }
  // First: who makes another one of its name meanwhile must know of it.
  dropped_.Add(variable);
  dropped_.Delete(
      [&](const ps::VariableInfo& one) { return &one == variable.get() && !IsAwayNow(one); },
      [&](const ps::VariableHandle& one) { return DeleteNow(one); });
}

bool PsConnection::DeleteNow(const ps::VariableHandle& variable) {
  const Status deleted = client().Delete(variable);
  if (!IsAway(deleted)) return true;
  NoteAway(deleted);
  return false;
}

bool PsConnection::IsAwayNow(const ps::VariableInfo& variable) {
  const TimePoint now = std::chrono::steady_clock::now();
  const MutexLock lock(mutex_);
  return std::ranges::any_of(variable.shards,
                             [&](const ps::ShardRef& shard) MUSTER_REQUIRES(mutex_) {
                               const auto found = away_.find(fmt::format("ps:{}", shard.server));
                               return found != away_.end() && now < found->second;
                             });
}

bool PsConnection::IsAnyAwayNow() {
  const TimePoint now = std::chrono::steady_clock::now();
  const MutexLock lock(mutex_);
  return std::ranges::any_of(away_, [&](const auto& one) { return now < one.second; });
}

void PsConnection::NoteAway(const Status& from_server) {
  const MutexLock lock(mutex_);
  away_[ServerIn(Message(from_server))] = std::chrono::steady_clock::now() + kAwayFor;
}

void PsConnection::DeleteDropped(const std::string& name) {
  dropped_.Delete(
      [&](const ps::VariableInfo& variable) {
        return name.empty() ? !IsAwayNow(variable) : variable.name == name;
      },
      [&](const ps::VariableHandle& variable) { return DeleteNow(variable); });
  if (!name.empty() || IsAnyAwayNow()) return;
  if (const Status deleted = client().DeleteUnmade(); !deleted.ok()) NoteAway(deleted);
}

void PsConnection::Raise(const Status& status, ClosurePhase phase) {
  const std::string text = Message(status);
  const auto raise_as = [&](ErrorCode code, ErrorOrigin origin) {
    throw ClosureError(code, text, {.origin = origin, .phase = phase, .task = ServerIn(text)});
  };
  if (status.code() == StatusCode::kNotFound) {
    {
      const MutexLock lock(mutex_);
      found_.clear();
    }
    // An executor's: deleted since it was found here. Another one may have the name, which the
    // closure finds when it runs again.
    if (!driver()) raise_as(ErrorCode::kUnavailable, ErrorOrigin::kWorker);
  }
  if (status.code() == StatusCode::kResourceExhausted && !ServerIn(text).empty()) {
    raise_as(ErrorCode::kResourceExhausted, ErrorOrigin::kParameterServer);
  }
  if (!IsAway(status)) raise(status);
  NoteAway(status);
  throw PsUnavailable(
      ErrorCode::kUnavailable, text,
      {.origin = ErrorOrigin::kParameterServer, .phase = phase, .task = ServerIn(text)});
}

}  // namespace muster::internal
