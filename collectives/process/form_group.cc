#include "collectives/process/form_group.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "collectives/costs_file.h"
#include "collectives/process/lobby.h"
#include "collectives/process/mesh.h"
#include "collectives/process/process_group.h"
#include "collectives/process/shared_memory.h"
#include "collectives/process/signature.h"
#include "collectives/process/watch.h"
#include "common/base/environment.h"
#include "common/base/folder_lock.h"
#include "common/base/mutex.h"
#include "common/base/private_directory.h"
#include "common/base/time_left.h"
#include "common/base/words.h"
#include "common/net/channel.h"
#include "common/net/greeters.h"
#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "common/telemetry/log.h"

namespace muster::collectives {
namespace {

constexpr std::uint8_t kProtocol = 3;
// A stranger that connects and says nothing is greeted that long.
constexpr Millis kHandshake{2'000};
// Connections that have not proved themselves, and how long they are left when there are more.
constexpr std::size_t kMostGreeters = 64;
constexpr Millis kPatience{200};
constexpr Millis kRetry{50};
// Who waits for others looks this often whether one that has come was lost.
constexpr Millis kLook{200};
// So long nobody is let in when there are no descriptors.
constexpr Millis kNoRoom{100};
// What waits longer is not said to have an end.
constexpr Millis kEndless = std::chrono::days(30);

// What a member comes for.
enum class Lane : std::uint8_t { kWatch, kData };

struct WireSubject {
  std::uint64_t generation = 0;
  std::uint32_t members = 0;  // signature of the list
  std::uint16_t rank = 0;
  Lane lane = Lane::kWatch;
  std::uint8_t protocol = kProtocol;
};
static_assert(sizeof(WireSubject) == sizeof(net::Subject));

// The server's first word after the handshake of a watch's link. Meta: the path of its Unix socket,
// for a client on its host; else empty.
constexpr net::FrameKind kOffer = net::kFirstOfProtocols + 8;
// READY and GO; meta: a number that stands for the host.
constexpr net::FrameKind kReady = net::kFirstOfProtocols + 9;
constexpr net::FrameKind kGo = net::kFirstOfProtocols + 10;

Status CheckSpec(const GroupSpec& spec) {
  const std::size_t n = spec.members.size();
  if (n == 0 || n > kMostMembers) {
    return InvalidArgument("a group of {} members: 1 to {} are allowed", n, kMostMembers);
  }
  if (spec.rank < 0 || static_cast<std::size_t>(spec.rank) >= n) {
    return InvalidArgument("rank {} in a group of {} members", spec.rank, n);
  }
  if (spec.key.empty()) return InvalidArgument("a group without a key: anybody could join it");
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (spec.members[i].address == spec.members[j].address) {
        return InvalidArgument("{} and {} have one address, {}", spec.members[j].task,
                               spec.members[i].task, spec.members[i].address);
      }
    }
  }
  return Ok();
}

std::uint32_t SignatureOf(const std::vector<GroupMember>& members) {
  Signature signature;
  for (const GroupMember& member : members) signature.Add(member.task).Add(member.address);
  return static_cast<std::uint32_t>(signature.value());
}

// A Unix socket in a folder of its own, while a group forms. Without one, data between members of
// this host goes over TCP.
//
// The folder is locked as long as its process lives. One that is not was left by a process that was
// killed meanwhile: the next that forms a group here removes it.
class HostDoor {
 public:
  HostDoor() {
    // A unit's temporary folder is its own, where a neighbour's processes find nothing.
    const std::string given = ProcessEnvironment()("RUNTIME_DIRECTORY").value_or("");
    std::error_code none;
    const bool shared = !given.empty() && ::access(given.c_str(), W_OK) == 0;
    const std::filesystem::path temporary =
        shared ? std::filesystem::path(given) : std::filesystem::temp_directory_path(none);
    if (none) return;
    const std::string prefix = fmt::format("muster-group-{}-", ::geteuid());
    RemoveLeft(temporary, prefix);
    for (int tries = 0; tries < kMostTries && folder_.empty(); ++tries) {
      TakeFolder((temporary / (prefix + "XXXXXX")).string());
    }
    if (folder_.empty()) return;
    if (auto listener = net::ListenUnix(folder_ + "/member"); listener.ok()) {
      listener_ = *std::move(listener);
      path_ = listener_.address;
    }
  }
  ~HostDoor() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  HostDoor(const HostDoor&) = delete;
  HostDoor& operator=(const HostDoor&) = delete;

  bool open() const { return !path_.empty(); }
  net::Listener& listener() { return listener_; }
  // Empty when there is none.
  const std::string& path() const { return path_; }

 private:
  // Others who look for what was left may have the folder before it is locked.
  static constexpr int kMostTries = 8;

  static void RemoveLeft(const std::filesystem::path& temporary, const std::string& prefix) {
    std::error_code ignored;
    std::vector<std::string> folders;
    for (std::filesystem::directory_iterator at(temporary, ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      const std::filesystem::path& path = at->path();
      if (path.filename().string().starts_with(prefix)) folders.push_back(path.string());
    }
    for (const std::string& folder : folders) {
      if (!RequireOwnDirectory(folder).ok()) continue;
      const auto lock = FolderLock::Take(folder, FolderLock::How::kAlone, Millis(0));
      if (lock.ok()) std::filesystem::remove_all(folder, ignored);
    }
  }

  void TakeFolder(std::string pattern) {
    if (::mkdtemp(pattern.data()) == nullptr) return;
    auto lock = FolderLock::Take(pattern, FolderLock::How::kAlone, Millis(0));
    std::error_code gone;
    const bool taken = lock.status().code() == StatusCode::kDeadlineExceeded;
    if (taken || !std::filesystem::exists(pattern, gone)) return;
    folder_ = std::move(pattern);
    // A file system without locks lets nobody else have it either.
    if (lock.ok()) lock_.emplace(*std::move(lock));
  }

  std::string folder_;
  std::optional<FolderLock> lock_;
  std::string path_;
  net::Listener listener_;
};

// Whether this process finds that socket, and may share memory by it: not one in another /tmp (a
// container's, a unit's), nor another user's.
bool CanReach(const std::string& unix_path) {
  struct stat info{};
  return ::stat(unix_path.c_str(), &info) == 0 && info.st_uid == ::geteuid();
}

// One member's side of the forming.
class Forming {
 public:
  Forming(const GroupSpec& spec, const net::Listener& listener, std::string host_id,
          std::unique_ptr<Lobby> lobby)
      : spec_(spec),
        listener_(listener),
        lobby_(std::move(lobby)),
        self_{.token = spec.key, .host_id = std::move(host_id), .tls = spec.tls},
        members_(SignatureOf(spec.members)),
        deadline_(After(spec.form_within)),
        peers_(spec.members.size()) {}

  Result<std::unique_ptr<Group>> Run() {
    // No child of this process keeps the port.
    listeners_.push_back({.fd = net::Fd(::fcntl(listener_.fd.get(), F_DUPFD_CLOEXEC, 0)),
                          .kind = listener_.kind,
                          .address = listener_.address});
    if (!listeners_.front().fd.valid()) return FromErrno(errno, "dup");
    if (door_.open()) listeners_.push_back(std::move(door_.listener()));
    for (int r = 0; r < spec_.rank; ++r) MUSTER_TRY(Connect(r));
    MUSTER_TRY(AcceptAll());
    MUSTER_TRY(Agree());
    return Finish();
  }

 private:
  struct Peer {
    std::shared_ptr<net::Stream> data;
    // How often the place was lost when that came: it belongs to the watch of then.
    int losses = 0;
    bool local = false;  // data goes through a Unix socket
    bool crc = false;
    std::string host_id;
    std::optional<std::uint64_t> host;  // what READY or GO said
    bool brings_memory = false;
    net::Fd memory;
    // The numbers of its connections, in the order in which they came.
    std::uint64_t watch_order = 0;
    std::uint64_t data_order = 0;
  };
  struct Greeted {
    std::shared_ptr<net::Stream> stream;
    std::string offer;
  };

  const GroupMember& member(int rank) const {
    return spec_.members[static_cast<std::size_t>(rank)];
  }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(spec_.members.size()); }
  // Both links of the same process are there.
  bool IsHere(int rank) {
    return lobby_->Has(rank) && peer(rank).data != nullptr &&
           peer(rank).losses == lobby_->losses(rank);
  }
  std::string Name(int rank) const {
    return fmt::format("{} ({})", member(rank).task, member(rank).address);
  }
  // Who has not come, in words; empty: all have.
  std::string Missing() {
    std::vector<std::string> names;
    for (int r = 0; r < size(); ++r) {
      if (r != spec_.rank && !IsHere(r)) names.push_back(Name(r));
    }
    return Joined(names);
  }
  Status TooLate(const std::string& whom) const {
    return DeadlineExceeded("group {} of {} has not formed within {} ms: it waits for {}",
                            spec_.generation, spec_.job, spec_.form_within.count(), whom);
  }

  net::Subject SubjectFor(Lane lane) const {
    return std::bit_cast<net::Subject>(WireSubject{.generation = spec_.generation.value(),
                                                   .members = members_,
                                                   .rank = static_cast<std::uint16_t>(spec_.rank),
                                                   .lane = lane});
  }
  std::unique_ptr<net::DuplexLink> WatchLink(int rank, std::shared_ptr<net::Stream> stream,
                                             net::LinkKind kind) const {
    return std::make_unique<net::DuplexLink>(std::move(stream), kind, member(rank).task,
                                             net::DuplexLink::Options{});
  }

  // Both links to a lower rank, which may not listen yet, or be in an earlier generation still.
  Status Connect(int rank) {
    lobby_->WaitsFor(Name(rank));
    MUSTER_TRY_ASSIGN(Greeted watch, Reach(rank, Lane::kWatch, ""));
    if (!CanReach(watch.offer)) watch.offer.clear();
    peer(rank).local = !watch.offer.empty();
    lobby_->Seat(rank, WatchLink(rank, std::move(watch.stream), last_kind_), /*asks=*/true);
    MUSTER_TRY_ASSIGN(Greeted data, Reach(rank, Lane::kData, watch.offer));
    peer(rank).data = std::move(data.stream);
    peer(rank).crc = last_crc_;
    return Ok();
  }

  Result<Greeted> Reach(int rank, Lane lane, const std::string& unix_path) {
    while (true) {
      Result<Greeted> greeted = Greet(rank, lane, unix_path);
      if (greeted.ok()) return greeted;
      const StatusCode code = greeted.status().code();
      const bool later = code == StatusCode::kUnavailable ||
                         code == StatusCode::kDeadlineExceeded ||
                         code == StatusCode::kResourceExhausted;  // of this process, for now
      if (!later) return greeted.status();
      MUSTER_TRY(lobby_->AnyLost(spec_.rank));
      // A wrong name and a closed port are not told from one that is late but by this.
      lobby_->WaitsFor(fmt::format("{}: {}", Name(rank), Message(greeted.status())));
      if (std::chrono::steady_clock::now() + kRetry >= deadline_) {
        // The others may have come: they are let in after this one.
        return Annotate(TooLate(Name(rank)), Message(greeted.status()));
      }
      std::this_thread::sleep_for(kRetry);
    }
  }

  Result<Greeted> Greet(int rank, Lane lane, const std::string& unix_path) {
    const TimePoint until = std::min(deadline_, std::chrono::steady_clock::now() + 2 * kHandshake);
    const bool by_unix = !unix_path.empty();
    last_kind_ = by_unix ? net::LinkKind::kUnix : net::LinkKind::kTcp;
    MUSTER_TRY_ASSIGN(net::Fd socket, by_unix ? net::ConnectUnix(unix_path, until)
                                              : net::ConnectTcp(member(rank).address, until));
    const auto stream = std::make_shared<net::Stream>(std::move(socket));
    net::Channel channel(stream, last_kind_, member(rank).task,
                         {.meta_bytes = 4096, .payload_bytes = 0});
    MUSTER_TRY(net::GreetServer(channel, self_, "member", SubjectFor(lane), until));
    last_crc_ = channel.uses_payload_crc();
    Greeted greeted{.stream = stream, .offer = {}};
    if (lane == Lane::kData) return greeted;
    MUSTER_TRY_ASSIGN(const auto offer, channel.ReadFrame(until));
    if (!offer.has_value() || offer->kind != kOffer) {
      return Unavailable("{} closed the connection in the handshake", member(rank).task);
    }
    greeted.offer.assign(reinterpret_cast<const char*>(channel.meta().data()),
                         channel.meta().size());
    return greeted;
  }

  // Both links of each higher rank. Each connection is greeted by a thread of its own: a stranger's
  // is refused and forgotten.
  Status AcceptAll() {
    net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake.valid()) return FromErrno(errno, "eventfd");
    net::Greeters greeters(kMostGreeters, kPatience);
    std::uint64_t order = 0;
    while (true) {
      const auto left = std::chrono::ceil<Millis>(deadline_ - std::chrono::steady_clock::now());
      {
        const MutexLock lock(mutex_);
        if (!fatal_.ok()) return lobby_->TellAll(fatal_);
        MUSTER_TRY(lobby_->AnyLost(spec_.rank));
        std::string missing = Missing();
        if (missing.empty()) return Ok();
        if (left <= Millis(0)) return TooLate(missing);
        lobby_->WaitsFor(std::move(missing));
      }
      Result<net::Accepted> next = net::Accept(listeners_, wake.get(), std::min(left, kLook));
      // Who comes waits at the door until there are descriptors again.
      if (next.status().code() == StatusCode::kResourceExhausted) {
        next = net::Accept({}, wake.get(), kNoRoom);
      }
      MUSTER_TRY_ASSIGN(net::Accepted accepted, std::move(next));
      if (!accepted.fd.valid()) {
        std::uint64_t news = 0;
        (void)!::read(wake.get(), &news, sizeof(news));
        continue;
      }
      greeters.Begin(std::move(accepted), [this, number = ++order, &wake](
                                              net::Accepted taken, net::Greeters::Guest& guest) {
        Welcome(std::move(taken), number, guest);
        const std::uint64_t one = 1;
        (void)!::write(wake.get(), &one, sizeof(one));
      });
    }
  }

  // One connection, in a thread of its own. `order`: a later one takes an earlier one's place.
  void Welcome(net::Accepted accepted, std::uint64_t order, net::Greeters::Guest& guest) {
    const net::LinkKind kind = listeners_[accepted.listener].kind;
    const auto stream = std::make_shared<net::Stream>(std::move(accepted.fd));
    net::Channel channel(stream, kind, accepted.peer, {.meta_bytes = 4096, .payload_bytes = 0});
    const TimePoint until = std::min(deadline_, channel.After(kHandshake));
    const auto hello = net::WelcomeClient(channel, self_, until, [&](const net::Hello& said) {
      const MutexLock lock(mutex_);
      return Admit(std::bit_cast<WireSubject>(said.subject));
    });
    if (!hello.ok()) return NoteRefused(hello.status());
    const auto subject = std::bit_cast<WireSubject>(hello->subject);
    const bool watch = subject.lane == Lane::kWatch;
    if (watch) {
      const bool by_unix = hello->host_id == self_.host_id && spec_.transport != Transport::kTcp;
      const std::string offer = by_unix ? door_.path() : "";
      // Where that fails it comes again.
      if (!channel.Send({.kind = kOffer}, std::as_bytes(std::span(offer)), {}, until).ok()) return;
    }
    const MutexLock lock(mutex_);
    Peer& one = peer(subject.rank);
    std::uint64_t& newest = watch ? one.watch_order : one.data_order;
    if (order < newest || !guest.Keep()) return;
    newest = order;
    if (watch) {
      lobby_->Seat(subject.rank, WatchLink(subject.rank, stream, kind), /*asks=*/false);
    } else {
      one.losses = lobby_->losses(subject.rank);
      one.crc = channel.uses_payload_crc();
      one.local = kind == net::LinkKind::kUnix;
      one.data = stream;
    }
  }

  // Who waits for one that is refused is to see why it does not come.
  void NoteRefused(const Status& why) {
    if (why.code() != StatusCode::kUnauthenticated) return;
    const MutexLock lock(mutex_);
    if (std::exchange(said_refused_, true)) return;
    log::Warning(
        "group {} of {}: {} refuses who wants to join it: {}; a member that was given another "
        "list of members, or another key?",
        spec_.generation, spec_.job, member(spec_.rank).task, Message(why));
  }

  // Whether a proven client may have its place. Some errors end the forming here, too.
  Status Admit(const WireSubject& subject) MUSTER_REQUIRES(mutex_) {
    const int rank = subject.rank;
    if (subject.protocol != kProtocol) {
      return Unimplemented("groups' protocol {}, here {}: they are of different releases",
                           subject.protocol, kProtocol);
    }
    const Generation generation(subject.generation);
    if (generation > spec_.generation) {
      return Unavailable("{} is in generation {} still, not {}", member(spec_.rank).task,
                         spec_.generation, generation);
    }
    if (generation < spec_.generation) {
      return Aborted("generation {} is over: {} forms generation {}", generation,
                     member(spec_.rank).task, spec_.generation);
    }
    if (subject.members != members_ || rank <= spec_.rank || rank >= size()) {
      fatal_ = InvalidArgument(
          "rank {} has another list of members than {}: all must be given the same cluster", rank,
          member(spec_.rank).task);
      return fatal_;
    }
    if (subject.lane == Lane::kData || !IsHere(rank)) return Ok();
    // The process that was there may have ended with its host, which said nothing.
    switch (lobby_->Knock(rank)) {
      case Lobby::Place::kFree:
        return Ok();
      case Lobby::Place::kAsked:
        return Unavailable("another process is {}, and is asked whether it lives",
                           member(rank).task);
      case Lobby::Place::kTaken:
        fatal_ = AlreadyExists("two processes say that they are {}", member(rank).task);
    }
    return fatal_;
  }

  // READY to lower ranks, GO to higher ones: then nobody reads by a handshake's channel any more.
  Status Agree() {
    // Each says READY when all higher ones have: who is waited for is the one that is late.
    for (int r = size() - 1; r > spec_.rank; --r) MUSTER_TRY(Gather(kReady, r, r + 1));
    for (int r = 0; r < spec_.rank; ++r) MUSTER_TRY(Say(r, kReady));
    MUSTER_TRY(Gather(kGo, 0, spec_.rank));
    on_host_ = OnThisHost();
    const int first = on_host_.front();
    if (spec_.rank == first && CanShare()) {
      MUSTER_TRY_ASSIGN(memory_, SharedMemory::Make(on_host_.size()));
    }
    for (int r = spec_.rank + 1; r < size(); ++r) {
      const bool brings = memory_.has_value() && std::ranges::count(on_host_, r) > 0;
      MUSTER_TRY(Say(r, kGo, brings));
      if (brings) MUSTER_TRY(SendMemory(r));
    }
    if (spec_.rank != first && peer(first).brings_memory) MUSTER_TRY(ReceiveMemory(first));
    return Ok();
  }

  // Descriptors ride on Unix sockets, as the links for data are on one host; nothing else has been
  // sent there yet.
  Status SendMemory(int rank) {
    std::byte ride{1};
    iovec part{&ride, 1};
    if (peer(rank).data->SendWith({&part, 1}, memory_->fd()) == 1) return Ok();
    return Annotate(FromErrno(errno, "send the shared memory"), member(rank).task);
  }
  Status ReceiveMemory(int rank) {
    Peer& from = peer(rank);
    MUSTER_TRY(lobby_->AwaitBytes(from.data->fd(), deadline_));
    std::byte ride{};
    const ssize_t got =
        from.data->ReceiveWith({&ride, 1}, [&](net::Fd fd) { from.memory = std::move(fd); });
    if (got == 1 && from.memory.valid()) return Ok();
    return Unavailable("{} sent no shared memory while the group formed", member(rank).task);
  }

  // The members on this one's host, itself among them. When all have said where they are.
  std::vector<int> OnThisHost() {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (r == spec_.rank || peer(r).host == HostNumber()) ranks.push_back(r);
    }
    return ranks;
  }
  // Whether the host's other members can be handed a descriptor.
  bool CanShare() {
    return spec_.transport == Transport::kBest && on_host_.size() > 1 &&
           std::ranges::all_of(on_host_, [&](int r) { return r == spec_.rank || peer(r).local; });
  }
  std::uint64_t HostNumber() const { return Signature().Add(self_.host_id).value(); }

  // The request of a GO is 1 when shared memory comes behind it. Rank 0's brings what links cost,
  // where that is told.
  Status Say(int rank, net::FrameKind kind, bool brings_memory = false) {
    const std::uint64_t host = HostNumber();
    std::string meta(reinterpret_cast<const char*>(&host), sizeof(host));
    if (kind == kGo && spec_.rank == 0 && spec_.costs.has_value()) {
      meta += PackedCosts(*spec_.costs);
    }
    return lobby_->Say(rank, kind, brings_memory ? 1U : 0U, std::as_bytes(std::span(meta)));
  }

  // Waits for one frame of that kind from each of the ranks. Who has formed it goes on at once:
  // what it says then is the watch's.
  Status Gather(net::FrameKind kind, int first, int last) {
    for (int r = first; r < last; ++r) {
      lobby_->WaitsFor(fmt::format("{} (which waits for others)", member(r).task));
      MUSTER_TRY_ASSIGN(const auto frame, lobby_->Await(r, deadline_));
      if (!frame.has_value()) {
        return DeadlineExceeded("group {} of {} has not formed within {} ms: {} waits for others",
                                spec_.generation, spec_.job, spec_.form_within.count(),
                                member(r).task);
      }
      const std::span<const std::byte> meta = frame->meta;
      std::uint64_t host = 0;
      const bool told = kind == kGo && r == 0;
      if (frame->header.kind != kind || meta.size() < sizeof(host) ||
          (meta.size() > sizeof(host) && !told)) {
        return DataLoss("{}: a frame of kind {} where a group forms", member(r).task,
                        frame->header.kind);
      }
      std::memcpy(&host, meta.data(), sizeof(host));
      if (told) MUSTER_TRY(TakeCosts(meta.subspan(sizeof(host))));
      peer(r).host = host;
      peer(r).brings_memory = frame->header.request == 1;
    }
    return Ok();
  }

  // What a GO of rank 0 brings, or does not.
  Status TakeCosts(std::span<const std::byte> packed) {
    spec_.costs.reset();
    if (packed.empty()) return Ok();
    MUSTER_TRY_ASSIGN(spec_.costs, UnpackedCosts(packed));
    return Ok();
  }

  Result<std::unique_ptr<Group>> Finish() {
    std::optional<SharedMemory> memory;
    const auto place = static_cast<int>(std::ranges::find(on_host_, spec_.rank) - on_host_.begin());
    if (memory_.has_value()) {
      MUSTER_TRY_ASSIGN(memory, SharedMemory::Map(place, on_host_, *std::move(memory_)));
    } else if (net::Fd& given = peer(on_host_.front()).memory; given.valid()) {
      MUSTER_TRY_ASSIGN(memory, SharedMemory::Map(place, on_host_, std::move(given)));
    }
    std::vector<Mesh::Peer> data;
    std::vector<Watch::Link> watches = lobby_->Leave();
    std::vector<std::uint64_t> hosts;
    for (int r = 0; r < size(); ++r) {
      data.push_back(
          {.stream = std::move(peer(r).data), .payload_crc = peer(r).crc, .name = member(r).task});
      hosts.push_back(peer(r).host.value_or(HostNumber()));
    }
    return ProcessGroup::Create(spec_, std::move(data), std::move(watches), std::move(memory),
                                hosts);
  }

  GroupSpec spec_;  // whose costs become those of rank 0
  const net::Listener& listener_;
  const std::unique_ptr<Lobby> lobby_;
  const net::Identity self_;
  const std::uint32_t members_;
  const TimePoint deadline_;
  HostDoor door_;
  std::vector<net::Listener> listeners_;  // the own address, and the door
  // Shared with those who greet, while connections are accepted.
  Mutex mutex_;
  std::vector<Peer> peers_;
  Status fatal_ MUSTER_GUARDED_BY(mutex_);
  bool said_refused_ MUSTER_GUARDED_BY(mutex_) = false;
  net::LinkKind last_kind_ = net::LinkKind::kTcp;
  bool last_crc_ = false;
  std::vector<int> on_host_;  // ranks; known when all have said READY or GO
  std::optional<net::Arena> memory_;
};

}  // namespace

Result<std::unique_ptr<Group>> FormGroup(const GroupSpec& spec, const net::Listener& listener) {
  MUSTER_TRY(CheckSpec(spec));
  MUSTER_TRY_ASSIGN(std::string host, net::HostId());
  Lobby::Options options{.job = spec.job,
                         .generation = spec.generation,
                         .tasks = {},
                         .limit = spec.form_within < kEndless ? spec.form_within : Millis(0),
                         .wait_page = spec.wait_page};
  for (const GroupMember& member : spec.members) options.tasks.push_back(member.task);
  MUSTER_TRY_ASSIGN(auto lobby, Lobby::Create(std::move(options)));
  Forming forming(spec, listener, std::move(host), std::move(lobby));
  return forming.Run();
}

}  // namespace muster::collectives
