#include "common/base/version_skew.h"

#include <charconv>
#include <cstdlib>
#include <optional>

namespace muster {
namespace {

struct Numbers {
  int major = 0;
  int minor = 0;
};

std::optional<Numbers> Parse(std::string_view text) {
  Numbers version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc()) return std::nullopt;
  return version;
}

}  // namespace

VersionSkew CompareVersions(std::string_view who, std::string_view version,
                            std::string_view coordinator) {
  const auto us = Parse(version);
  const auto them = Parse(coordinator);
  if (!us || !them || (us->major == them->major && us->minor == them->minor)) return {};
  if (us->major != them->major) {
    return {
        .refusal = FailedPrecondition(
            "{} is version {}, the coordinator {}: of another major version nothing is sure to be "
            "understood; install the cluster's version",
            who, version, coordinator),
        .warning = {}};
  }
  const bool near = std::abs(us->minor - them->minor) == 1;
  return {.refusal = Ok(),
          .warning = fmt::format(
              "{} is version {}, the coordinator {}: {}", who, version, coordinator,
              near ? "that works, what is new in either is missing; upgrade the older one"
                   : "more than one minor version apart, which nobody tries; use the cluster's")};
}

bool SameRelease(std::string_view one, std::string_view other) {
  const auto a = Parse(one);
  const auto b = Parse(other);
  return a && b && a->major == b->major && a->minor == b->minor;
}

}  // namespace muster
