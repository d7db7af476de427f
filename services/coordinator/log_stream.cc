#include "services/coordinator/log_stream.h"

#include <deque>

#include "common/base/job_limits.h"
#include "services/coordinator/write_stream.h"

namespace muster::coordinator {
namespace {

// How often a follower looks for more, and how long after the end of a job lines may still come.
constexpr Millis kPoll{200};
constexpr int kPollsAfterEnd = 3;

class LogStream : public WriteStream<v1::LogRecord> {
 public:
  LogStream(Front& front, grpc::CallbackServerContext* context, const v1::ReadLogsRequest& request)
      : WriteStream(front, context), job_(request.job()), follow_(request.follow()) {
    query_.task = request.task();
    query_.cursor = request.cursor();
    query_.tail = request.tail();
    query_.since_us = request.since_us();
  }

  void Begin(const Result<services::Caller>& caller) {
    Hold();
    Post([this, caller] {
      if (!caller.ok()) return End(caller.status());
      caller_ = *caller;
      if (query_.tail > job_limits::kMostTail) {
        return End(
            InvalidArgument("the last {} lines: at most {} can be asked for; without a number "
                            "all are read",
                            query_.tail, job_limits::kMostTail));
      }
      if (front_.core == nullptr) return End(Front::Closing());
      const auto job = front_.Look(caller_, "logs", job_);
      if (!job.ok()) return End(job.status());
      // A job of the same name that comes later has lines and cursors of its own.
      job_ = (*job)->id();
      Next();
    });
  }

  // A page may be on its way for as long as its disk hangs: who has gone does not wait for it, nor
  // does a coordinator that shuts down.
  void OnCancel() override {
    Post([this] {
      cancelled_ = true;
      if (filling_) End(Cancelled("the reader has gone"));
    });
  }

 private:
  void OnSent() override {
    records_.pop_front();
    Next();
  }

  void Next() {
    if (finished()) return;
    if (cancelled_) return End(Cancelled("the reader has gone"));
    if (front_.core == nullptr) return End(Front::Closing());
    if (const Status may = front_.still_allowed(caller_); !may.ok()) return End(may);
    if (records_.empty()) return Fill();
    Write();
  }

  void Write() {
    if (!records_.empty()) return Send(records_.front());
    if (!at_end_) return Post([this] { Next(); });
    if (!follow_ || polls_after_end_ >= kPollsAfterEnd) return End(Ok());
    (void)front_.strand.RunAfter(kPoll, [self = shared_from_this(), this] { Next(); });
  }

  void Fill() {
    const Result<Job*> job = front_.core->Find(job_);
    if (!job.ok()) return End(job.status());
    if ((*job)->ended()) ++polls_after_end_;
    filling_ = true;
    front_.core->ReadLogs(job_, query_, [self = shared_from_this(), this](auto page) {
      filling_ = false;
      if (!finished()) Take(std::move(page));
    });
  }

  void Take(Result<LogStore::Page> page) {
    if (!page.ok()) return End(page.status());
    query_.cursor = page->cursor;
    query_.tail = 0;
    at_end_ = page->end;
    records_.assign(std::make_move_iterator(page->records.begin()),
                    std::make_move_iterator(page->records.end()));
    if (!records_.empty()) polls_after_end_ = 0;
    Write();
  }

  std::string job_;
  const bool follow_;
  services::Caller caller_;
  LogStore::Query query_;
  std::deque<v1::LogRecord> records_;
  bool at_end_ = false;
  bool cancelled_ = false;
  // A page was asked for and has not come; nothing is being written meanwhile.
  bool filling_ = false;
  int polls_after_end_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::LogRecord>* StreamLogs(Front& front,
                                                    grpc::CallbackServerContext* context,
                                                    const v1::ReadLogsRequest& request) {
  auto stream = std::make_shared<LogStream>(front, context, request);
  stream->Begin(front.Authorize(*context, tls::Role::kViewer, "logs"));
  return stream.get();
}

}  // namespace muster::coordinator
