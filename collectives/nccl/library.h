// NCCL, the library of collective calls between NVIDIA's cards, as its shared library offers it:
// found when it is asked for (dlopen), so builds and machines without it need nothing of it.
//
// What is declared here is the part of its C interface that communicator.h uses, as of 2.14, when
// calls that do not block began; newer ones keep it. A stream is a cudaStream_t.
// Threading: any thread; calls of one communicator: one at a time.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster::collectives::nccl {

// Numbers of its results, types and operations that Muster uses.
enum class Code : int { kSuccess = 0, kInProgress = 7 };
enum class Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat32 = 7,
  kFloat64 = 8,
};
enum class Operation : int { kSum = 0 };

// By it the members of a communicator find each other.
struct UniqueId {
  std::array<char, 128> bytes;
};

// The first fields of its configuration, which is as long as `size` says.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int unset = INT_MIN;  // in newer configurations: as NCCL thinks best
};

struct Library {
  // The file: MUSTER_NCCL_LIBRARY of the environment, else libnccl.so.2. It stays loaded.
  //   kNotFound: no such library. kFailedPrecondition: one that lacks a function, or is older than
  //   2.14.
  static Result<Library> Load(const Environment& environment);
  static constexpr const char* kVariable = "MUSTER_NCCL_LIBRARY";
  static constexpr int kOldest = 21400;

  // "2.21.5"
  std::string VersionText() const;
  // kUnavailable, in NCCL's own words, for a result that says neither success nor in progress.
  Status Check(Code code, const char* call) const;

  std::string file;
  int version = 0;

  Code (*get_version)(int* version) = nullptr;
  Code (*get_unique_id)(UniqueId* id) = nullptr;
  Code (*comm_init_rank_config)(void** comm, int size, UniqueId id, int rank,
                                Config* config) = nullptr;
  Code (*comm_get_async_error)(void* comm, Code* error) = nullptr;
  Code (*comm_abort)(void* comm) = nullptr;
  Code (*all_reduce)(const void* in, void* out, std::size_t count, Type type, Operation operation,
                     void* comm, void* stream) = nullptr;
  Code (*group_start)() = nullptr;
  Code (*group_end)() = nullptr;
  const char* (*get_error_string)(Code code) = nullptr;
  const char* (*get_last_error)(void* comm) = nullptr;
};

}  // namespace muster::collectives::nccl
