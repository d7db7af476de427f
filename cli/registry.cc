#include "cli/registry.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "common/base/private_directory.h"
#include "common/base/wall_time.h"
#include "common/base/whole_file.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Field 22 of /proc/<pid>/stat; the name in field 2 may hold anything but ends with the last ')'.
std::optional<std::uint64_t> StartTicks(int pid) {
  const std::string text = ReadWholeFile(fmt::format("/proc/{}/stat", pid)).value_or("");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    if (!(rest >> field)) return std::nullopt;
    // A zombie holds its number but serves nobody.
    if (number == 3 && field == "Z") return std::nullopt;
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string FileOf(const std::string& runtime_directory, int pid) {
  return fmt::format("{}/up/{}.json", runtime_directory, pid);
}

std::optional<Registration> Read(const fs::path& path) {
  const json parsed =
      json::parse(ReadWholeFile(path).value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  Registration registration;
  try {
    parsed.at("pid").get_to(registration.pid);
    parsed.at("start_ticks").get_to(registration.start_ticks);
    parsed.at("address").get_to(registration.address);
    parsed.at("token_file").get_to(registration.token_file);
    parsed.at("state_directory").get_to(registration.state_directory);
    parsed.at("started_ms").get_to(registration.started_ms);
  } catch (const json::exception&) {
    return std::nullopt;  // not one of ours, or of another version
  }
  return registration;
}

}  // namespace

Result<std::string> RuntimeDirectory(const Environment& environment) {
  const std::string xdg = environment("XDG_RUNTIME_DIR").value_or("");
  std::error_code error;
  const std::string path = !xdg.empty() && fs::is_directory(xdg, error)
                               ? xdg + "/muster"
                               : fmt::format("/tmp/muster-{}", ::geteuid());
  MUSTER_TRY(MakePrivateDirectory(path));
  return path;
}

Status Register(const std::string& runtime_directory, Registration registration) {
  MUSTER_TRY(MakePrivateDirectory(runtime_directory + "/up"));
  registration.pid = ::getpid();
  registration.start_ticks = StartTicks(registration.pid).value_or(0);
  registration.started_ms = UnixMillis(std::chrono::system_clock::now());
  const json entry{{"pid", registration.pid},
                   {"start_ticks", registration.start_ticks},
                   {"address", registration.address},
                   {"token_file", registration.token_file},
                   {"state_directory", registration.state_directory},
                   {"started_ms", registration.started_ms}};
  return ReplaceFile(FileOf(runtime_directory, registration.pid), entry.dump(2) + '\n', 0600);
}

void Unregister(const std::string& runtime_directory) {
  (void)::unlink(FileOf(runtime_directory, ::getpid()).c_str());
}

std::optional<Registration> NewestUp(const std::string& runtime_directory) {
  std::optional<Registration> newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runtime_directory + "/up", error)) {
    if (entry.path().extension() != ".json") continue;
    std::optional<Registration> found = Read(entry.path());
    if (!found) continue;
    if (StartTicks(found->pid) != found->start_ticks) {
      (void)::unlink(entry.path().c_str());
      continue;
    }
    if (!newest || found->started_ms > newest->started_ms) newest = std::move(found);
  }
  return newest;
}

}  // namespace muster::cli
