#include "services/coordinator/log_stream.h"

#include <deque>

#include "services/coordinator/stalled_call.h"

namespace muster::coordinator {
namespace {

// How often a follower looks for more, and how long after the end of a job lines may still come.
constexpr Millis kPoll{200};
constexpr int kPollsAfterEnd = 3;

// Everything but gRPC's callbacks, which only post, runs on the strand.
class LogStream : public grpc::ServerWriteReactor<v1::LogRecord>,
                  public std::enable_shared_from_this<LogStream> {
 public:
  LogStream(Front& front, grpc::CallbackServerContext* context, const v1::ReadLogsRequest& request)
      : front_(front),
        job_(request.job()),
        follow_(request.follow()),
        stalled_(front.strand, context, front.stall_limit) {
    query_.task = request.task();
    query_.cursor = request.cursor();
    query_.tail = request.tail();
    query_.since_us = request.since_us();
  }

  void Begin(const Result<services::Caller>& caller) {
    self_ = shared_from_this();
    Post([this, caller] {
      if (!caller.ok()) return End(caller.status());
      caller_ = *caller;
      front_.audit(caller_, "logs", job_);
      Next();
    });
  }

  void OnWriteDone(bool ok) override {
    stalled_.Went();
    Post([this, ok] {
      if (!ok) return End(Cancelled("the reader has gone"));
      records_.pop_front();
      Next();
    });
  }
  void OnCancel() override {
    Post([this] { cancelled_ = true; });
  }
  void OnDone() override {
    Post([this] { self_.reset(); });
  }

 private:
  template <class Function>
  void Post(Function function) {
    front_.strand.Post(
        [self = shared_from_this(), function = std::move(function)]() mutable { function(); });
  }

  void End(const Status& status) {
    if (!std::exchange(finished_, true)) Finish(services::ToGrpc(status));
  }

  void Next() {
    if (finished_) return;
    if (cancelled_) return End(Cancelled("the reader has gone"));
    if (front_.core == nullptr) return End(Front::Closing());
    if (const Status may = front_.still_allowed(caller_); !may.ok()) return End(may);
    if (records_.empty()) return Fill();
    Write();
  }

  void Write() {
    if (!records_.empty()) {
      stalled_.Waits();
      return StartWrite(&records_.front());
    }
    if (!at_end_) return Post([this] { Next(); });
    if (!follow_ || polls_after_end_ >= kPollsAfterEnd) return End(Ok());
    (void)front_.strand.RunAfter(kPoll, [self = shared_from_this()] { self->Next(); });
  }

  void Fill() {
    const Result<Job*> job = front_.core->Find(job_);
    if (!job.ok()) return End(job.status());
    if ((*job)->ended()) ++polls_after_end_;
    front_.core->ReadLogs(job_, query_, [self = shared_from_this()](auto page) {
      if (!self->finished_) self->Take(std::move(page));
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

  Front& front_;
  const std::string job_;
  const bool follow_;
  StalledCall stalled_;
  services::Caller caller_;
  LogStore::Query query_;
  std::shared_ptr<LogStream> self_;
  std::deque<v1::LogRecord> records_;
  bool at_end_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
  int polls_after_end_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::LogRecord>* StreamLogs(Front& front,
                                                    grpc::CallbackServerContext* context,
                                                    const v1::ReadLogsRequest& request) {
  auto stream = std::make_shared<LogStream>(front, context, request);
  stream->Begin(front.authorize(*context, tls::Role::kViewer));
  return stream.get();
}

}  // namespace muster::coordinator
