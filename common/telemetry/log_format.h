// How a log line looks.
//
//   text  08:00:00.123 W ps:0: disk is full (job=j-1)
//   json  {"ts":"2026-01-02T08:00:00.123456Z","level":"warning","msg":"disk is full","task":"ps:0",
//          "job":"j-1"}                                                          (on one line)
//
// A field named ts, level or msg is written as "field_ts" and so on: each name stands once.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace muster::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

// Sorted by name, so that lines compare.
using Fields = std::map<std::string, std::string>;

struct Line {
  std::chrono::system_clock::time_point time;
  Level level = Level::kInfo;
  std::string_view message;
  const Fields& fields;
};

// Both end in a newline. Bytes that are no UTF-8 are written as "\xff" (in JSON that is "\\xff");
// control characters are escaped (in text, a newline starts an indented line).
[[nodiscard]] std::string FormatText(const Line& line);
[[nodiscard]] std::string FormatJson(const Line& line);

[[nodiscard]] std::string_view NameOf(Level level);
// "debug", "info", "warning", "error", "off"; nothing for anything else.
[[nodiscard]] std::optional<Level> ParseLevel(std::string_view text);

}  // namespace muster::log
