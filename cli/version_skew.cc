#include "cli/version_skew.h"

#include <charconv>
#include <cstdlib>
#include <optional>

namespace muster::cli {
namespace {

struct Version {
  int major = 0;
  int minor = 0;
};

std::optional<Version> Parse(std::string_view text) {
  Version version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc()) return std::nullopt;
  return version;
}

}  // namespace

VersionSkew CompareVersions(std::string_view ours, std::string_view theirs) {
  const auto us = Parse(ours);
  const auto them = Parse(theirs);
  if (!us || !them || (us->major == them->major && us->minor == them->minor)) return {};
  if (us->major != them->major) {
    return {
        .refusal = FailedPrecondition(
            "this program is version {}, the coordinator {}: of another major version nothing is "
            "sure to be understood; use a program of the cluster's",
            ours, theirs),
        .warning = {}};
  }
  const bool near = std::abs(us->minor - them->minor) == 1;
  return {.refusal = Ok(),
          .warning = fmt::format(
              "this program is version {}, the coordinator {}: {}", ours, theirs,
              near ? "that works, what is new in either is missing; upgrade the older one"
                   : "more than one minor version apart, which nobody tries; use the cluster's")};
}

}  // namespace muster::cli
