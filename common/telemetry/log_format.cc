#include "common/telemetry/log_format.h"

#include <cstdint>

#include <fmt/core.h>
#include <time.h>

#include "common/base/utf8.h"

namespace muster::log {
namespace {

// U+0080 to U+009F, two bytes each: the second half of the control characters. Terminals obey them,
// too; U+009B begins what ESC [ begins.
bool IsHighControl(std::string_view sequence) {
  return sequence.size() == 2 && sequence[0] == '\xC2' &&
         static_cast<unsigned char>(sequence[1]) < 0xA0;
}

template <class OnAscii>
void CopyUtf8(std::string_view given, std::string& out, OnAscii on_ascii) {
  const std::string valid = ToValidUtf8(given);
  for (std::string_view text = valid; !text.empty();) {
    const std::size_t length = Utf8Length(text);
    if (length == 1) {
      on_ascii(text[0]);
    } else if (IsHighControl(text.substr(0, length))) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(text[1]));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
}

void AppendJson(std::string_view text, std::string& out) {
  out += '"';
  CopyUtf8(text, out, [&out](char c) {
    switch (c) {
      case '"':
        out += "\\\"";
        return;
      case '\\':
        out += "\\\\";
        return;
      case '\n':
        out += "\\n";
        return;
      case '\t':
        out += "\\t";
        return;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  });
  out += '"';
}

// Nothing that a message holds may move the cursor of a terminal.
void AppendText(std::string_view text, std::string& out) {
  CopyUtf8(text, out, [&out](char c) {
    if (c == '\n') {
      out += "\n    ";
    } else if (c != '\t' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  });
}

struct Parts {
  tm calendar{};
  std::int64_t micros = 0;
};

Parts Split(std::chrono::system_clock::time_point time, bool utc) {
  const auto since = std::chrono::floor<std::chrono::microseconds>(time).time_since_epoch();
  const auto whole = std::chrono::floor<std::chrono::seconds>(since);
  const time_t seconds = whole.count();
  Parts parts;
  parts.micros = (since - whole).count();
  (utc ? ::gmtime_r : ::localtime_r)(&seconds, &parts.calendar);
  return parts;
}

}  // namespace

std::string_view NameOf(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
    default:
      return "off";
  }
}

std::optional<Level> ParseLevel(std::string_view text) {
  for (const Level level :
       {Level::kDebug, Level::kInfo, Level::kWarning, Level::kError, Level::kOff}) {
    if (text == NameOf(level)) return level;
  }
  return std::nullopt;
}

std::string FormatText(const Line& line) {
  const Parts at = Split(line.time, false);
  std::string out = fmt::format("{:02}:{:02}:{:02}.{:03} {} ", at.calendar.tm_hour,
                                at.calendar.tm_min, at.calendar.tm_sec, at.micros / 1000,
                                static_cast<char>(NameOf(line.level)[0] - 'a' + 'A'));
  if (const auto task = line.fields.find("task"); task != line.fields.end()) {
    AppendText(task->second, out);
    out += ": ";
  }
  AppendText(line.message, out);
  const char* separator = " (";
  for (const auto& [name, value] : line.fields) {
    if (name == "task") continue;
    out += separator;
    AppendText(name, out);
    out += '=';
    AppendText(value, out);
    separator = ", ";
  }
  if (separator[0] == ',') out += ')';
  out += '\n';
  return out;
}

std::string FormatJson(const Line& line) {
  const Parts at = Split(line.time, true);
  std::string out = fmt::format(
      R"({{"ts":"{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z","level":"{}","msg":)",
      at.calendar.tm_year + 1900, at.calendar.tm_mon + 1, at.calendar.tm_mday, at.calendar.tm_hour,
      at.calendar.tm_min, at.calendar.tm_sec, at.micros, NameOf(line.level));
  AppendJson(line.message, out);
  for (const auto& [name, value] : line.fields) {
    out += ',';
    const bool ours = name == "ts" || name == "level" || name == "msg";
    AppendJson(ours ? "field_" + name : name, out);
    out += ':';
    AppendJson(value, out);
  }
  out += "}\n";
  return out;
}

}  // namespace muster::log
