#include "cli/logs.h"

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
  TimePoint last_answer = context.clock.Now();
  while (true) {
    const Status status = (*api)->ReadLogs(request, [&](const v1::LogRecord& record) {
      reached = true;
      last_answer = context.clock.Now();
      request.set_cursor(record.cursor());
      request.clear_tail();
      PrintLine(context, record);
    });
    if (context.interrupted()) return ExitCode::kInterrupted;
    if (status.ok()) return ExitCode::kDone;
    const bool gone = status.code() == StatusCode::kUnavailable;
    if (!gone || !reached || !context.options.follow ||
        context.clock.Now() - last_answer >= kPatience) {
      return Fail(context, status);
    }
    (void)context.sleep(kRetry);
  }
}

}  // namespace muster::cli
