#include "cli/logs.h"

#include <optional>

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "common/base/wall_time.h"

namespace muster::cli {

void PrintLine(const Context& context, const v1::LogRecord& record) {
  if (context.options.output == Output::kJson) {
    context.terminal.out << JsonLine(record);
  } else {
    context.terminal.out << fmt::format("{} {:<9} {}\n", ClockTime(record.line().time_us() / 1000),
                                        record.task(), record.line().text());
  }
  if (context.options.follow) context.terminal.out << std::flush;
}

// With -f the stream ends with the job; when the coordinator goes away in between, reading goes on
// after the last line seen, so nothing is lost or shown twice.
ExitCode Logs(const Context& context) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  v1::ReadLogsRequest request;
  request.set_job(context.options.job);
  request.set_task(context.options.task);
  request.set_follow(context.options.follow);
  request.set_tail(context.options.tail);
  if (context.options.since) {
    request.set_since_us(UnixMicros(context.clock.WallNow() - *context.options.since));
  }
  bool reached = false;
  std::optional<TimePoint> gone_since;
  while (true) {
    // Whether it is there a stream does not say before it has a line, and that may take hours.
    Status status = context.options.follow ? (*api)->GetStatus().status() : Ok();
    if (status.ok()) {
      reached = true;
      const TimePoint begun = context.clock.Now();
      status = (*api)->ReadLogs(request, [&](const v1::LogRecord& record) {
        gone_since.reset();
        request.set_cursor(record.cursor());
        request.clear_tail();
        PrintLine(context, record);
      });
      // It was open, not refused.
      if (context.clock.Now() - begun >= kRetry) gone_since.reset();
    }
    if (context.interrupted()) return ExitCode::kInterrupted;
    if (status.ok()) return ExitCode::kDone;
    const bool gone =
        status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
    const TimePoint now = context.clock.Now();
    if (!gone_since) gone_since = now;
    if (!gone || !reached || !context.options.follow || now - *gone_since >= kPatience) {
      return Fail(context, status);
    }
    (void)context.sleep(kRetry);
  }
}

}  // namespace muster::cli
