// A cluster behind TLS: a job over it, certificates replaced under it, and who may do what.
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <sys/uio.h>

#include "common/base/real_clock.h"
#include "common/net/frame.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"
#include "tests/cluster/authority.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

void IssueNodes(const Authority& authority) {
  authority.Certs({"issue", "--name", "nodes", "--node", "chief:0", "--node", "ps:0", "--node",
                   "ps:1", "--node", "worker:0", "--node", "worker:1", "--host", "127.0.0.1"});
}

// TCP, as between hosts.
Cluster::Options ClusterOptions(const Authority& authority) {
  auto environment = authority.Environment("nodes");
  environment["MUSTER_LINK"] = "tcp";
  return {.ps = 2, .workers = 2, .environment = environment};
}

// `muster` as somebody with certificates of their own, or with none.
RunResult As(const std::map<std::string, std::string>& who, const Cluster& cluster,
             std::vector<std::string> arguments) {
  std::string address = ReadAll(cluster.state() + "/address");
  while (!address.empty() && address.back() == '\n') address.pop_back();
  std::map<std::string, std::string> environment = who;
  environment["MUSTER_COORDINATOR"] = address;
  environment["MUSTER_TOKEN_FILE"] = "";
  environment["XDG_RUNTIME_DIR"] = "";
  return RunProgram("muster", arguments, environment);
}

bool Has(const std::string& text, const std::string& words) {
  INFO(text);
  return text.find(words) != std::string::npos;
}

// Whether the coordinator's audit log says that `who` did this to `what`, and was not refused.
bool Audited(const Cluster& cluster, const std::string& who, const std::string& did,
             const std::string& what) {
  std::istringstream audit(ReadAll(cluster.state() + "/coordinator/audit.log"));
  for (std::string line; std::getline(audit, line);) {
    const auto says = [&](const std::string& part) { return line.find(part) != std::string::npos; };
    if (says(fmt::format(R"("did":"{}")", did)) && says(fmt::format(R"("what":"{}")", what)) &&
        says(fmt::format(R"("who":"{}")", who)) && !says(R"("refused")")) {
      return true;
    }
  }
  return false;
}

TEST_CASE("a job over TLS loses no step while all certificates are replaced under it",
          "[cluster]") {
  const Authority authority;
  IssueNodes(authority);
  Cluster cluster(ClusterOptions(authority));
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 60, 10);
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 100, seconds(120)));

  IssueNodes(authority);
  // Whoever begins anew shows the new one, to those that run with the old one in memory.
  REQUIRE(cluster.Kill("worker:1", SIGKILL));

  REQUIRE(cluster.Wait(id, seconds(240)) == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w.safetensors"}).code == 0);
  CHECK(ReadSafetensors(folder / "w.safetensors").at("w") == sums.expected);
}

TEST_CASE("behind TLS everybody does what their certificate says, and hears what it does not",
          "[cluster]") {
  const Authority authority;
  IssueNodes(authority);
  authority.Certs({"issue", "--submitter", "ana"});
  authority.Certs({"issue", "--viewer", "bob"});
  Cluster cluster(ClusterOptions(authority));
  const TempFolder folder;
  const SumJob sums(folder, 100, 10, 1, 0);
  const auto ana = authority.Environment("ana");
  const auto bob = authority.Environment("bob");

  const RunResult refused = As(bob, cluster, {"submit", "-f", sums.file});
  CHECK(refused.code != 0);
  CHECK(Has(refused.err, "viewer bob may not do this: it takes the certificate of a submitter"));

  const RunResult submitted = As(ana, cluster, {"submit", "-f", sums.file, "--wait"});
  CAPTURE(submitted.err);
  REQUIRE(submitted.code == 0);
  const RunResult jobs = As(bob, cluster, {"jobs"});
  CHECK(Has(jobs.out, "OWNER"));
  CHECK(Has(jobs.out, "ana"));
  CHECK(As(bob, cluster, {"describe", IdIn(submitted)}).code == 0);
  CHECK(Has(As(bob, cluster, {"stop", IdIn(submitted)}).err, "viewer bob may not do this"));
  for (const std::string command : {"drain", "undrain"}) {
    CHECK(Has(As(bob, cluster, {command, "worker:0"}).err, "viewer bob may not do this"));
  }
  CHECK(As(ana, cluster, {"drain", "worker:1"}).code == 0);
  CHECK(Has(As(bob, cluster, {"status"}).out, "worker:1 was taken out by submitter ana"));
  CHECK(As(ana, cluster, {"undrain", "worker:1"}).code == 0);
  const RunResult long_one = As(ana, cluster, {"submit", "--name", "long", "--", "sleep", "600"});
  REQUIRE(long_one.code == 0);
  CHECK(As(bob, cluster, {"logs", IdIn(submitted)}).code == 0);
  CHECK(As(ana, cluster, {"stop", IdIn(long_one), "--grace", "0s"}).code == 0);
  struct Deed {
    std::string who, did, what;
  };
  for (const Deed& deed :
       {Deed{"submitter ana", "submit", IdIn(submitted)},
        Deed{"submitter ana", "submit", IdIn(long_one)},
        Deed{"submitter ana", "stop", IdIn(long_one)}, Deed{"submitter ana", "drain", "worker:1"},
        Deed{"submitter ana", "undrain", "worker:1"},
        Deed{"viewer bob", "describe", IdIn(submitted)},
        Deed{"viewer bob", "logs", IdIn(submitted)}, Deed{"viewer bob", "jobs", ""}}) {
    INFO(ReadAll(cluster.state() + "/coordinator/audit.log"));
    CAPTURE(deed.who, deed.did, deed.what);
    CHECK(Eventually(seconds(30), [&] { return Audited(cluster, deed.who, deed.did, deed.what); }));
  }

  const Authority foreign;
  foreign.Certs({"issue", "--submitter", "eve"});
  CHECK(Has(As(foreign.Environment("eve"), cluster, {"jobs"}).err,
            "an authority that is not in this process's tls-ca"));
  CHECK_FALSE(Has(As(foreign.Environment("eve"), cluster, {"jobs"}).err, "ssl_transport_security"));
  std::string address = ReadAll(cluster.state() + "/address");
  address.erase(address.find_last_not_of('\n') + 1);
  const std::string elsewhere = "localhost" + address.substr(address.rfind(':'));
  const RunResult misnamed = As(bob, cluster, {"--coordinator", elsewhere, "jobs"});
  CAPTURE(misnamed.err);
  CHECK(
      Has(misnamed.err,
          "localhost shows a certificate of CN = \"node chief:0, ps:0, ps:1, worker:0, worker:1\" "
          "for other hosts (127.0.0.1): connect by one of those, or issue one with --host "
          "localhost"));
  const RunResult plain = As({}, cluster, {"--token-file", cluster.state() + "/token", "jobs"});
  CHECK(plain.code != 0);
  CHECK(Has(plain.err, "it speaks TLS, and this command has no certificate: give --tls-ca"));
}

TEST_CASE("who is revoked is let in no more, and what they had open ends within seconds",
          "[cluster]") {
  const Authority authority;
  IssueNodes(authority);
  authority.Certs({"issue", "--submitter", "ana"});
  authority.Certs({"issue", "--viewer", "bob"});
  Cluster::Options options = ClusterOptions(authority);
  options.environment["MUSTER_TLS_ALLOWED"] = authority.folder() + "/allowed";
  Cluster cluster(options);
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 60, 20);
  const auto ana = authority.Environment("ana");
  const auto bob = authority.Environment("bob");
  const RunResult submitted = As(ana, cluster, {"submit", "-f", sums.file});
  CAPTURE(submitted.err);
  REQUIRE(submitted.code == 0);
  const std::string id = IdIn(submitted);
  REQUIRE(cluster.WaitForStep(id, 10, seconds(120)));

  // Bob looks on while he is revoked; his command ends with a reason, long before the job does.
  RunResult followed;
  std::thread following([&] { followed = As(bob, cluster, {"logs", id, "worker:0", "-f"}); });
  const bool began = Eventually(seconds(60), [&] {
    return Has(ReadAll(cluster.state() + "/coordinator/audit.log"), R"("did":"logs")");
  });
  authority.Certs({"revoke", "bob"});
  following.join();
  CHECK(began);
  CHECK(followed.code != 0);
  CHECK(Has(followed.err, "the certificate of viewer bob"));
  CHECK(Has(followed.err, "has been revoked, or its line is missing"));
  CHECK(Has(As(bob, cluster, {"jobs"}).err, "the certificate of viewer bob"));
  CHECK(As(ana, cluster, {"jobs"}).code == 0);

  // What ana has begun goes on without her.
  authority.Certs({"revoke", "ana"});
  CHECK(Has(As(ana, cluster, {"stop", id}).err, "the certificate of submitter ana"));
  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(240)) == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

TEST_CASE("processes of a launched job share a key that is theirs alone, and train by it",
          "[cluster]") {
  const Authority authority;
  IssueNodes(authority);
  Cluster cluster(ClusterOptions(authority));
  const auto submit = [&](const std::string& name, std::vector<std::string> what) {
    const std::vector<std::string> two = {"submit", "--name", name, "--workers", "2"};
    what.insert(what.begin(), two.begin(), two.end());
    const RunResult submitted = cluster.Muster(what);
    CAPTURE(submitted.err);
    const std::string id = IdIn(submitted);
    REQUIRE(cluster.Wait(id, seconds(120)) == 0);
    return id;
  };
  const std::vector<std::string> tell = {"--", "sh", "-c",
                                         "echo key=$MUSTER_JOB_KEY tls=$MUSTER_JOB_TLS "
                                         "certificate=$MUSTER_TLS_KEY end"};

  const auto key_of = [&](const std::string& id, const std::string& task) {
    const std::string said = cluster.Output(id, task);
    CAPTURE(said);
    const std::size_t at = said.find("key=") + 4;
    const std::size_t end = said.find(" tls=1 certificate= end");
    REQUIRE(end != std::string::npos);
    return said.substr(at, end - at);
  };

  const std::string one = submit("one", tell);
  const std::string other = submit("other", tell);

  CHECK(key_of(one, "worker:0").size() == 64);
  CHECK(key_of(one, "worker:1") == key_of(one, "worker:0"));
  CHECK(key_of(other, "worker:0") != key_of(one, "worker:0"));
  const std::string trained = submit("trained", {"--strategy", "multi_worker_mirrored", "--",
                                                 MUSTER_TEST_PROGRAMS "/multi_worker", "20"});
  CHECK(Has(cluster.Output(trained, "worker:1"), "joined 1 of 2"));
}

// What a process has been told, or holds open.
std::string ToldTo(int pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  std::string told = ReadAll(proc + "/environ") + '\0' + ReadAll(proc + "/cmdline");
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    told += '\0' + std::filesystem::read_symlink(entry.path()).string();
  }
  return told;
}

// All that daemons, the job and the coordinator's record of callers have written for people.
std::string Logged(Cluster& cluster, const std::string& id) {
  std::string text = cluster.up_log() + cluster.Muster({"logs", id}).out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster.state())) {
    if (entry.is_regular_file() && entry.path().extension() == ".log") {
      text += ReadAll(entry.path().string());
    }
  }
  return text;
}

std::string Hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

TEST_CASE("processes of a model's job know neither the token nor a certificate, nor where they are",
          "[cluster]") {
  const Authority authority;
  IssueNodes(authority);
  Cluster::Options options = ClusterOptions(authority);
  options.environment["MUSTER_TLS_ALLOWED"] = authority.folder() + "/allowed";
  Cluster cluster(options);
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 60, 20);
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 10, seconds(120)));
  const v1::Job job = cluster.Describe(id);
  const std::string token = ReadAll(cluster.state() + "/token");

  for (const int pid : {cluster.PidOf("trainer"), ExecutorPid(job, 0), ExecutorPid(job, 1)}) {
    REQUIRE(pid > 1);
    const std::string told = ToldTo(pid);
    CAPTURE(pid);
    CHECK(told.find(token.substr(0, token.find('\n'))) == std::string::npos);
    CHECK_FALSE(Has(told, cluster.state() + "/token"));
    CHECK_FALSE(Has(told, authority.folder()));
  }
  // The daemon that has started them does know.
  CHECK(Has(ToldTo(cluster.PidOf("worker:0")), authority.folder()));
  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(240)) == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);

  // Nor has anybody written them down.
  const std::string secret = token.substr(0, token.find('\n'));
  const std::string key = net::JobKey(secret, id, Epoch(cluster.Status().epoch()));
  const std::string logged = Logged(cluster, id);
  REQUIRE(Has(logged, id));
  for (const std::string& one : {secret, key, Hex(key)}) {
    REQUIRE(one.size() >= 16);
    CHECK(logged.find(one) == std::string::npos);
  }
}

int Descriptors(int pid) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    ++count;
  }
  return count;
}

// VmRSS of /proc/pid/status.
std::int64_t ResidentKib(int pid) {
  const std::string text = ReadAll("/proc/" + std::to_string(pid) + "/status");
  return std::stoll(text.substr(text.find("VmRSS:") + 6));
}

// Somebody who sends what is no handshake, and stays.
class Stranger {
 public:
  Stranger(const std::string& address, std::span<const std::byte> bytes) {
    const auto soon = std::chrono::steady_clock::now() + seconds(30);
    auto fd = net::ConnectTcp(address, soon);
    if (!fd.ok()) return;  // refused at the door, which is as good
    link_ = std::make_unique<net::Socket>(*std::move(fd), net::LinkKind::kTcp, address,
                                          net::SpinMode::kOff, nullptr);
    if (bytes.empty()) return;
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    // The server may have closed before it has taken all.
    (void)net::WriteAll(*link_, RealClock(), std::span(&part, 1), soon);
  }

 private:
  std::unique_ptr<net::Socket> link_;
};

TEST_CASE("behind TLS, too, strangers disturb nobody and leave nothing behind", "[cluster]") {
  const Authority authority;
  IssueNodes(authority);
  Cluster cluster(ClusterOptions(authority));
  const TempFolder folder;
  const SumJob sums(folder, 1500, 10, 60, 50);
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 20, seconds(120)));
  const std::string log = ReadAll(cluster.state() + "/logs/ps-0.log"), before = "data plane on ";
  const std::size_t at = log.find(before) + before.size();
  std::string coordinator = ReadAll(cluster.state() + "/address");
  coordinator = coordinator.substr(0, coordinator.find('\n'));
  const std::array<int, 2> pids = {cluster.PidOf("ps:0"), cluster.PidOf("coordinator")};
  const std::array<int, 2> open = {Descriptors(pids[0]), Descriptors(pids[1])};
  const std::array<std::int64_t, 2> resident = {ResidentKib(pids[0]), ResidentKib(pids[1])};

  const std::vector<std::byte> garbage(1'000'000, std::byte{'x'});
  // A record of a handshake that says 16 KiB and brings none; a ClientHello's length of 16 MiB.
  const std::vector<std::byte> half = {std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{0x40},
                                       std::byte{0}};
  const std::vector<std::byte> huge = {std::byte{0x16}, std::byte{3},    std::byte{1},
                                       std::byte{0},    std::byte{4},    std::byte{1},
                                       std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  // A frame in the clear that says 4 GB.
  std::array<std::byte, net::kHeaderBytes> frame{};
  net::EncodeHeader({.kind = net::kHello, .meta_bytes = 0xffffffff}, frame);
  for (const std::string& address : {log.substr(at, log.find(' ', at) - at), coordinator}) {
    std::vector<std::unique_ptr<Stranger>> silent;
    for (int i = 0; i < 100; ++i)
      silent.push_back(std::make_unique<Stranger>(address, std::span<const std::byte>()));
    for (int i = 0; i < 5; ++i) {
      for (const std::span<const std::byte> bytes :
           {std::span<const std::byte>(garbage), std::span<const std::byte>(half),
            std::span<const std::byte>(huge), std::span<const std::byte>(frame)}) {
        const Stranger one(address, bytes);
      }
    }
  }

  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(240)) == 0);
  for (std::size_t i = 0; i < pids.size(); ++i) {
    CAPTURE(i, open[i], resident[i]);
    CHECK(Eventually(seconds(30), [&] { return Descriptors(pids[i]) <= open[i] + 2; }));
    CHECK(ResidentKib(pids[i]) < resident[i] + 64 * 1024);
  }
  CHECK(cluster.PidOf("ps:0") == pids[0]);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

}  // namespace
}  // namespace muster::testing
