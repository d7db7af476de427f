#include "cli/up/up.h"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "cli/cluster_finder.h"
#include "cli/exit_code.h"
#include "cli/format.h"
#include "cli/job_api.h"
#include "cli/printable.h"
#include "cli/registry.h"
#include "cli/up/daemons.h"
#include "cli/up/state_folder.h"
#include "common/base/private_directory.h"
#include "common/base/task_name.h"
#include "common/base/whole_file.h"
#include "common/base/words.h"
#include "common/messages/task_proto.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kListenLimit{30};
constexpr seconds kRegisterLimit{60};
// A daemon that keeps its own limit needs a little more to say goodbye.
constexpr milliseconds kDrainSlack{5'000};
constexpr milliseconds kTick{100};
constexpr milliseconds kFirstTick{20};

class LocalCluster {
 public:
  LocalCluster(const Options& options, const Terminal& terminal, const Environment& environment,
               const Clock& clock, Interrupt& interrupt)
      : options_(options),
        terminal_(terminal),
        environment_(environment),
        clock_(clock),
        interrupt_(interrupt),
        daemons_({.restart = options.restart,
                  .grace = options.drain_timeout + kDrainSlack,
                  .say = [this](const std::string& text) { Say(text); },
                  .on_death = [this](const std::string& task, int pid,
                                     const process::Exit& exit) { ReportDeath(task, pid, exit); },
                  .on_line = options.verbose ? PrintLine() : nullptr},
                 clock) {}
  ~LocalCluster() {
    if (lock_ >= 0) ::close(lock_);
  }

  Status Prepare();
  Status StartAll();
  void Serve();
  // `keep`: its logs tell why it did not start.
  bool Drain(bool keep);

 private:
  void Say(const std::string& text) { terminal_.err << "up: " + text + "\n" << std::flush; }
  std::function<void(const std::string&, const std::string&)> PrintLine() {
    return [this](const std::string& task, const std::string& line) {
      terminal_.err << fmt::format("{} | {}\n", task, Printable(line)) << std::flush;
    };
  }
  // The coordinator sees a broken connection; only the parent knows the signal.
  void ReportDeath(const std::string& task, int pid, const process::Exit& exit);
  std::string InState(const std::string& name) const { return state_ + "/" + name; }
  Status MakeToken();
  DaemonPlan Plan(const std::string& role, int index, const std::string& listen) const;
  Status StartCoordinator();
  // Waits for the port file or the end of the process.
  Result<std::string> AddressOf(const std::string& task, const std::string& port_file);
  Status WaitForTasks();
  Status DiedEarly(const std::string& task, const std::string& before) const;

  const Options& options_;
  const Terminal& terminal_;
  const Environment& environment_;
  const Clock& clock_;
  Interrupt& interrupt_;
  std::string runtime_;
  std::string state_;
  // The cluster as its other clients see it.
  Cluster Here() const { return {.address = address_, .token = token_, .tls = tls_}; }

  std::string token_;
  std::shared_ptr<tls::Context> tls_;  // null: in the clear
  std::string address_;
  // host:port of the coordinator's page: whoever has it open finds it there after a crash, too.
  std::string admin_;
  // What the coordinator says of it: with https:// where it speaks that.
  std::string page_;
  int lock_ = -1;
  Daemons daemons_;
  // Tells the coordinator of deaths, while the others are looked after: it may stand still itself.
  ThreadScheduler reports_;
};

Status LocalCluster::Prepare() {
  MUSTER_TRY_ASSIGN(tls_, FindTls(options_, environment_));
  const Result<std::string> runtime = RuntimeDirectory(environment_);
  if (!runtime.ok()) return OfFiles(runtime.status());
  runtime_ = *runtime;
  MUSTER_TRY_ASSIGN(state_, MakeStateFolder(options_.state_dir, runtime_));
  lock_ = ::open(InState("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) return OfFiles(FromErrno(errno, "open " + InState("lock")));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      // A file system without locks (ENOLCK) says so.
      return OfFiles(Annotate(FromErrno(errno, "lock " + InState("lock")),
                              "--state-dir must be on a disk of this host"));
    }
    return FailedPrecondition("another `muster up` works in {}; name another --state-dir", state_);
  }
  MUSTER_TRY(OfFiles(MakePrivateDirectory(InState("logs"))));
  return MakeToken();
}

// A state folder that is used again keeps its token.
Status LocalCluster::MakeToken() {
  const std::string path = InState("token");
  std::error_code unknown;
  if (!fs::exists(path, unknown)) {
    unsigned char bytes[32];
    if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
      return FromErrno(errno, "read random bytes");
    }
    std::string text;
    for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
    MUSTER_TRY(OfFiles(ReplaceFile(path, text + "\n", 0600)));
  }
  MUSTER_TRY_ASSIGN(token_, ReadToken(path));
  return Ok();
}

DaemonPlan LocalCluster::Plan(const std::string& role, int index, const std::string& listen) const {
  const bool coordinator = role == "coordinator";
  const std::string task = coordinator ? role : fmt::format("{}:{}", role, index);
  const std::string name = coordinator ? role : fmt::format("{}-{}", role, index);
  std::vector<std::string> argv{
      process::SiblingProgram("muster-" + (role == "evaluator" ? "worker" : role)),
      "--listen",
      listen,
      "--token-file",
      InState("token"),
      "--state-dir",
      InState(name),
      "--port-file",
      InState(name + ".port"),
      "--admin-port",
      coordinator && !admin_.empty() ? admin_.substr(admin_.rfind(':') + 1) : "0",
      "--admin-port-file",
      InState(name + ".admin"),
      "--drain-timeout",
      fmt::format("{}ms", options_.drain_timeout.count())};
  if (coordinator) {
    argv.insert(argv.end(),
                {"--expect", fmt::format("ps={},worker={}{}", options_.ps, options_.workers,
                                         options_.evaluator ? ",evaluator=1" : "")});
  } else {
    argv.insert(argv.end(), {"--task", task, "--coordinator", address_});
  }
  return {.task = task, .argv = std::move(argv), .log_file = InState("logs/" + name + ".log")};
}

Status LocalCluster::DiedEarly(const std::string& task, const std::string& before) const {
  std::string text =
      fmt::format("{} ended with {} before {}", task, daemons_.Ended(task)->ToString(), before);
  for (const std::string& line : daemons_.LastLines(task)) text += "\n  | " + line;
  return Internal("{}", text);
}

Result<std::string> LocalCluster::AddressOf(const std::string& task, const std::string& port_file) {
  const TimePoint begin = clock_.Now();
  while (clock_.Now() - begin < kListenLimit) {
    if (std::string address = FirstLineOf(port_file); !address.empty()) return address;
    if (daemons_.Ended(task)) return DiedEarly(task, "it served");
    if (interrupt_.raised()) return Cancelled("interrupted");
    std::this_thread::sleep_for(kFirstTick);
  }
  return DeadlineExceeded("{} does not listen after {} s; its log is in {}", task,
                          kListenLimit.count(), InState("logs"));
}

Status LocalCluster::StartCoordinator() {
  const std::string port_file = InState("coordinator.port");
  std::error_code error;
  fs::remove(port_file, error);
  fs::create_directories(InState("coordinator"), error);
  MUSTER_TRY(daemons_.Start(Plan("coordinator", 0, "127.0.0.1:0")));
  MUSTER_TRY_ASSIGN(address_, AddressOf("coordinator", port_file));
  // After a crash everybody looks for it where it was.
  page_ = admin_ = FirstLineOf(InState("coordinator.admin"));
  daemons_.Replace("coordinator", Plan("coordinator", 0, address_).argv);
  return ReplaceFile(InState("address"), address_ + "\n", 0600);
}

Status LocalCluster::StartAll() {
  MUSTER_TRY(StartCoordinator());
  for (const auto& [role, count] : {std::pair("ps", options_.ps),
                                    {"worker", options_.workers},
                                    {"evaluator", options_.evaluator ? 1 : 0}}) {
    for (int index = 0; index < count; ++index) {
      std::error_code error;
      fs::create_directories(InState(fmt::format("{}-{}", role, index)), error);
      MUSTER_TRY(daemons_.Start(Plan(role, index, "127.0.0.1:0")));
    }
  }
  MUSTER_TRY(WaitForTasks());
  MUSTER_TRY(Register(
      runtime_, {.address = address_, .token_file = InState("token"), .state_directory = state_}));
  terminal_.out << fmt::format("ready at {}: {} ps, {}{}; page {}; state in {}; Ctrl-C drains\n",
                               address_, options_.ps,
                               Counted(static_cast<std::uint64_t>(options_.workers), "worker"),
                               options_.evaluator ? ", an evaluator" : "", PageUrl(page_), state_)
                << std::flush;
  return Ok();
}

void LocalCluster::ReportDeath(const std::string& task, int pid, const process::Exit& exit) {
  if (task == "coordinator") {
    // Nobody is there to be told; the next one is.
    std::vector<std::string> argv = Plan("coordinator", 0, address_).argv;
    argv.insert(argv.end(), {"--predecessor-end", exit.ToString()});
    daemons_.Replace(task, std::move(argv));
    return;
  }
  const std::optional<TaskId> member = TaskIn(task);
  if (!member || address_.empty()) return;
  v1::ReportExitRequest request;
  *request.mutable_task() = ToProto(*member);
  request.set_pid(static_cast<std::uint32_t>(pid));
  request.set_how(exit.ToString());
  // Without an answer the coordinator notices by itself, a little later.
  reports_.Post([here = Here(), request] { (void)NewGrpcJobApi(here)->ReportExit(request); });
}

// Until all daemons have registered; ends early with the one that has died and will not be started
// again, and says what is missing.
Status LocalCluster::WaitForTasks() {
  const auto api = NewGrpcJobApi(Here());
  interrupt_.OnRaise([&api] { api->CancelCalls(); });
  const TimePoint begin = clock_.Now();
  const int wanted = options_.ps + options_.workers + (options_.evaluator ? 1 : 0);
  Status status = Ok();
  std::string missing = " all of them";
  while (true) {
    daemons_.Poll(kTick);
    if (interrupt_.raised()) {
      status = Cancelled("interrupted");
      break;
    }
    if (const auto dead = daemons_.Dead()) {
      status = DiedEarly(*dead, "all had registered");
      break;
    }
    const auto reply = api->GetStatus();
    int up = 0;
    if (reply.ok()) {
      missing.clear();
      if (!reply->page_address().empty()) page_ = reply->page_address();
      for (const v1::TaskState& task : reply->tasks()) {
        // One that was taken out before stays so.
        if (task.state() == "up" || task.state() == "drained") {
          ++up;
        } else {
          missing += fmt::format(" {}:{}", task.task().type(), task.task().index());
        }
      }
    }
    if (up >= wanted) break;
    if (clock_.Now() - begin >= kRegisterLimit) {
      status = DeadlineExceeded(
          "{} of {} tasks registered after {} s, missing:{}{}; logs are in {}", up, wanted,
          kRegisterLimit.count(), missing,
          reply.ok() ? "" : fmt::format(" (the coordinator: {})", Message(reply.status())),
          InState("logs"));
      break;
    }
  }
  interrupt_.OnRaise({});
  return status;
}

void LocalCluster::Serve() {
  while (!interrupt_.raised()) daemons_.Poll(kTick);
}

// Until it is done other commands find the cluster, and see what it waits for.
bool LocalCluster::Drain(bool keep) {
  if (interrupt_.raised()) Say("draining");
  const bool clean = daemons_.Drain();
  if (!runtime_.empty()) Unregister(runtime_);
  std::error_code error;
  fs::remove(InState("address"), error);
  // Nobody asked to keep what this `up` made up; its logs would pile up in /tmp.
  if (options_.state_dir.empty() && clean && !keep) fs::remove_all(state_, error);
  return clean;
}

}  // namespace

ExitCode Up(const Options& options, const Terminal& terminal, const Environment& environment,
            const Clock& clock, Interrupt& interrupt) {
  // Whoever read our words may be gone (`muster up | tee`, and Ctrl-C ends tee, too): what is said
  // to nobody is lost, the cluster drains all the same. The daemons begin with the default.
  (void)::signal(SIGPIPE, SIG_IGN);
  LocalCluster cluster(options, terminal, environment, clock, interrupt);
  if (const Status status = cluster.Prepare(); !status.ok()) {
    terminal.err << "error: " << Message(status) << '\n';
    return CodeOf(status);
  }
  const Status started = cluster.StartAll();
  if (started.ok()) cluster.Serve();
  const bool failed = !started.ok() && !interrupt.raised();
  if (failed) terminal.err << "error: " << Message(started) << '\n';
  const bool clean = cluster.Drain(/*keep=*/failed);
  return !failed && clean ? ExitCode::kDone : ExitCode::kJobFailed;
}

}  // namespace muster::cli
