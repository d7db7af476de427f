#include "services/common/attach_client.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::services {
namespace {

// A coordinator whose every move the test makes.
struct FakeCoordinator {
  struct Stream {
    AttachEvents events;
    std::vector<v1::DaemonMessage> written;
    bool open = true;
    bool finished = false;
    std::size_t pending = 0;

    void Welcome(std::uint64_t epoch, std::uint64_t session = 1) const {
      v1::CoordinatorMessage message;
      message.mutable_welcome()->set_epoch(epoch);
      message.mutable_welcome()->set_session(session);
      message.mutable_welcome()->set_heartbeat_ms(250);
      message.mutable_welcome()->set_lease_ms(3'000);
      events.on_message(message);
    }
    void Ack(std::uint64_t sequence) const {
      v1::CoordinatorMessage message;
      message.mutable_ack()->set_sequence(sequence);
      events.on_message(message);
    }
    void Command(std::uint64_t id) const {
      v1::CoordinatorMessage message;
      message.mutable_command()->set_id(id);
      events.on_message(message);
    }
    std::size_t Count(v1::DaemonMessage::BodyCase body) const {
      std::size_t count = 0;
      for (const auto& message : written) count += message.body_case() == body ? 1 : 0;
      return count;
    }
  };

  class Handle final : public AttachStream {
   public:
    explicit Handle(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
    ~Handle() override { stream_->open = false; }
    void Write(v1::DaemonMessage message) override { stream_->written.push_back(message); }
    std::size_t Pending() const override { return stream_->pending; }
    void FinishWrites() override { stream_->finished = true; }

   private:
    std::shared_ptr<Stream> stream_;
  };

  std::vector<std::shared_ptr<Stream>> streams;

  OpenAttachStream Opener() {
    return [this](AttachEvents events) {
      streams.push_back(std::make_shared<Stream>());
      streams.back()->events = std::move(events);
      return std::make_unique<Handle>(streams.back());
    };
  }
};

struct FakeDaemon : AttachHandler {
  int attached = 0;
  std::vector<Status> detached;
  std::vector<Status> refused;
  std::vector<std::pair<StreamId, std::uint64_t>> commands;

  void OnAttached(const v1::Welcome&) override { ++attached; }
  void OnDetached(const Status& why) override { detached.push_back(why); }
  void OnCommand(StreamId stream, const v1::Command& command) override {
    commands.emplace_back(stream, command.id());
  }
  void FillHeartbeat(v1::Heartbeat& heartbeat) override { heartbeat.set_closures_done(7); }
  void OnRefused(const Status& why) override { refused.push_back(why); }
};

struct Fixture {
  FakeScheduler scheduler;
  FakeCoordinator coordinator;
  FakeDaemon daemon;
  AttachClient client{{.coordinator = "c:1", .registration = Registration(), .seed = 1},
                      scheduler,
                      daemon,
                      coordinator.Opener()};

  static v1::Register Registration() {
    v1::Register registration;
    registration.mutable_task()->set_type("ps");
    registration.set_boot_id("boot");
    return registration;
  }
  FakeCoordinator::Stream& last() { return *coordinator.streams.back(); }
  void Attach(std::uint64_t epoch = 1) {
    client.Start();
    last().Welcome(epoch);
    scheduler.RunReady();
    REQUIRE(client.attached());
  }
};

using Body = v1::DaemonMessage::BodyCase;

TEST_CASE_METHOD(Fixture, "a daemon registers first and heartbeats once it is welcome",
                 "[services][unit]") {
  client.Start();
  REQUIRE(last().written.size() == 1);
  CHECK(last().written[0].register_().boot_id() == "boot");

  last().Welcome(5);
  scheduler.Advance(Millis(1'000));

  CHECK(daemon.attached == 1);
  CHECK(last().Count(Body::kHeartbeat) == 5);  // at once, then every 250 ms
  CHECK(last().written[1].heartbeat().sequence() == 1);
  CHECK(last().written[1].heartbeat().closures_done() == 7);
}

TEST_CASE_METHOD(Fixture, "acknowledged heartbeats keep the stream beyond the lease",
                 "[services][unit]") {
  Attach();

  for (std::uint64_t sequence = 1; sequence <= 40; ++sequence) {
    last().Ack(sequence);
    scheduler.Advance(Millis(250));
  }

  CHECK(daemon.detached.empty());
  CHECK(coordinator.streams.size() == 1);
}

TEST_CASE_METHOD(Fixture, "without acknowledgements the stream is given up before the lease ends",
                 "[services][unit]") {
  Attach();

  scheduler.Advance(Millis(2'500));
  CHECK(daemon.detached.empty());
  scheduler.Advance(Millis(490));

  REQUIRE(daemon.detached.size() == 1);
  CHECK(Message(daemon.detached[0]).find("lease is 3000 ms") != std::string::npos);
  CHECK_FALSE(coordinator.streams[0]->open);
  CHECK(coordinator.streams.size() == 2);  // and a new one was opened
}

TEST_CASE_METHOD(Fixture, "an acknowledgement counts from when its heartbeat was sent",
                 "[services][unit]") {
  Attach();
  scheduler.Advance(Millis(2'600));

  last().Ack(1);  // sent at the start: proves nothing of the time since
  scheduler.Advance(Millis(390));

  CHECK(daemon.detached.size() == 1);
}

TEST_CASE_METHOD(Fixture,
                 "a welcome that took longer than a lease leaves time for the first heartbeat",
                 "[services][unit]") {
  client.Start();
  scheduler.Advance(Millis(4'000));
  last().Welcome(1);
  scheduler.RunReady();
  scheduler.Advance(Millis(1'000));
  REQUIRE(daemon.detached.empty());

  SECTION("which is acknowledged") {
    for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
      last().Ack(sequence);
      scheduler.Advance(Millis(250));
    }
    CHECK(daemon.detached.empty());
    CHECK(coordinator.streams.size() == 1);
  }
  SECTION("and no more of it than the coordinator waits") {
    scheduler.Advance(Millis(1'990));
    CHECK(daemon.detached.size() == 1);
  }
}

TEST_CASE_METHOD(Fixture, "a lost stream is opened again, with growing pauses",
                 "[services][unit]") {
  Attach();
  last().events.on_closed(Unavailable("reset"));
  scheduler.Advance(Millis(50));
  CHECK(daemon.detached.size() == 1);
  CHECK(coordinator.streams.size() == 2);

  for (int i = 0; i < 10; ++i) {
    last().events.on_closed(Unavailable("refused"));
    scheduler.Advance(Millis(2'000));
  }
  const std::size_t opened = coordinator.streams.size();
  last().events.on_closed(Unavailable("refused"));
  scheduler.Advance(Millis(900));
  CHECK(coordinator.streams.size() == opened);
  scheduler.Advance(Millis(1'100));
  CHECK(coordinator.streams.size() == opened + 1);

  last().Welcome(1);
  scheduler.RunReady();
  CHECK(daemon.attached == 2);
  CHECK(daemon.detached.size() == 1);
}

TEST_CASE_METHOD(Fixture, "a registration without an answer is tried again", "[services][unit]") {
  client.Start();

  scheduler.Advance(Millis(5'100));

  CHECK(coordinator.streams.size() == 2);
  CHECK_FALSE(coordinator.streams[0]->open);
}

TEST_CASE_METHOD(Fixture, "a coordinator with a lower epoch is not obeyed", "[services][unit]") {
  Attach(5);
  last().events.on_closed(Unavailable("restarted"));
  scheduler.Advance(Millis(50));
  CHECK(last().written[0].register_().epoch() == 5);

  last().Welcome(4);
  last().Command(1);
  scheduler.RunReady();

  CHECK(daemon.attached == 1);
  CHECK(daemon.commands.empty());
  scheduler.Advance(Millis(2'000));
  last().Welcome(6);
  scheduler.RunReady();
  CHECK(daemon.attached == 2);
}

TEST_CASE_METHOD(Fixture, "events of an abandoned stream are not heard", "[services][unit]") {
  Attach();
  const auto first = coordinator.streams[0];
  first->events.on_closed(Unavailable("reset"));
  scheduler.Advance(Millis(50));
  last().Welcome(1);
  scheduler.RunReady();

  first->Command(9);
  first->events.on_closed(Unavailable("late"));
  scheduler.RunReady();

  CHECK(daemon.commands.empty());
  CHECK(client.attached());
}

TEST_CASE_METHOD(Fixture, "a result goes to the stream that its command came from only",
                 "[services][unit]") {
  Attach();
  last().Command(3);
  scheduler.RunReady();
  REQUIRE(daemon.commands.size() == 1);
  v1::CommandResult result;
  result.set_command_id(3);
  client.Reply(daemon.commands[0].first, result);
  CHECK(last().Count(Body::kResult) == 1);

  last().events.on_closed(Unavailable("restarted"));
  scheduler.Advance(Millis(50));
  last().Welcome(2);
  scheduler.RunReady();
  client.Reply(daemon.commands[0].first, result);

  CHECK(last().Count(Body::kResult) == 0);
}

TEST_CASE_METHOD(Fixture, "what is sent while detached arrives later, within a bound",
                 "[services][unit]") {
  client.Start();
  v1::DaemonMessage event;
  event.mutable_executor()->set_pid(1);
  client.Send(event);
  v1::DaemonMessage line;
  line.mutable_log()->set_job_id("j");
  for (int i = 0; i < 2'000; ++i) client.Send(line);

  last().Welcome(1);
  scheduler.RunReady();

  CHECK(last().Count(Body::kExecutor) == 1);
  CHECK(last().Count(Body::kLog) == 1'023);
}

TEST_CASE_METHOD(Fixture, "log lines do not pile up in a slow stream", "[services][unit]") {
  Attach();
  last().pending = 2'000;
  v1::DaemonMessage line;
  line.mutable_log()->set_job_id("j");
  v1::DaemonMessage event;
  event.mutable_executor()->set_pid(1);

  client.Send(line);
  client.Send(event);

  CHECK(last().Count(Body::kLog) == 0);
  CHECK(last().Count(Body::kExecutor) == 1);
}

TEST_CASE_METHOD(Fixture, "a wrong token is final", "[services][unit]") {
  client.Start();
  last().events.on_closed(Unauthenticated("wrong token"));
  scheduler.Advance(Millis(10'000));

  REQUIRE(daemon.refused.size() == 1);
  CHECK(Message(daemon.refused[0]).find("c:1") != std::string::npos);
  CHECK(coordinator.streams.size() == 1);
}

TEST_CASE_METHOD(Fixture, "closing sends what is queued and does not come back",
                 "[services][unit]") {
  Attach();
  bool done = false;
  client.Leave("SIGTERM", Millis(5'000), [] {});
  client.Close(Millis(1'000), [&done] { done = true; });
  CHECK(last().Count(Body::kDraining) == 1);
  CHECK(last().finished);
  CHECK_FALSE(done);

  last().events.on_closed(Ok());
  scheduler.Advance(Millis(5'000));

  CHECK(done);
  CHECK(coordinator.streams.size() == 1);
}

TEST_CASE_METHOD(Fixture, "closing ends at its limit when the coordinator does not answer",
                 "[services][unit]") {
  Attach();
  int done = 0;
  client.Close(Millis(1'000), [&done] { ++done; });

  scheduler.Advance(Millis(5'000));

  CHECK(done == 1);
}

TEST_CASE_METHOD(Fixture, "a daemon that drains says so again after it reconnects",
                 "[services][unit]") {
  Attach();
  client.Leave("SIGTERM", Millis(5'000), [] {});
  last().events.on_closed(Unavailable("reset"));
  scheduler.Advance(Millis(50));
  last().Welcome(1);
  scheduler.RunReady();

  CHECK(last().Count(Body::kDraining) == 1);
}

TEST_CASE_METHOD(Fixture, "a daemon that is asked to end works until it is released",
                 "[services][unit]") {
  Attach();
  int left = 0;
  client.Leave("SIGTERM", Millis(60'000), [&left] { ++left; });
  CHECK(last().Count(Body::kDraining) == 1);
  scheduler.Advance(Millis(1'000));
  CHECK(left == 0);

  v1::CoordinatorMessage release;
  (void)release.mutable_release();
  last().events.on_message(release);
  scheduler.Advance(Millis(100'000));
  CHECK(left == 1);
}

TEST_CASE_METHOD(Fixture, "a daemon that is asked to end waits for nobody who is not there",
                 "[services][unit]") {
  int left = 0;
  SECTION("there was no coordinator") {
    client.Start();
    client.Leave("SIGTERM", Millis(60'000), [&left] { ++left; });
  }
  SECTION("the coordinator went away") {
    Attach();
    client.Leave("SIGTERM", Millis(60'000), [&left] { ++left; });
    CHECK(left == 0);
    last().events.on_closed(Unavailable("reset"));
    scheduler.RunReady();
  }
  SECTION("the coordinator does not answer") {
    Attach();
    client.Leave("SIGTERM", Millis(300), [&left] { ++left; });
    scheduler.Advance(Millis(300));
  }
  CHECK(left == 1);
}

}  // namespace
}  // namespace muster::services
