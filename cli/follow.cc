#include "cli/follow.h"

#include <algorithm>

#include <fmt/core.h>

#include "cli/format.h"
#include "cli/logs.h"
#include "cli/progress.h"
#include "common/messages/job_state.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

// The longest that one WatchJob waits.
constexpr milliseconds kWatch{10'000};
// The same where lines are shown, which come without a change of the job.
constexpr milliseconds kWatchLines{500};

// Asks again while the coordinator is gone; any other error is the answer.
class Watcher {
 public:
  Watcher(const Context& context, JobApi& api, ProgressView& view)
      : context_(context), api_(api), view_(view) {}

  Result<v1::Job> Next(const std::string& job, std::uint64_t version, milliseconds limit) {
    Result<v1::Job> reply = api_.Watch(job, version, limit);
    if (reply.ok() || context_.interrupted()) return Back(std::move(reply));
    const StatusCode code = reply.status().code();
    if (code != StatusCode::kUnavailable && code != StatusCode::kDeadlineExceeded) {
      trying_ = false;
      return reply;
    }
    if (!trying_) {
      trying_ = true;
      lost_since_ = context_.clock.Now();
      view_.Say("the coordinator does not answer; trying again");
    }
    const bool seen = version > 0;
    if (context_.clock.Now() - lost_since_ >= (seen ? milliseconds(kPatience) : kFirstPatience)) {
      trying_ = false;
      return reply;
    }
    (void)context_.sleep(kRetry);
    return Unavailable("");
  }

  // The last answer was "not there yet".
  bool trying() const { return trying_; }

 private:
  Result<v1::Job> Back(Result<v1::Job> reply) {
    if (reply.ok() && trying_) {
      view_.Say("the coordinator is back");
      trying_ = false;
    }
    return reply;
  }

  const Context& context_;
  JobApi& api_;
  ProgressView& view_;
  bool trying_ = false;
  TimePoint lost_since_{};
};

// What a job's processes have written and nobody has been shown.
class Lines {
 public:
  Lines(const Context& context, JobApi& api, const std::string& job)
      : context_(context), api_(api) {
    request_.set_job(job);
  }

  // A coordinator that is gone is none of this function's business: its lines are shown when it is
  // back.
  void Show(ProgressView& view) {
    bool first = true;
    (void)api_.ReadLogs(request_, [&](const v1::LogRecord& record) {
      if (first) view.Yield();
      first = false;
      request_.set_cursor(record.cursor());
      PrintLine(context_, record);
    });
    if (!first) context_.terminal.out << std::flush;
  }

 private:
  const Context& context_;
  JobApi& api_;
  v1::ReadLogsRequest request_;
};

// With -o json stdout gets one document: the job as it is, or where it was never seen, why.
void ShowJson(const Context& context, const std::optional<v1::Job>& job, const Status& why = Ok()) {
  if (context.options.output != Output::kJson) return;
  context.terminal.out << (job ? Json(*job) : ErrorJson(why));
}

ExitCode Ended(const Context& context, const FollowOptions& follow, const v1::Job& job) {
  std::string sentence = fmt::format("job {} {}", job.id(), StateName(job.state()));
  if (job.state() == v1::JOB_STATE_FAILED) {
    const std::string& why = job.error().message().empty() ? job.message() : job.error().message();
    sentence += ": " + (follow.locate ? follow.locate(why) : why);
  } else if (!job.message().empty()) {
    sentence += ": " + job.message();
  }
  if (job.has_evaluation()) {
    const v1::EvaluationResult& result = job.evaluation();
    sentence +=
        fmt::format("; evaluation on {} example{}: loss {:.4f}", Thousands(result.examples()),
                    result.examples() == 1 ? "" : "s", result.loss());
    if (result.has_accuracy()) sentence += fmt::format(", accuracy {:.4f}", result.accuracy());
    if (result.has_auc()) sentence += fmt::format(", auc {:.4f}", result.auc());
  }
  context.terminal.err << sentence << '\n';
  if (job.state() == v1::JOB_STATE_FAILED) {
    context.terminal.err << fmt::format(
        "`muster describe {0}` tells the story, `muster logs {0}` "
        "what its processes wrote\n",
        job.id());
  }
  return CodeOf(job);
}

}  // namespace

// Until the job ends, the time is over, or the user goes; the job goes on in the last two cases.
ExitCode Follow(const Context& context, const FollowOptions& follow) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  ProgressView view(context.terminal, context.clock);
  Watcher watcher(context, **api, view);
  const bool shows_lines = follow.lines && context.options.output != Output::kJson;
  Lines lines(context, **api, follow.job);
  const TimePoint start = context.clock.Now();
  std::uint64_t version = 0;
  std::optional<v1::Job> last = follow.known;
  while (true) {
    milliseconds limit = shows_lines ? kWatchLines : kWatch;
    if (follow.timeout) {
      // No sum of a time and what may stand for ever: it would lie in the past.
      const auto left =
          std::chrono::duration_cast<milliseconds>(*follow.timeout - (context.clock.Now() - start));
      limit = std::clamp(left, milliseconds(0), limit);
    }
    const Result<v1::Job> job = watcher.Next(follow.job, version, limit);
    if (context.interrupted()) {
      view.Finish();
      ShowJson(context, last, Cancelled("detached from job {} before it was seen", follow.job));
      context.terminal.err << fmt::format(
          "detached; the job goes on. `muster wait {0}` waits for it, `muster logs {0} -f` follows "
          "it, `muster stop {0}` ends it\n",
          follow.job);
      return ExitCode::kInterrupted;
    }
    if (!job.ok() && !watcher.trying()) {
      view.Finish();
      return Fail(context, job.status());
    }
    if (job.ok()) {
      version = job->version();
      last = *job;
      if (shows_lines) lines.Show(view);
      if (follow.show) view.Show(*job);
      if (HasEnded(job->state())) {
        view.Finish();
        ShowJson(context, last);
        return Ended(context, follow, *job);
      }
    }
    if (follow.timeout && context.clock.Now() - start >= *follow.timeout) {
      view.Finish();
      const Status late =
          DeadlineExceeded("job {} has not ended after {}; it goes on", follow.job,
                           Seconds(static_cast<double>(follow.timeout->count()) / 1e3));
      ShowJson(context, last, late);
      context.terminal.err << Message(late) << '\n';
      return ExitCode::kTimedOut;
    }
  }
}

ExitCode Wait(const Context& context) {
  return Follow(context, {.job = context.options.job,
                          .show = context.terminal.live,
                          .timeout = context.options.timeout});
}

}  // namespace muster::cli
