// What the coordinator shows at its admin port, with a coordinator that has a job.
#include "services/coordinator/pages.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <list>
#include <thread>

#include <fmt/core.h>
#include <grpcpp/grpcpp.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "muster/v1/jobs.grpc.pb.h"
#include "services/common/grpc_channel.h"
#include "services/coordinator/coordinator_node.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/admin/http_client.h"

namespace muster::coordinator {
namespace {

using testing::Get;

struct Shown {
  Shown() {
    const std::string path = dir / "token";
    std::ofstream(path) << "0123456789abcdef0123\n";
    chmod(path.c_str(), 0600);
    const services::Token token = *services::Token::Read(path);
    CoordinatorNode::Options options;
    options.server.listen = {.host = "127.0.0.1", .port = 0};
    options.coordinator.state_directory = dir / "state";
    options.trainer = "/bin/false";
    auto started = CoordinatorNode::Start(options, token);
    REQUIRE(started.ok());
    node = std::move(*started);
    testing::Listener listener;
    port = listener.port;
    std::vector<net::Fd> listeners;
    listeners.push_back(std::move(listener.fd));
    admin = std::make_unique<services::AdminPort>(
        services::AdminPort::Options{.task = "chief:0",
                                     .version = "1",
                                     .authorize =
                                         [](const services::HttpRequest& request) {
                                           return request.path == "/closed"
                                                      ? PermissionDenied("not that")
                                                      : Ok();
                                         }},
        std::move(listeners));
    node->Show(*admin);
    admin->Turned();

    const auto jobs = v1::JobService::NewStub(services::MakeChannel(node->endpoint().ToString()));
    grpc::ClientContext context;
    services::Authorize(context, token);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("watched");
    v1::LaunchSpec& launch = *request.mutable_spec()->mutable_launch();
    request.mutable_spec()->mutable_strategy()->set_workers(1);
    request.mutable_spec()->mutable_strategy()->set_max_workers(1);
    launch.set_command("true");
    launch.add_arguments("--password=hunter2");
    v1::SubmitJobReply reply;
    const grpc::Status submitted = jobs->SubmitJob(&context, request, &reply);
    CAPTURE(submitted.error_message());
    REQUIRE(submitted.ok());
    id = reply.job().id();
  }
  ~Shown() { admin->Close(); }

  nlohmann::json Json(const std::string& path) const {
    const std::string answer = Get(port, path);
    CAPTURE(answer);
    REQUIRE(answer.starts_with("HTTP/1.1 200 "));
    return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  }

  muster::testing::TempFolder dir;
  std::unique_ptr<CoordinatorNode> node;
  std::unique_ptr<services::AdminPort> admin;
  int port = 0;
  std::string id;
};

TEST_CASE_METHOD(Shown, "the page is one document that loads nothing from elsewhere", "[pages]") {
  const std::string answer = Get(port, "/");
  const std::string page = answer.substr(answer.find("\r\n\r\n") + 4);

  CHECK(answer.starts_with("HTTP/1.1 200 "));
  CHECK(answer.find("Content-Security-Policy: default-src 'none';") != std::string::npos);
  CHECK(page.starts_with("<!doctype html>"));
  CHECK(page.ends_with("</html>\n"));
  for (const char* outside : {"src=", "@import", "url(", "innerHTML", "://"}) {
    CAPTURE(outside);
    // The name of SVG is no address.
    const std::size_t at = page.find(outside);
    CHECK((at == std::string::npos || page.substr(at, 13) == "://www.w3.org"));
  }
}

// What the page's script needs of a browser; answers come when the test says so.
constexpr const char* kBrowser = R"(
class Node {
  constructor(name) { this.name = name; this.parts = []; this.style = {}; this.textContent = ""; }
  setAttribute(key, value) { this[key] = value; }
  append(...parts) { this.parts.push(...parts); }
  replaceChildren(...parts) { this.parts = parts; }
  addEventListener() {}
}
const shownAs = {};
const document = {
  createElement: name => new Node(name), createElementNS: (space, name) => new Node(name),
  createTextNode: text => new Node(text),
  getElementById: id => shownAs[id] = shownAs[id] || new Node(id),
};
const location = {hash: ""};
const asked = [];
const fetch = (path, options) => new Promise((give, fail) => asked.push({path, options, give, fail}));
const setTimeout = () => 0;
const clearTimeout = () => {};
const addEventListener = () => {};
)";

// Runs the page's script, then `checks`, of which the first that throws is the outcome.
void RunPage(const std::string& page, const std::string& folder, const std::string& checks) {
  if (std::system("node --version >/dev/null 2>&1") != 0) {
    WARN("skipped: there is no node to run the page's script");
    return;
  }
  const std::size_t begin = page.find("<script>") + std::string("<script>").size();
  std::ofstream(folder + "/page.js")
      << kBrowser << page.substr(begin, page.find("</script>", begin) - begin)
      << "(async () => {\nconst assert = require('assert');\n"
      << checks << "})().catch(error => { console.error(error); process.exit(1); });\n";
  // Little memory: a loop without an end is noticed by it.
  const int code = std::system(
      fmt::format("node --max-old-space-size=128 '{0}/page.js' >'{0}/page.out' 2>&1", folder)
          .c_str());
  std::ifstream out(folder + "/page.out");
  const std::string said{std::istreambuf_iterator<char>(out), {}};
  CAPTURE(said);
  CHECK(code == 0);
}

TEST_CASE_METHOD(Shown, "the page draws whatever numbers a job has", "[pages]") {
  RunPage(Get(port, "/"), dir.path(), R"(
const ends = points => {
  const drawing = chart("Loss", [{name: "training", points}]).parts[1];
  const lines = drawing.parts.filter(part => part.class === "grid");
  assert(lines.length > 1 && lines.length < 20, lines.length + " lines");
  for (const line of lines) assert(line.y1 > 0 && line.y1 < 176, "a line at " + line.y1);
  assert(!drawing.parts.find(part => part.name === "path").d.includes("NaN"));
  for (const text of drawing.parts.filter(part => part.name === "text")) {
    const half = text["text-anchor"] === "middle" ? 3 * text.textContent.length : 0;
    assert(text.x + half <= 340, text.textContent + " goes past the edge");
  }
};
ends([[1, 0.7], [2, 0.1]]);
ends([[1, -3], [2, 4e6]]);
ends([[7, 0]]);
ends([[500, 2.3], [2000, 0.01]]);
ends([[0, 1], [800000, 2]]);
// Sums in another order differ in their last digits.
ends([[1, 0.001], [2, 0.0010000000000000002]]);
ends([[1, 1e17], [2, 1e17 + 16]]);
// As Protobuf's JSON has them.
assert.equal(figure("NaN"), "NaN");
assert.equal(figure("-Infinity"), "-Infinity");
assert.equal(figure(0.25), "0.25");
assert.equal(figure(undefined), "-");
)");
}

TEST_CASE_METHOD(Shown, "the page waits for no answer without end and tells of none that is late",
                 "[pages]") {
  RunPage(Get(port, "/"), dir.path(), R"(
const turn = () => new Promise(setImmediate);
assert(asked.length > 0);
for (const one of asked) assert(one.options.signal instanceof AbortSignal, one.path);
// Meanwhile somebody has gone on to a job.
location.hash = "#job/j-1";
const before = asked.splice(0);
document.getElementById("main").parts = ["the job"];
for (const one of before) one.fail(new Error("of the page before"));
await turn();
assert.equal(document.getElementById("trouble").textContent, "");
assert.deepEqual(document.getElementById("main").parts, ["the job"]);
// What is looked at is told of.
draw();
for (const one of asked.splice(0)) one.fail(new Error("of this page"));
await turn();
assert(document.getElementById("trouble").textContent.includes("of this page"));
)");
}

TEST_CASE_METHOD(Shown,
                 "jobs, one job and its curves are there as JSON, and nothing secret of them",
                 "[pages]") {
  const nlohmann::json jobs = Json("/api/v1/jobs");
  REQUIRE(jobs["jobs"].size() == 1);
  CHECK(jobs["jobs"][0]["name"] == "watched");
  CHECK(Json("/api/v1/status")["jobsPending"] == 1);
  CHECK(Json("/api/v1/jobs/" + id + "/curves").empty());
  const nlohmann::json job = Json("/api/v1/jobs/" + id);
  CHECK(job["id"] == id);
  CHECK(job["state"] == "JOB_STATE_PENDING");
  CHECK(job.dump().find("hunter2") == std::string::npos);
  CHECK(jobs.dump().find("hunter2") == std::string::npos);

  CHECK(Get(port, "/api/v1/jobs/none").starts_with("HTTP/1.1 404 "));
  CHECK(Get(port, "/api/v1/jobs/").starts_with("HTTP/1.1 404 "));
  CHECK(Get(port, "/api/v1/").starts_with("HTTP/1.1 404 "));
  CHECK(Get(port, "/metrics").find("muster_job_info{job_id=\"" + id + "\"") != std::string::npos);
}

TEST_CASE_METHOD(Shown, "all are answered who look at the same time", "[pages]") {
  std::vector<std::thread> many;
  std::atomic<int> answered{0};
  for (int i = 0; i < 8; ++i) {
    many.emplace_back([&] {
      for (int n = 0; n < 50; ++n)
        answered += Get(port, "/api/v1/jobs").starts_with("HTTP/1.1 200 ");
    });
  }
  for (std::thread& one : many) one.join();

  CHECK(answered == 400);
}

// Keeps what it is given.
struct HungLanes : LaneOffload {
  void Run(const std::string&, Function work, Function) override {
    given.push_back(std::move(work));
  }
  std::vector<Function> given;
};

TEST_CASE("those who ask for a page while the coordinator stands still are not all kept",
          "[pages]") {
  const muster::testing::TempFolder folder;
  HungLanes lanes;
  FakeScheduler strand;
  AuditTrail audit(folder / "audit.log", 0, lanes, strand);
  Front front{
      .strand = strand, .check_caller = {}, .still_allowed = {}, .audit = audit, .disks = lanes};
  const JobFigures figures(lanes, strand);
  testing::Listener listener;
  const int number = listener.port;
  std::vector<net::Fd> listeners;
  listeners.push_back(std::move(listener.fd));
  services::AdminPort admin_port(
      {.task = "chief:0",
       .version = "1",
       .authorize = [](const services::HttpRequest&) { return Ok(); },
       .http = {.most_connections = kMostAtOnePage + 1, .answer_limit = Millis(50)}},
      std::move(listeners));
  ServePages(front, figures, admin_port);
  std::list<testing::HttpClient> clients;
  for (std::size_t i = 0; i <= kMostAtOnePage; ++i) {
    clients.emplace_back(number).Send("GET /api/v1/jobs HTTP/1.1\r\nHost: here\r\n\r\n");
  }
  for (testing::HttpClient& one : clients) CHECK(one.Answer().starts_with("HTTP/1.1 503 "));
  admin_port.Close();

  REQUIRE(lanes.given.size() == 1);  // the audit log's line of the first
  lanes.given[0]();
  std::ifstream file(folder / "audit.log");
  CHECK(nlohmann::json::parse(file)["refused"] == "it could not be shown");
}

TEST_CASE_METHOD(Shown, "who looks at pages, or may not, is in the audit log once",
                 "[pages][audit]") {
  for (int i = 0; i < 3; ++i) {
    CHECK(Get(port, "/api/v1/jobs").starts_with("HTTP/1.1 200 "));
    CHECK(Get(port, "/api/v1/jobs/" + id).starts_with("HTTP/1.1 200 "));
    CHECK(Get(port, "/api/v1/jobs/" + id + "/curves").starts_with("HTTP/1.1 200 "));
    CHECK(Get(port, "/api/v1/jobs/other").starts_with("HTTP/1.1 404 "));
    CHECK(Get(port, "/closed").starts_with("HTTP/1.1 403 "));
  }
  CHECK(Get(port, "/healthz").starts_with("HTTP/1.1 200 "));
  admin->Close();
  node.reset();  // everything is written

  std::vector<std::string> lines;
  std::ifstream file(dir / "state/audit.log");
  for (std::string line; std::getline(file, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry["did"] == "submit") continue;
    lines.push_back(entry["who"].get<std::string>() + " " + entry["did"].get<std::string>() + " " +
                    entry["what"].get<std::string>() + " " + entry.value("refused", ""));
  }
  CHECK(lines == std::vector<std::string>{"somebody jobs  ", "somebody describe " + id + " ",
                                          "somebody curves " + id + " ",
                                          "somebody describe other it is not there",
                                          "somebody page /closed not that"});
}

}  // namespace
}  // namespace muster::coordinator
