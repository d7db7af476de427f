#include "worker/program_errors.h"

#include <string_view>

namespace muster::worker {
namespace {

// "libx.so.1" of ld.so's "...: error while loading shared libraries: libx.so.1: cannot open ...".
std::string MissingLibrary(std::string_view line) {
  constexpr std::string_view kSays = "error while loading shared libraries: ";
  const std::size_t at = line.find(kSays);
  if (at == std::string_view::npos) return "";
  line.remove_prefix(at + kSays.size());
  return std::string(line.substr(0, line.find(':')));
}

bool WantsNewerLibrary(std::string_view line) {
  return (line.find("version `") != std::string_view::npos &&
          line.find("not found (required by") != std::string_view::npos) ||
         line.find("symbol lookup error:") != std::string_view::npos;
}

// For whoever has submitted a program that trains in step, an interpreter, or what is none of
// Muster's.
constexpr std::string_view kFirst =
    "without calling muster::init(argc, argv), which must be the first line of its main() (muster "
    "submit --strategy multi_worker_mirrored runs a program that trains in step, --strategy none "
    "any command)";

}  // namespace

Status ExplainEarlyEnd(const std::string& how, const std::deque<std::string>& lines) {
  for (const std::string& line : lines) {
    if (const std::string library = MissingLibrary(line); !library.empty()) {
      return FailedPrecondition(
          "the program needs the shared library {}, which this host cannot load: install it here "
          "(ldd on the program shows all), or link it statically ({})",
          library, line);
    }
    if (WantsNewerLibrary(line)) {
      return FailedPrecondition(
          "the program was built with newer libraries than this host has: build it on a host like "
          "this one, or bring this one up to date ({})",
          line);
    }
  }
  const std::string last = lines.empty() ? "" : ": " + lines.back();
  if (how.starts_with("signal")) {
    return InvalidArgument(
        "the program crashed ({}) before it called muster::init(argc, argv), the first line of its "
        "main(): run it by hand (its file may be damaged, or a constructor of a global crashes){}",
        how, last);
  }
  return InvalidArgument("the program ended ({}) {}{}", how, kFirst, last);
}

Status ExplainSilence(Millis limit) {
  return InvalidArgument("the program ran for {} s {}", limit.count() / 1'000, kFirst);
}

}  // namespace muster::worker
