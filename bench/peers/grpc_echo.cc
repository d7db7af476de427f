// muster-grpc-echo [--window-ms 100] [--pin]: what gRPC needs, alone and with its defaults, for
// what Muster does over links of its own: calls, small messages and tensors between processes of
// this host. Starts its servers itself; prints one JSON object in the manner of `muster-bench ps`.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/pin.h"
#include "bench/scratch.h"
#include "bench/self_process.h"
#include "common/base/status.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kServerRole = "grpc-echo-server";
constexpr const char* kPinVariable = "MUSTER_BENCH_PIN";
constexpr const char* kUnary = "/muster.Echo/Unary";    // a message for a message
constexpr const char* kStream = "/muster.Echo/Stream";  // as many as come
constexpr const char* kPull = "/muster.Echo/Pull";      // for a PullRequest, what it asks for
constexpr int kServers = 2;
constexpr int kOutstanding = 64;  // calls at each server
constexpr int kCalls = 2000;      // of a measured operation, at each server
constexpr int kMessages = 5000;
constexpr std::size_t kSmallBytes = 64;
constexpr std::size_t kMostBytes = 1 << 20;
constexpr std::size_t kStreamedBytes = 16 << 20;
struct Size {
  const char* name;
  std::size_t bytes;
};
constexpr Size kPulled[] = {{"4 KB", 4 << 10}, {"64 KB", 64 << 10}, {"1 MB", kMostBytes}};
constexpr Size kStreamed[] = {{"64 KB", 64 << 10}, {"1 MB", kMostBytes}};

constexpr const char* kMethod =
    "One client thread in this process, servers of one thread each in others, generic calls by "
    "completion queues, gRPC's defaults, no TLS, no protobuf. Each operation runs for a window of "
    "time in each of 5 rounds, all taking turns; a round's figure is its median operation; printed "
    "are median, least and most of the rounds. unary: one call at a time, without a byte there and "
    "back. unary to 2 servers: 64 calls outstanding at each. messages to 2 servers: 64 bytes, each "
    "sent back, on one stream per server, as fast as both take them. pull: 16 bytes for a tensor "
    "on "
    "a stream, one at a time, copied into the client's warm memory. stream: the same of tensors "
    "that "
    "the server sends one after another.";

struct PullRequest {
  std::uint64_t bytes = 0;
  std::uint64_t messages = 0;
};

grpc::ByteBuffer Message(std::span<const std::byte> bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return {&slice, 1};
}

// The bytes of a message, one after another.
Status CopyInto(const grpc::ByteBuffer& message, std::span<std::byte> into) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return Internal("a message without bytes");
  for (const grpc::Slice& slice : slices) {
    if (slice.size() > into.size()) return Internal("a message that is too long");
    std::memcpy(into.data(), slice.begin(), slice.size());
    into = into.subspan(slice.size());
  }
  return into.empty() ? Ok() : Internal("a message that is too short by {} bytes", into.size());
}

// --- The server.

struct Service {
  grpc::AsyncGenericService calls;
  std::unique_ptr<grpc::ServerCompletionQueue> events;
  std::vector<std::byte> tensor = std::vector<std::byte>(kMostBytes, std::byte{1});
};

// One call, from waiting for it to its end, which deletes it. It has one operation outstanding,
// whose tag it is. Threading: on the server's one thread.
class ServedCall {
 public:
  explicit ServedCall(Service& service) : service_(service) {
    service.calls.RequestCall(&context_, &stream_, service.events.get(), service.events.get(),
                              this);
  }

  // Its operation has ended.
  void Proceed(bool ok) {
    if (next_ == Next::kEnd || (next_ == Next::kTake && !ok)) {
      delete this;
    } else if (!ok) {  // the client sends nothing any more, or is gone
      Finish();
    } else if (next_ == Next::kTake) {
      new ServedCall(service_);
      Read();
    } else if (next_ == Next::kAnswer) {
      Answer();
    } else {
      WriteOrRead();
    }
  }

 private:
  enum class Next : std::uint8_t { kTake, kAnswer, kGoOn, kEnd };

  void Read() {
    next_ = Next::kAnswer;
    stream_.Read(&message_, this);
  }

  void Answer() {
    if (context_.method() == kUnary) {
      next_ = Next::kEnd;
      stream_.WriteAndFinish(message_, grpc::WriteOptions(), grpc::Status::OK, this);
      return;
    }
    left_ = 1;
    PullRequest pull;
    if (context_.method() == kPull) {
      if (!CopyInto(message_, std::as_writable_bytes(std::span(&pull, 1))).ok()) return Finish();
      left_ = pull.messages;
      // Lent: gRPC sends from where it lies.
      const grpc::Slice slice(service_.tensor.data(), std::min(pull.bytes, kMostBytes),
                              grpc::Slice::STATIC_SLICE);
      message_ = grpc::ByteBuffer(&slice, 1);
    }
    WriteOrRead();
  }

  void WriteOrRead() {
    if (left_ == 0) return Read();
    --left_;
    next_ = Next::kGoOn;
    stream_.Write(message_, this);
  }

  void Finish() {
    next_ = Next::kEnd;
    stream_.Finish(grpc::Status::OK, this);
  }

  Service& service_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_{&context_};
  grpc::ByteBuffer message_;
  Next next_ = Next::kTake;
  std::uint64_t left_ = 0;
};

// Says its TCP port; serves until its standard input ends.
int Serve(const std::string& unix_path) {
  if (std::getenv(kPinVariable) != nullptr && !PinTo(1).ok()) return 1;
  Service service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + unix_path, grpc::InsecureServerCredentials());
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterAsyncGenericService(&service.calls);
  service.events = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 1;
  for (int i = 0; i < kOutstanding; ++i) new ServedCall(service);
  std::thread([&service] {
    void* tag = nullptr;
    for (bool ok = false; service.events->Next(&tag, &ok);) {
      static_cast<ServedCall*>(tag)->Proceed(ok);
    }
  }).detach();
  std::printf("%d\n", port);
  std::fflush(stdout);
  for (char c = 0; ::read(STDIN_FILENO, &c, 1) > 0;) {
  }
  // Its clients are gone and it has nothing to keep.
  std::_Exit(0);
}

// --- The client.

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return Ok();
  return Unavailable("gRPC's error {}: {}", static_cast<int>(status.error_code()),
                     status.error_message());
}

class UnaryCall {
 public:
  UnaryCall(grpc::GenericStub& stub, const grpc::ByteBuffer& request, grpc::CompletionQueue& events)
      : call_(stub.PrepareUnaryCall(&context_, kUnary, request, &events)) {
    call_->StartCall();
    call_->Finish(&reply_, &status_, this);
  }
  Status status() const { return FromGrpc(status_); }

 private:
  grpc::ClientContext context_;
  grpc::ByteBuffer reply_;
  grpc::Status status_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call_;
};

// A stream with at most one read and one write outstanding, whose tags are its members. Without
// Finish(): when it is destroyed gRPC cancels it.
class Stream {
 public:
  struct Event {
    Stream* stream = nullptr;
    bool is_read = false;
  };

  Stream(grpc::GenericStub& stub, const char* method, grpc::CompletionQueue& events)
      : call_(stub.PrepareCall(&context_, method, &events)) {
    call_->StartCall(&written_);
  }

  void Read() { call_->Read(&got, &read_); }
  void Write(const grpc::ByteBuffer& message, const grpc::WriteOptions& options = {}) {
    call_->Write(message, options, &written_);
  }

  grpc::ByteBuffer got;
  // What is left of the present operation.
  int to_write = 0;
  int to_read = 0;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  Event written_{this, false};
  Event read_{this, true};
};

// Servers by one kind of link. Threading: one thread. Between two operations nothing is
// outstanding.
class Client {
 public:
  static Result<std::unique_ptr<Client>> Connect(const std::vector<std::string>& addresses) {
    std::unique_ptr<Client> client(new Client);
    for (const std::string& address : addresses) {
      auto& stub = client->stubs_.emplace_back(std::make_unique<grpc::GenericStub>(
          grpc::CreateChannel(address, grpc::InsecureChannelCredentials())));
      MUSTER_TRY_ASSIGN(client->echoes_.emplace_back(), client->Open(*stub, kStream));
    }
    MUSTER_TRY_ASSIGN(client->pull_, client->Open(*client->stubs_[0], kPull));
    return client;
  }

  Status OneCall() {
    const UnaryCall call(*stubs_[0], nothing_, events_);
    MUSTER_TRY(Next<UnaryCall>().status());
    return call.status();
  }

  Status ManyCalls() {
    std::vector<int> left(stubs_.size(), kCalls);
    struct Slot {
      std::size_t server;
      std::unique_ptr<UnaryCall> call;
    };
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < stubs_.size() * kOutstanding; ++i) {
      slots.push_back({i % stubs_.size(), nullptr});
    }
    const auto start = [&](Slot& slot) {
      if (left[slot.server] == 0) return false;
      --left[slot.server];
      slot.call = std::make_unique<UnaryCall>(*stubs_[slot.server], nothing_, events_);
      return true;
    };
    std::size_t running = 0;
    for (Slot& slot : slots) running += start(slot) ? 1 : 0;
    while (running > 0) {
      MUSTER_TRY_ASSIGN(UnaryCall* const ended, Next<UnaryCall>());
      Slot& slot = *std::ranges::find_if(
          slots, [ended](const Slot& each) { return each.call.get() == ended; });
      MUSTER_TRY(ended->status());
      if (!start(slot)) --running;
    }
    return Ok();
  }

  Status ManyMessages() {
    for (const auto& stream : echoes_) {
      stream->to_write = kMessages - 1;
      stream->to_read = kMessages - 1;
      stream->Write(small_);
      stream->Read();
    }
    for (std::size_t open = 2 * echoes_.size(); open > 0;) {
      MUSTER_TRY_ASSIGN(const Stream::Event* const event, Next<Stream::Event>());
      Stream& stream = *event->stream;
      if ((event->is_read ? stream.to_read : stream.to_write)-- == 0) {
        --open;
      } else if (event->is_read) {
        stream.Read();
      } else {
        // Another one follows, so that gRPC may send both at once.
        stream.Write(small_, stream.to_write > 0 ? grpc::WriteOptions().set_buffer_hint()
                                                 : grpc::WriteOptions());
      }
    }
    return Ok();
  }

  Status Pull(std::size_t bytes, std::size_t messages) {
    const PullRequest request{.bytes = bytes, .messages = messages};
    pull_->Write(Message(std::as_bytes(std::span(&request, 1))));
    pull_->Read();
    for (std::size_t left = messages + 1; left > 0; --left) {  // the write, too
      MUSTER_TRY_ASSIGN(const Stream::Event* const event, Next<Stream::Event>());
      if (!event->is_read) continue;
      MUSTER_TRY(CopyInto(pull_->got, std::span(memory_).first(bytes)));
      if (--messages > 0) pull_->Read();
    }
    return Ok();
  }

 private:
  Client() = default;

  // The tag of the next operation that ends.
  template <typename Tag>
  Result<Tag*> Next() {
    void* tag = nullptr;
    bool ok = false;
    if (!events_.Next(&tag, &ok) || !ok) return Unavailable("a server ended the call");
    return static_cast<Tag*>(tag);
  }

  Result<std::unique_ptr<Stream>> Open(grpc::GenericStub& stub, const char* method) {
    auto stream = std::make_unique<Stream>(stub, method, events_);
    MUSTER_TRY(Next<Stream::Event>().status());
    return stream;
  }

  grpc::CompletionQueue events_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<Stream>> echoes_;
  std::unique_ptr<Stream> pull_;
  const grpc::ByteBuffer nothing_ = Message({});
  const grpc::ByteBuffer small_ = Message(std::vector<std::byte>(kSmallBytes));
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMostBytes);
};

class Report {
 public:
  explicit Report(const Measurements& measured) : measured_(measured) {}

  void Latency(const std::string& name) {
    const Spread seconds = measured_.Seconds(name);
    Add(name, "us", seconds.median * 1e6, seconds.least * 1e6, seconds.most * 1e6);
  }
  void Rate(const std::string& name, const std::string& unit, double amount) {
    const Spread seconds = measured_.Seconds(name);
    Add(name, unit, amount / seconds.median, amount / seconds.most, amount / seconds.least);
  }
  Json figures() && { return std::move(figures_); }

 private:
  void Add(const std::string& name, const std::string& unit, double median, double least,
           double most) {
    const auto round = [](double value) { return std::round(value * 1000) / 1000; };
    figures_.push_back({{"name", name},
                        {"unit", unit},
                        {"median", round(median)},
                        {"least", round(least)},
                        {"most", round(most)}});
  }

  const Measurements& measured_;
  Json figures_ = Json::array();
};

void AddClient(Measurements& all, Client& client, const std::string& link) {
  all.Add(link + " unary", [&client] { return client.OneCall(); });
  all.Add(link + " unary to 2 servers", [&client] { return client.ManyCalls(); });
  all.Add(link + " messages to 2 servers", [&client] { return client.ManyMessages(); });
  for (const Size& size : kPulled) {
    all.Add(link + " pull " + size.name, [&client, size] { return client.Pull(size.bytes, 1); });
  }
  for (const Size& size : kStreamed) {
    all.Add(link + " stream " + size.name,
            [&client, size] { return client.Pull(size.bytes, kStreamedBytes / size.bytes); });
  }
}

void ReportClient(Report& report, const std::string& link) {
  report.Latency(link + " unary");
  report.Rate(link + " unary to 2 servers", "k calls/s", kServers * kCalls / 1e3);
  report.Rate(link + " messages to 2 servers", "k messages/s", kServers * kMessages / 1e3);
  report.Latency(link + " pull 4 KB");
  for (const Size& size : kPulled) {
    report.Rate(link + " pull " + size.name, "GB/s", static_cast<double>(size.bytes) / 1e9);
  }
  for (const Size& size : kStreamed) {
    report.Rate(link + " stream " + size.name, "GB/s", kStreamedBytes / 1e9);
  }
}

Result<Json> Measure(int window_ms, bool pin) {
  MUSTER_TRY_ASSIGN(const auto scratch,
                    Scratch::Make(std::filesystem::temp_directory_path().string()));

  std::vector<std::unique_ptr<SelfProcess>> servers;
  std::vector<std::string> unix_addresses;
  std::vector<std::string> tcp_addresses;
  if (pin) (void)::setenv(kPinVariable, "1", 1);
  for (int i = 0; i < kServers; ++i) {
    const std::string path = fmt::format("{}/{}", scratch->path(), i);
    MUSTER_TRY_ASSIGN(auto server, SelfProcess::Start(kServerRole, path));
    MUSTER_TRY_ASSIGN(const std::string port, server->ReadLine());
    unix_addresses.push_back("unix:" + path);
    tcp_addresses.push_back("127.0.0.1:" + port);
    servers.push_back(std::move(server));
  }
  if (pin) MUSTER_TRY(PinTo(0));

  MUSTER_TRY_ASSIGN(const auto over_unix, Client::Connect(unix_addresses));
  MUSTER_TRY_ASSIGN(const auto over_tcp, Client::Connect(tcp_addresses));
  Measurements all;
  AddClient(all, *over_unix, "unix");
  AddClient(all, *over_tcp, "tcp");
  MUSTER_TRY(all.Run(std::chrono::milliseconds(window_ms)));
  Report report(all);
  ReportClient(report, "unix");
  ReportClient(report, "tcp");
  return Json{{"benchmark", "grpc_echo"},
              {"grpc", grpc::Version()},
              {"cores", std::thread::hardware_concurrency()},
              {"pinned", pin},
              {"rounds", kRounds},
              {"window_ms", window_ms},
              {"figures", std::move(report).figures()},
              {"method", kMethod}};
}

int Run(int argc, char** argv) {
  int window_ms = 100;
  bool pin = false;
  CLI::App app("gRPC alone: calls, messages and tensors between processes of this host");
  app.add_option("--window-ms", window_ms, "time for one operation in one round")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_flag("--pin", pin, "client and servers keep to a processor each, the servers to one");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Result<Json> result = Measure(window_ms, pin);
  if (!result.ok()) {
    std::fprintf(stderr, "muster-grpc-echo: %s\n", ToString(result.status()).c_str());
    return 1;
  }
  std::printf("%s\n", result->dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == muster::bench::kServerRole) {
    return muster::bench::Serve(argv[2]);
  }
  return muster::bench::Run(argc, argv);
}
