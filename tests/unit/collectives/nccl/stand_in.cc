// A library with the interface of NCCL, over host memory and among threads of one process, for
// tests of what is around NCCL. Like NCCL without blocking, it says "in progress" before it is
// done.
#include "tests/unit/collectives/nccl/stand_in.h"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using muster::testing::StandIn;
using muster::testing::StandInStream;

namespace {

StandIn& Told() {
  static StandIn stand_in;
  return stand_in;
}

enum Code : int {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kRemoteError = 6,
  kInProgress = 7
};
constexpr unsigned kMagic = 0xcafebeef;

struct Id {
  std::array<char, 128> bytes;
};
struct Config {
  std::size_t size;
  unsigned magic, version;
  int blocking;
};

struct Sum {
  const void* in;
  void* out;
  std::size_t count;
  int type;
  StandInStream* stream;
};

// A communicator of all ranks.
struct Clique {
  int size = 0;
  int here = 0;
  // What each rank was told, in its order; the first `done` of all were added.
  std::vector<std::vector<Sum>> told;
  std::size_t done = 0;
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int asked = 0;
  bool used = false;
};

std::mutex mutex;
std::map<std::string, std::shared_ptr<Clique>> cliques;
thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<std::pair<Comm*, Sum>> grouped;

template <class T>
void Add(std::vector<Sum>& sums) {
  for (std::size_t i = 0; i < sums[0].count; ++i) {
    T total{};
    for (const Sum& sum : sums) total = static_cast<T>(total + static_cast<const T*>(sum.in)[i]);
    for (const Sum& sum : sums) static_cast<T*>(sum.out)[i] = total;
  }
}

void Add(std::vector<Sum> sums) {
  switch (sums[0].type) {
    case 0:
      return Add<std::int8_t>(sums);
    case 1:
      return Add<std::uint8_t>(sums);
    case 2:
      return Add<std::int32_t>(sums);
    case 4:
      return Add<std::int64_t>(sums);
    case 7:
      return Add<float>(sums);
    case 8:
      return Add<double>(sums);
    default:
      return;
  }
}

// Whatever all ranks were told by now.
void Proceed(Clique& clique) {
  while (true) {
    std::vector<Sum> sums;
    for (const auto& told : clique.told) {
      if (told.size() <= clique.done) return;
      sums.push_back(told[clique.done]);
    }
    if (Told().never_done) return;
    Add(sums);
    for (const Sum& sum : sums) --sum.stream->queued;
    ++clique.done;
  }
}

Code Failed(const char* why) {
  last_error = why;
  return kSystemError;
}

}  // namespace

extern "C" {

StandIn* muster_stand_in() { return &Told(); }

Code ncclGetVersion(int* version) {
  *version = Told().version;
  return kSuccess;
}

Code ncclGetUniqueId(Id* id) {
  static std::atomic<int> made{0};  // of all cases
  ++Told().ids;
  id->bytes.fill('\xfe');
  const std::string number = std::to_string(++made);
  std::memcpy(id->bytes.data(), number.c_str(), number.size() + 1);
  return kSuccess;
}

Code ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, Config* config) {
  if (config->magic != kMagic || config->version < 21400 || config->blocking != 0) {
    return kInvalidArgument;
  }
  if (rank == Told().no_beginning_of) return Failed("the stand-in was told that it has no card");
  const std::lock_guard lock(mutex);
  auto& clique = cliques[std::string(id.bytes.begin(), id.bytes.end())];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size + (Told().never_connected ? 1 : 0);
  clique->told.resize(static_cast<std::size_t>(size));
  ++clique->here;
  *comm = new Comm{.clique = clique, .rank = rank};
  ++Told().begun;
  return kInProgress;
}

Code ncclCommGetAsyncError(Comm* comm, Code* error) {
  const std::lock_guard lock(mutex);
  Clique& clique = *comm->clique;
  *error = kSuccess;
  if (clique.here < clique.size || ++comm->asked % 3 != 0) *error = kInProgress;
  if (comm->used && comm->rank == Told().error_later_of) {
    last_error = "the stand-in was told to lose a connection";
    *error = kRemoteError;
  }
  return kSuccess;
}

Code ncclCommAbort(Comm* comm) {
  const std::lock_guard lock(mutex);
  ++Told().ended;
  delete comm;
  return kSuccess;
}

Code ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

Code ncclAllReduce(const void* in, void* out, std::size_t count, int type, int operation,
                   Comm* comm, void* stream) {
  if (group_depth == 0 || operation != 0) return kInvalidArgument;
  if (comm->rank == Told().no_launch_of) return Failed("the stand-in was told to refuse it");
  auto* const queue = static_cast<StandInStream*>(stream);
  ++queue->queued;
  grouped.emplace_back(comm, Sum{in, out, count, type, queue});
  return kSuccess;
}

Code ncclGroupEnd() {
  if (--group_depth > 0 || grouped.empty()) return kSuccess;
  ++Told().launches;
  const std::lock_guard lock(mutex);
  for (const auto& [comm, sum] : grouped) {
    comm->used = true;
    comm->clique->told[static_cast<std::size_t>(comm->rank)].push_back(sum);
  }
  Proceed(*grouped[0].first->clique);
  grouped.clear();
  return kInProgress;
}

const char* ncclGetErrorString(Code code) {
  return code == kRemoteError ? "remote error of the stand-in" : "system error of the stand-in";
}

const char* ncclGetLastError(Comm*) { return last_error.c_str(); }

}  // extern "C"
