// Fetches over real gRPC on loopback, from a coordinator that this test plays, in time that stands
// still.
#include "services/worker/file_fetch.h"

#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include "muster/v1/cluster.grpc.pb.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

// A FakeScheduler for several threads.
class SharedTime : public Scheduler {
 public:
  TimePoint Now() const override {
    const std::lock_guard lock(mutex_);
    return time_.Now();
  }
  std::chrono::system_clock::time_point WallNow() const override {
    const std::lock_guard lock(mutex_);
    return time_.WallNow();
  }
  void Post(Task task) override { (void)RunAfter(Millis(0), std::move(task)); }
  TimerId RunAfter(Millis delay, Task task) override {
    const std::lock_guard lock(mutex_);
    ++timers_;
    changed_.notify_all();
    return time_.RunAfter(delay, std::move(task));
  }
  bool Cancel(TimerId timer) override {
    const std::lock_guard lock(mutex_);
    const bool there = time_.Cancel(timer);
    timers_ -= there ? 1 : 0;
    return there;
  }
  void Advance(Millis by) {
    const std::lock_guard lock(mutex_);
    time_.Advance(by);
  }
  // Until a timer runs.
  bool AwaitTimer() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return timers_ > 0; });
  }

 private:
  mutable std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  FakeScheduler time_;
  int timers_ = 0;
};

// Sends what it is given, until End().
class Files : public v1::ClusterService::Service {
 public:
  grpc::Status FetchFile(grpc::ServerContext*, const v1::FetchFileRequest*,
                         grpc::ServerWriter<v1::FileChunk>* writer) override {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !pieces_.empty(); });
      if (pieces_.empty()) return grpc::Status::OK;
      const v1::FileChunk piece = std::move(pieces_.front());
      pieces_.pop_front();
      lock.unlock();
      writer->Write(piece);
    }
  }
  void Send(std::size_t bytes, std::uint64_t total = 0) {
    v1::FileChunk piece;
    piece.set_data(std::string(bytes, 'x'));
    piece.set_total_bytes(total);
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    changed_.notify_all();
  }
  void End() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::FileChunk> pieces_;
  bool ended_ = false;
};

Token OfThisTest() {
  const testing::TempFolder dir;
  const std::string path = dir / "token";
  std::ofstream(path) << "0123456789abcdef0123\n";
  ::chmod(path.c_str(), 0600);
  return Token::Read(path).value();
}

struct FetchFixture {
  FetchFixture() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    // As our own servers: clients ask often whether it is there.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
    builder.RegisterService(&files);
    server = builder.BuildAndStart();
    REQUIRE(server != nullptr);
    fetch.emplace(
        ControlPlane{.coordinator = "127.0.0.1:" + std::to_string(port), .token = OfThisTest()},
        time);
  }
  ~FetchFixture() {
    files.End();
    if (fetching.joinable()) fetching.join();
    server->Shutdown();
  }
  void Begin() {
    fetching = std::jthread([this] {
      const Status status = fetch->Fetch("abc", [this](const std::string& bytes) {
        const std::lock_guard lock(mutex);
        got += bytes.size();
        changed.notify_all();
        return on_bytes ? on_bytes() : Ok();
      });
      const std::lock_guard lock(mutex);
      ended = status;
      changed.notify_all();
    });
  }
  // Until so much has come, and the next is waited for.
  bool Came(std::size_t bytes) {
    std::unique_lock lock(mutex);
    const bool came =
        changed.wait_for(lock, std::chrono::seconds(20), [&] { return got >= bytes; });
    lock.unlock();
    return came && time.AwaitTimer();
  }
  Status End() {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::seconds(20), [&] { return ended.has_value(); })) {
      return Unknown("it has not ended");
    }
    return *ended;
  }

  int port = 0;
  Files files;
  std::unique_ptr<grpc::Server> server;
  SharedTime time;
  std::optional<FileFetch> fetch;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t got = 0;
  std::optional<Status> ended;
  std::function<Status()> on_bytes;
  std::jthread fetching;
};

TEST_CASE_METHOD(FetchFixture, "a fetch may take as long as it moves", "[services][unit]") {
  Begin();
  for (std::size_t i = 1; i <= 20; ++i) {
    files.Send(1'000);
    REQUIRE(Came(i * 1'000));
    time.Advance(Millis(59'000));
    CHECK(fetch->moved() == i * 1'000);
  }
  files.End();

  CHECK(Message(End()) == "");
  CHECK(got == 20'000);
}

TEST_CASE_METHOD(FetchFixture,
                 "a fetch in which nothing moves is ended, and says how far it had come",
                 "[services][unit]") {
  Begin();
  files.Send(1 << 20, 5 << 20);
  REQUIRE(Came(1 << 20));
  time.Advance(Millis(59'999));
  CHECK_FALSE(ended);
  time.Advance(Millis(1));

  CHECK(End().code() == StatusCode::kUnavailable);
  CHECK(Message(End()) ==
        "fetch from the coordinator: nothing moved for 60 s, after 1.0 MiB of 5.0 MiB");
}

TEST_CASE_METHOD(FetchFixture,
                 "a daemon that ends cuts its fetches off at once, and begins no other",
                 "[services][unit]") {
  Begin();
  files.Send(1'000);
  REQUIRE(Came(1'000));
  fetch->Close();

  CHECK(End().code() == StatusCode::kCancelled);
  CHECK(Message(End()) == "fetch from the coordinator: this daemon ends");
  CHECK(fetch->Fetch("abc", [](const auto&) { return Ok(); }).code() == StatusCode::kCancelled);
}

TEST_CASE_METHOD(FetchFixture, "a fetch whose file cannot be written is ended with that error",
                 "[services][unit]") {
  on_bytes = [this] {
    time.Advance(Millis(3'600'000));  // a disk that takes its time is not the coordinator's
    return got < 2'000 ? Ok() : ResourceExhausted("no space left on device");
  };
  Begin();
  files.Send(1'000);
  REQUIRE(Came(1'000));
  files.Send(1'000);

  CHECK(Message(End()) == "no space left on device");
}

}  // namespace
}  // namespace muster::services
