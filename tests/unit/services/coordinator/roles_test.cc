// Every call of every service of the coordinator, by everybody who may come, over real TLS.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "muster/v1/cluster.grpc.pb.h"
#include "muster/v1/jobs.grpc.pb.h"
#include "services/common/grpc_channel.h"
#include "services/coordinator/coordinator_node.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/admin/https_client.h"

namespace muster::coordinator {
namespace {

using testing::Certificates;
using tls::Role;

// Who may make which call, as docs/security.md says it. A call that is not here has no rule.
const std::map<std::string, Role> kRules = {
    {"ClusterService.Attach", Role::kNode},
    {"ClusterService.FetchFile", Role::kNode},
    {"JobService.HasFile", Role::kSubmitter},
    {"JobService.UploadFile", Role::kSubmitter},
    {"JobService.SubmitJob", Role::kSubmitter},
    {"JobService.ListJobs", Role::kViewer},
    {"JobService.GetJob", Role::kViewer},
    {"JobService.WatchJob", Role::kViewer},
    {"JobService.StopJob", Role::kSubmitter},
    {"JobService.ReadLogs", Role::kViewer},
    {"JobService.GetStatus", Role::kViewer},
    {"JobService.ListCheckpoints", Role::kViewer},
    {"JobService.CollectCheckpoints", Role::kSubmitter},
    {"JobService.DrainTask", Role::kSubmitter},
    {"JobService.UndrainTask", Role::kSubmitter},
    {"JobService.Backup", Role::kSubmitter},
    {"JobService.ReportExit", Role::kNode},
};

std::set<std::string> AllCalls() {
  std::set<std::string> calls;
  for (const auto* file :
       {v1::ClusterStatus::descriptor()->file(), v1::DaemonMessage::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        calls.insert(service->name() + "." + service->method(m)->name());
      }
    }
  }
  return calls;
}

std::string PathOf(std::string call) {
  call.replace(call.find('.'), 1, "/");
  return "/muster.v1." + call;
}

struct TlsFixture {
  TlsFixture() {
    const std::string path = dir / "token";
    std::ofstream(path) << "0123456789abcdef0123\n";
    chmod(path.c_str(), 0600);
    token = std::make_unique<services::Token>(*services::Token::Read(path));
    Issue("chief", {.role = Role::kNode, .names = {"chief:0"}});
    Issue("worker", {.role = Role::kNode, .names = {"worker:0"}});
    Issue("ana", {.role = Role::kSubmitter, .names = {"ana"}});
    Issue("bob", {.role = Role::kViewer, .names = {"bob"}});
    WriteList({"chief", "worker", "ana", "bob"});
    tls::Files own = files["chief"];
    own.allowed = folder.path("allowed");
    context = *tls::Context::FromFiles(
        own, [this](const std::string& line) { Warn(line); },
        [](const tls::Holder& holder) {
          if (std::ranges::count(holder.names, "chief:0") > 0) return Ok();
          return PermissionDenied("a certificate of {}", holder.ToString());
        });
    CoordinatorNode::Options options;
    options.server.listen = {.host = "127.0.0.1", .port = 0};
    options.server.tls = context;
    options.allowed = context->allowed();
    options.coordinator.state_directory = dir / "state";
    options.trainer = "/bin/false";
    auto started = CoordinatorNode::Start(options, *token);
    REQUIRE(started.status() == Ok());
    node = std::move(*started);
  }
  void Issue(const std::string& name, const tls::Holder& holder) {
    files[name] = folder.Issue(name, holder);
  }
  void Warn(const std::string& line) {
    const MutexLock lock(mutex);
    warnings.push_back(line);
  }
  bool Warned(const std::string& words) {
    const MutexLock lock(mutex);
    return std::ranges::any_of(
        warnings, [&](const auto& one) { return one.find(words) != std::string::npos; });
  }
  // Which certificate the coordinator shows on gRPC's port.
  std::string Shown() const {
    return testing::HttpsClient(node->endpoint().port, files.at("worker")).fingerprint();
  }
  void WriteList(const std::vector<std::string>& names) const {
    std::string lines;
    for (const std::string& name : names) lines += folder.LineOf(name);
    folder.Write("allowed", lines);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& who) {
    auto& channel = channels[who];
    if (!channel) {
      channel =
          services::MakeChannel(node->endpoint().ToString(), *tls::Context::FromFiles(files[who]));
    }
    return channel;
  }
  void Prepare(grpc::ClientContext& call, bool with_token) const {
    if (with_token) services::Authorize(call, *token);
    call.set_wait_for_ready(true);
    call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }
  // Any call, with one empty message, to its end.
  Status Call(const std::string& who, const std::string& path, bool with_token = true) {
    grpc::GenericStub stub(ChannelOf(who));
    grpc::CompletionQueue queue;
    grpc::ClientContext call;
    Prepare(call, with_token);
    const auto step = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto stream = stub.PrepareCall(&call, path, &queue);
    stream->StartCall(nullptr);
    if (step()) {
      const grpc::Slice nothing;
      stream->Write(grpc::ByteBuffer(&nothing, 1), nullptr);
      if (step()) {
        stream->WritesDone(nullptr);
        (void)step();
      }
      grpc::ByteBuffer answer;
      do {
        stream->Read(&answer, nullptr);
      } while (step());
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    (void)step();
    return services::FromGrpc(status);
  }
  // What the audit log has, once `met` is true of it.
  template <class Met>
  std::vector<nlohmann::json> Audit(const Met& met) const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    std::vector<nlohmann::json> entries;
    do {
      entries.clear();
      std::ifstream file(dir / "state/audit.log");
      for (std::string line; std::getline(file, line);) {
        const auto entry = nlohmann::json::parse(line, nullptr, false);
        if (!entry.is_discarded()) entries.push_back(entry);
      }
      if (met(entries)) return entries;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < limit);
    return entries;
  }

  muster::testing::TempFolder dir;
  Mutex mutex;
  std::vector<std::string> warnings MUSTER_GUARDED_BY(mutex);
  Certificates folder;
  std::map<std::string, tls::Files> files;
  std::unique_ptr<services::Token> token;
  std::shared_ptr<tls::Context> context;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels;
  std::unique_ptr<CoordinatorNode> node;
};

TEST_CASE("every call has a rule of who may make it, and no rule is without its call",
          "[services][tls][unit]") {
  std::set<std::string> ruled;
  for (const auto& [call, least] : kRules) ruled.insert(call);

  CHECK(AllCalls() == ruled);
}

TEST_CASE_METHOD(TlsFixture, "each role makes its calls and no other, and a node takes the token",
                 "[services][tls][unit]") {
  const std::map<std::string, Role> callers = {
      {"bob", Role::kViewer}, {"ana", Role::kSubmitter}, {"worker", Role::kNode}};
  for (const auto& [call, least] : kRules) {
    for (const auto& [who, role] : callers) {
      CAPTURE(call, who);
      const Status said = Call(who, PathOf(call));
      INFO(ToString(said));
      const std::string words =
          "may not do this: it takes the certificate of a " + std::string(tls::RoleName(least));
      CHECK((Message(said).find(words) != std::string::npos) == (role < least));
      CHECK((said.code() == StatusCode::kPermissionDenied) ==
            (role < least || call.ends_with("ReportExit")));
      CHECK(said.code() != StatusCode::kUnauthenticated);
      CHECK(said.code() != StatusCode::kUnimplemented);
    }
    CAPTURE(call);
    CHECK(Call("worker", PathOf(call), /*with_token=*/false).code() ==
          StatusCode::kUnauthenticated);
  }
}

TEST_CASE_METHOD(TlsFixture, "a node speaks for the tasks that its certificate names alone",
                 "[services][tls][unit]") {
  const auto report = [this](const std::string& who, const std::string& type) {
    grpc::ClientContext call;
    Prepare(call, true);
    v1::ReportExitRequest request;
    request.mutable_task()->set_type(type);
    v1::ReportExitReply reply;
    return services::FromGrpc(
        v1::JobService::NewStub(ChannelOf(who))->ReportExit(&call, request, &reply));
  };

  CHECK(report("worker", "worker") == Ok());
  const Status other = report("worker", "ps");
  CHECK(other.code() == StatusCode::kPermissionDenied);
  CHECK(Message(other) ==
        "node worker:0 may not say how ps:0 ended: its certificate does not name that task");
}

TEST_CASE_METHOD(TlsFixture, "which calls there are is told to nobody who is revoked",
                 "[services][tls][unit]") {
  const std::string reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  CHECK(Call("bob", reflection) == Ok());

  WriteList({"chief", "worker", "ana"});

  const Status refused = Call("bob", reflection);
  CHECK(refused.code() == StatusCode::kUnauthenticated);
  CHECK(Message(refused).find("it has been revoked") != std::string::npos);
  CHECK(Call("bob", "/grpc.health.v1.Health/Check") == Ok());
}

TEST_CASE_METHOD(TlsFixture, "a list of no use cuts nobody off who comes anew",
                 "[services][tls][unit]") {
  tls::Files own = files["ana"];
  own.allowed = folder.path("allowed");
  const auto listed = *tls::Context::FromFiles(own);
  folder.Write("allowed", "# no fingerprint\n");
  channels["ana"] = services::MakeChannel(node->endpoint().ToString(), listed);

  CHECK(Call("ana", "/grpc.health.v1.Health/Check") == Ok());
  CHECK(Call("bob", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") == Ok());
}

TEST_CASE_METHOD(TlsFixture, "files of no use are never shown to callers, and good ones soon are",
                 "[services][tls][unit]") {
  const std::string before = Shown();
  REQUIRE_FALSE(before.empty());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // Also for longer than gRPC and the context take between two looks.
  const auto keeps_until_told = [&](const std::string& words) {
    auto until = limit;
    bool told = false;
    while (std::chrono::steady_clock::now() < until) {
      if (Shown() != before) return false;
      if (!told && Warned(words)) {
        told = true;
        until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
      }
    }
    return told;
  };

  SECTION("another key alone") {
    const tls::Files other = folder.Issue("other", {.role = Role::kNode, .names = {"chief:0"}});
    std::filesystem::rename(other.key, files["chief"].key);
    CHECK(keeps_until_told("is not the key of the certificate"));
  }
  SECTION("a certificate of another task") {
    Issue("chief", {.role = Role::kNode, .names = {"ps:9"}});
    CHECK(keeps_until_told("a certificate of node ps:9"));
  }
  SECTION("a certificate of another authority") {
    folder.IssueBy(Certificates::NewAuthority(), "chief",
                   {.role = Role::kNode, .names = {"chief:0"}});
    CHECK(keeps_until_told("is not of an authority in tls-ca"));
  }
  SECTION("garbage") {
    folder.Write("ca.pem", "garbage");
    CHECK(keeps_until_told("no certificate in PEM form"));
    folder.Write("ca.pem", folder.authority().certificate);
  }

  Issue("chief", {.role = Role::kNode, .names = {"chief:0"}});
  const std::string line = folder.LineOf("chief");
  const std::string wanted = line.substr(0, line.find(' '));
  while (Shown() != wanted && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  CHECK(Shown() == wanted);
}

TEST_CASE_METHOD(TlsFixture, "who looks, changes or is refused stands in the audit log, cut short",
                 "[services][tls][unit]") {
  const auto describe = [this](const std::string& job) {
    grpc::ClientContext call;
    Prepare(call, false);
    v1::GetJobRequest request;
    request.set_job(job);
    v1::Job reply;
    return v1::JobService::NewStub(ChannelOf("bob"))->GetJob(&call, request, &reply).error_code();
  };
  const auto submit = [this](const std::string& name) {
    grpc::ClientContext call;
    Prepare(call, false);
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name(name);
    v1::SubmitJobReply reply;
    return v1::JobService::NewStub(ChannelOf("ana"))->SubmitJob(&call, request, &reply).ok();
  };
  // Each is large enough to be worth the while of somebody who wants to fill the disk.
  for (int i = 0; i < 20; ++i) {
    CHECK(describe(std::to_string(i) + std::string(1'000'000, 'x')) == grpc::StatusCode::NOT_FOUND);
  }
  (void)Call("bob", PathOf("JobService.StopJob"));
  (void)Call("bob", PathOf("JobService.ListJobs"));
  CHECK_FALSE(submit("no \"model\"\n" + std::string(10'000, 'y')));

  const auto entries = Audit(
      [](const auto& all) { return !all.empty() && all.back().value("did", "") == "submit"; });

  const auto of = [&entries](const std::string& did) {
    std::vector<nlohmann::json> found;
    for (const auto& entry : entries) {
      if (entry.value("did", "") == did) found.push_back(entry);
    }
    return found;
  };
  REQUIRE(of("describe").size() == 1);
  CHECK(of("describe")[0]["who"] == "viewer bob");
  CHECK(of("describe")[0]["what"].get<std::string>().size() < 300);
  CHECK(of("describe")[0].contains("refused"));
  REQUIRE(of("stop").size() == 1);
  CHECK(of("stop")[0]["who"] == "viewer bob");
  CHECK(of("stop")[0]["refused"].get<std::string>().find("may not do this") != std::string::npos);
  REQUIRE(of("jobs").size() == 1);
  CHECK_FALSE(of("jobs")[0].contains("refused"));
  REQUIRE(of("submit").size() == 1);
  CHECK(of("submit")[0]["who"] == "submitter ana");
  CHECK(of("submit")[0]["what"].get<std::string>().starts_with("no \"model\"\n"));
  CHECK(of("submit")[0].contains("refused"));
  CHECK(std::filesystem::file_size(dir / "state/audit.log") < 10'000);
}

}  // namespace
}  // namespace muster::coordinator
