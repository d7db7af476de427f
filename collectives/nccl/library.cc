#include "collectives/nccl/library.h"

#include <dlfcn.h>

namespace muster::collectives::nccl {
namespace {

std::string Text(int version) {
  // Up to 2.8 a minor version had one digit.
  const int major = version < 10'000 ? version / 1000 : version / 10'000;
  const int rest = version < 10'000 ? version % 1000 : version % 10'000;
  return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

template <class Function>
Status Find(void* handle, const std::string& file, const char* name, Function*& function) {
  // dlsym() gives functions as objects.
  function = reinterpret_cast<Function*>(::dlsym(handle, name));
  if (function != nullptr) return Ok();
  return FailedPrecondition("{} has no {}: NCCL {} or newer is needed", file, name,
                            Text(Library::kOldest));
}

}  // namespace

Result<Library> Library::Load(const Environment& environment) {
  Library library;
  library.file = environment(kVariable).value_or("");
  if (library.file.empty()) library.file = "libnccl.so.2";
  // Never closed: NCCL has threads of its own.
  void* const handle = ::dlopen(library.file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return NotFound("NCCL cannot be loaded: {}; install it, or name its file by {}",
                    why == nullptr ? library.file : why, kVariable);
  }
  const auto find = [&](const char* name, auto*& function) {
    return Find(handle, library.file, name, function);
  };
  MUSTER_TRY(find("ncclGetVersion", library.get_version));
  MUSTER_TRY(find("ncclGetErrorString", library.get_error_string));
  // Before what old ones lack: the version says more.
  if (library.get_version(&library.version) != Code::kSuccess || library.version < kOldest) {
    return FailedPrecondition("{} is NCCL {}: {} or newer is needed", library.file,
                              library.VersionText(), Text(kOldest));
  }
  MUSTER_TRY(find("ncclGetUniqueId", library.get_unique_id));
  MUSTER_TRY(find("ncclCommInitRankConfig", library.comm_init_rank_config));
  MUSTER_TRY(find("ncclCommGetAsyncError", library.comm_get_async_error));
  MUSTER_TRY(find("ncclCommAbort", library.comm_abort));
  MUSTER_TRY(find("ncclAllReduce", library.all_reduce));
  MUSTER_TRY(find("ncclGroupStart", library.group_start));
  MUSTER_TRY(find("ncclGroupEnd", library.group_end));
  MUSTER_TRY(find("ncclGetLastError", library.get_last_error));
  return library;
}

std::string Library::VersionText() const { return Text(version); }

Status Library::Check(Code code, const char* call) const {
  if (code == Code::kSuccess || code == Code::kInProgress) return Ok();
  const char* const meant = get_error_string(code);
  const char* const last = get_last_error(nullptr);
  const std::string more = last == nullptr ? "" : last;
  return Unavailable("{}: {}{}{}", call, meant == nullptr ? "an error of NCCL" : meant,
                     more.empty() ? "" : ": ", more);
}

}  // namespace muster::collectives::nccl
