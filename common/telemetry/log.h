// Logging: log::Info("registered as {}", task). One line an event, on stderr: text on a terminal,
// JSON lines elsewhere (log_format.h shows both).
//
// The sink is the process's own and is set once, in main. Threading: any thread; a line is written
// whole. A line longer than 16 KiB is cut, and says so.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "common/telemetry/log_format.h"

namespace muster::log {

enum class Format { kAuto, kText, kJson };

struct Options {
  Level level = Level::kInfo;
  // kAuto: text when `descriptor` is a terminal.
  Format format = Format::kAuto;
  // On every line, for example {"task", "ps:0"}.
  Fields fields = {};
  int descriptor = 2;
};

void Configure(Options options);
[[nodiscard]] bool Enabled(Level level);
// What the functions below end in.
void Write(Level level, std::string_view message, const Fields& fields = {});

#define MUSTER_LOG_LEVEL(Name, level)                         \
  template <class... Args>                                    \
  void Name(fmt::format_string<Args...> text, Args&&... args) \
      MUSTER_LOG_BODY(level, fmt::format(text, std::forward<Args>(args)...))
#define MUSTER_LOG_BODY(level, message)          \
  {                                              \
    if (Enabled(level)) Write(level, (message)); \
  }
MUSTER_LOG_LEVEL(Debug, Level::kDebug)
MUSTER_LOG_LEVEL(Info, Level::kInfo)
MUSTER_LOG_LEVEL(Warning, Level::kWarning)
MUSTER_LOG_LEVEL(Error, Level::kError)
#undef MUSTER_LOG_BODY

// The same with fields: log::With({{"job", id}, {"step", "12"}}).Info("saved {} bytes", n).
class WithFields {
 public:
  explicit WithFields(Fields fields) : fields_(std::move(fields)) {}
#define MUSTER_LOG_BODY(level, message)                   \
  const {                                                 \
    if (Enabled(level)) Write(level, (message), fields_); \
  }
  MUSTER_LOG_LEVEL(Debug, Level::kDebug)
  MUSTER_LOG_LEVEL(Info, Level::kInfo)
  MUSTER_LOG_LEVEL(Warning, Level::kWarning)
  MUSTER_LOG_LEVEL(Error, Level::kError)
#undef MUSTER_LOG_BODY

 private:
  Fields fields_;
};
#undef MUSTER_LOG_LEVEL

[[nodiscard]] inline WithFields With(Fields fields) { return WithFields(std::move(fields)); }

}  // namespace muster::log
