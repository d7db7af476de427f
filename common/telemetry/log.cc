#include "common/telemetry/log.h"

#include <atomic>
#include <cerrno>
#include <chrono>

#include <poll.h>
#include <unistd.h>

#include "common/base/mutex.h"

namespace muster::log {
namespace {

constexpr std::size_t kLongestMessage = 16 * 1024;
// Where writing does not block, for whoever reads: another process that has the same terminal or
// pipe may have made it so.
constexpr std::chrono::seconds kPatience{1};

struct Sink {
  std::atomic<Level> level{Level::kInfo};
  Mutex mutex;  // keeps lines whole, too
  bool json MUSTER_GUARDED_BY(mutex) = false;
  Fields fields MUSTER_GUARDED_BY(mutex);
  int descriptor MUSTER_GUARDED_BY(mutex) = 2;
  // Its reader stands still, and is not waited for any more until it takes something.
  bool stuck MUSTER_GUARDED_BY(mutex) = false;
};

// Never destroyed: threads log until the process ends.
Sink& TheSink() {
  static Sink& sink = *new Sink;
  return sink;
}

bool CanBeWritten(int descriptor, std::chrono::steady_clock::time_point until) {
  const auto left = until - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  if (ms <= 0) return false;
  pollfd wanted{.fd = descriptor, .events = POLLOUT, .revents = 0};
  const int ready = ::poll(&wanted, 1, static_cast<int>(ms));
  return ready > 0 || (ready < 0 && errno == EINTR);
}

void WriteAll(int descriptor, std::string_view text, bool& stuck) {
  // For the whole line: whoever logs may be a strand.
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN && !stuck) {
      stuck = !CanBeWritten(descriptor, until);
      continue;
    }
    if (written <= 0) return;  // nowhere left to complain
    stuck = false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void Configure(Options options) {
  Sink& sink = TheSink();
  const MutexLock lock(sink.mutex);
  sink.level = options.level;
  sink.json = options.format == Format::kJson ||
              (options.format == Format::kAuto && ::isatty(options.descriptor) == 0);
  sink.fields = std::move(options.fields);
  sink.descriptor = options.descriptor;
  sink.stuck = false;
}

bool Enabled(Level level) { return level >= TheSink().level.load(std::memory_order_relaxed); }

void Write(Level level, std::string_view message, const Fields& fields) {
  Sink& sink = TheSink();
  const auto now = std::chrono::system_clock::now();
  std::string cut;
  if (message.size() > kLongestMessage) {
    cut =
        fmt::format("{}... ({} bytes in all)", message.substr(0, kLongestMessage), message.size());
    message = cut;
  }
  const MutexLock lock(sink.mutex);
  Fields all = fields;
  all.insert(sink.fields.begin(), sink.fields.end());
  const Line line{.time = now, .level = level, .message = message, .fields = all};
  WriteAll(sink.descriptor, sink.json ? FormatJson(line) : FormatText(line), sink.stuck);
}

}  // namespace muster::log
