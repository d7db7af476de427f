#include "services/common/program_child.h"

#include <filesystem>
#include <string_view>

#include <sys/statvfs.h>
#include <unistd.h>

#include "common/data/cache.h"
#include "common/process/executable.h"

namespace muster::services {
namespace {

const char* RoleName(v1::ProgramRole role) {
  switch (role) {
    case v1::PROGRAM_ROLE_DRIVER:
      return "driver";
    case v1::PROGRAM_ROLE_EXECUTOR:
      return "executor";
    case v1::PROGRAM_ROLE_PROBE:
      return "probe";
    case v1::PROGRAM_ROLE_EVALUATOR:
      return "evaluator";
    default:
      return "unknown";
  }
}

std::string Describe(const std::string& path) {
  const Result<process::Executable> found = process::LookAtExecutable(path);
  return found.ok() ? found->Describe() : "a file that cannot be read";
}

}  // namespace

std::map<std::string, std::string> WithoutSecrets() {
  return {{"MUSTER_TOKEN_FILE", ""}, {"MUSTER_TLS_CA", ""},      {"MUSTER_TLS_CERT", ""},
          {"MUSTER_TLS_KEY", ""},    {"MUSTER_TLS_ALLOWED", ""}, {"CREDENTIALS_DIRECTORY", ""}};
}

std::map<std::string, std::string> WithoutMuster() {
  std::map<std::string, std::string> changes = WithoutSecrets();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("MUSTER_")) changes[std::string(text, 0, text.find('='))] = "";
  }
  return changes;
}

process::Child::Options ProgramChild(const std::string& path, const v1::ProgramSpec& program,
                                     const v1::ProgramStart& start, const std::string& data_cache) {
  process::Child::Options child;
  child.program = path;
  child.argv.push_back(program.name().empty() ? path : program.name());
  child.argv.insert(child.argv.end(), program.arguments().begin(), program.arguments().end());
  child.environment = WithoutMuster();
  child.environment["MUSTER_PROGRAM_FD"] = "3";
  child.environment["MUSTER_ROLE"] = RoleName(start.role());
  child.environment["TF_CONFIG"] =
      fmt::format(R"({{"cluster": {{}}, "task": {{"type": "{}", "index": {}}}}})",
                  start.task().type(), start.task().index());
  if (!data_cache.empty()) {
    child.environment[data::kCacheVariable] = std::filesystem::absolute(data_cache).string();
  }
  child.oom_score = kProgramOomScore;
  return child;
}

Status ExplainStart(const Status& why, const std::string& path) {
  switch (why.code()) {
    case StatusCode::kInvalidArgument:
      return InvalidArgument(
          "the program is {}, and this host is {}: build it for the hosts that "
          "run it",
          Describe(path), process::HostMachine());
    case StatusCode::kPermissionDenied: {
      struct statvfs where{};
      const bool noexec = ::statvfs(path.c_str(), &where) == 0 && (where.f_flag & ST_NOEXEC) != 0;
      return FailedPrecondition(
          "this host may not run files of its cache{}: give the daemon another --cache-dir ({})",
          noexec ? ", which is mounted noexec" : "", Message(why));
    }
    case StatusCode::kNotFound:
      return FailedPrecondition(
          "the program ({}) needs a loader (ld.so) that this host does not have: build it for this "
          "host's system, or install that one's libc here",
          Describe(path));
    default:
      return why;
  }
}

}  // namespace muster::services
