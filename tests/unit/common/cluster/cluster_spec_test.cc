#include "common/cluster/cluster_spec.h"

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "muster/v1/cluster_def.pb.h"
#include "tests/support/catch.h"

namespace muster::cluster {
namespace {

using nlohmann::json;
using Slots = std::vector<std::optional<std::string>>;

ClusterSpec FromText(const char* text) {
  return ClusterSpec::FromJson(json::parse(text), "cluster").value();
}

std::string JsonError(const char* text) {
  return Message(ClusterSpec::FromJson(json::parse(text), "cluster").status());
}

ClusterSpec ThroughProto(const ClusterSpec& spec) {
  v1::ClusterDef def;
  spec.ToProto(def);
  return ClusterSpec::FromProto(def).value();
}

TEST_CASE("a spec is the same after a trip through JSON, a message or another spec",
          "[cluster][unit][spec][CSP-01]") {
  const ClusterSpec spec = ClusterSpec::Dense(
      {{"worker", {"w0:2222", "w1:2222", "w2:2222"}}, {"ps", {"p0:2222", "p1:2222"}}});
  const ClusterSpec mixed =
      ClusterSpec::Create({{"ps", {{0, "a:1"}, {3, "b:2"}}}, {"chief", {}}, {"x", {{0, "c:3"}}}})
          .value();

  for (const ClusterSpec& each : {spec, mixed, ClusterSpec()}) {
    CHECK(ThroughProto(each) == each);
    CHECK(ClusterSpec::FromJson(each.ToJson(), "cluster").value() == each);
    CHECK(ClusterSpec(each) == each);
  }
}

TEST_CASE("the message has its jobs sorted by name", "[cluster][unit][spec][CSP-01]") {
  v1::ClusterDef def;
  FromText(R"({"worker": ["w:1"], "ps": ["p:1"], "chief": ["c:1"]})").ToProto(def);

  REQUIRE(def.jobs_size() == 3);
  CHECK(def.jobs(0).name() == "chief");
  CHECK(def.jobs(1).name() == "ps");
  CHECK(def.jobs(2).name() == "worker");
  CHECK(def.jobs(2).tasks().at(0) == "w:1");
}

TEST_CASE("a message with a job twice, or with an index beyond int, is refused",
          "[cluster][unit][spec][CSP-01]") {
  v1::ClusterDef def;
  def.add_jobs()->set_name("ps");
  def.add_jobs()->set_name("ps");
  v1::ClusterDef huge;
  huge.add_jobs()->set_name("ps");
  (*huge.mutable_jobs(0)->mutable_tasks())[4'000'000'000u] = "a:1";

  CHECK(ClusterSpec::FromProto(def).status().code() == StatusCode::kInvalidArgument);
  CHECK(ClusterSpec::FromProto(huge).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a sparse job has holes", "[cluster][unit][spec][CSP-02]") {
  const ClusterSpec spec = ClusterSpec::Create({{"worker", {{0, "a"}, {3, "b"}}}}).value();

  CHECK(spec.NumTasks("worker").value() == 2);
  CHECK(spec.TaskIndices("worker").value() == std::vector<int>{0, 3});
  CHECK(spec.JobTasks("worker").value() == Slots{"a", std::nullopt, std::nullopt, "b"});
  CHECK(spec.TaskAddress("worker", 3).value() == "b");
  CHECK(spec.TaskAddress("worker", 2).status().code() == StatusCode::kInvalidArgument);
  CHECK(spec.TaskAddress("worker", -1).status().code() == StatusCode::kInvalidArgument);

  const ClusterSpec other = ClusterSpec::Create({{"ps", {{5, "z"}}}}).value();
  CHECK(other.NumTasks("ps").value() == 1);
  CHECK(other.JobTasks("ps").value().size() == 6);
}

TEST_CASE("a huge index makes no huge list", "[cluster][unit]") {
  const ClusterSpec spec = ClusterSpec::Create({{"ps", {{2'000'000'000, "z"}}}}).value();

  CHECK(spec.JobTasks("ps").status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("indices may be text", "[cluster][unit][spec][CSP-03]") {
  CHECK(FromText(R"({"worker": {"1": "x"}})").TaskIndices("worker").value() == std::vector{1});
  CHECK(FromText(R"({"ps": {"0": "a", "12": "b"}})").TaskAddress("ps", 12).value() == "b");
}

TEST_CASE("a job without tasks is there", "[cluster][unit][spec][CSP-04]") {
  const ClusterSpec spec = FromText(R"({"ps": [], "worker": {}})");

  CHECK(spec.HasJob("ps"));
  CHECK(spec.NumTasks("ps").value() == 0);
  CHECK(spec.JobTasks("worker").value().empty());
  CHECK(spec == ThroughProto(spec));
}

TEST_CASE("a job that is not there is an error in every getter", "[cluster][unit][spec][CSP-05]") {
  const ClusterSpec spec = ClusterSpec::Dense({{"ps", {"a:1"}}, {"worker", {"b:1"}}});

  CHECK(spec.NumTasks("chief").status().code() == StatusCode::kInvalidArgument);
  CHECK(spec.TaskIndices("chief").status().code() == StatusCode::kInvalidArgument);
  CHECK(spec.JobTasks("chief").status().code() == StatusCode::kInvalidArgument);
  CHECK(spec.TaskAddress("chief", 0).status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(spec.NumTasks("chief").status()) ==
        "no job \"chief\" in the cluster; it has ps, worker");
}

TEST_CASE("an empty spec is false, and dense and sparse forms of the same tasks are equal",
          "[cluster][unit][spec][CSP-06]") {
  CHECK_FALSE(static_cast<bool>(ClusterSpec()));
  CHECK(static_cast<bool>(FromText(R"({"ps": []})")));
  CHECK(FromText(R"({"job": {"0": "h"}})") == FromText(R"({"job": ["h"]})"));
  CHECK(FromText(R"({"job": {"1": "b", "0": "a"}})") == FromText(R"({"job": ["a", "b"]})"));
  CHECK_FALSE(FromText(R"({"job": ["a", "b"]})") == FromText(R"({"job": ["b", "a"]})"));
  CHECK_FALSE(FromText(R"({"job": {"1": "h"}})") == FromText(R"({"job": ["h"]})"));
}

TEST_CASE("the text form sorts the jobs", "[cluster][unit][spec][CSP-07]") {
  CHECK(ClusterSpec().ToString() == "ClusterSpec({})");
  CHECK(FromText(R"({"worker": ["w0:1", "w1:1"], "ps": ["p0:1"]})").ToString() ==
        "ClusterSpec({'ps': ['p0:1'], 'worker': ['w0:1', 'w1:1']})");
  CHECK(FromText(R"({"worker": {"3": "w"}, "chief": []})").ToString() ==
        "ClusterSpec({'chief': [], 'worker': {3: 'w'}})");
}

TEST_CASE("JSON of another form is refused and located", "[cluster][unit]") {
  CHECK(JsonError(R"(["a:1"])") ==
        "cluster: a list is given; an object from job name to addresses is wanted");
  CHECK(JsonError(R"({"ps": "a:1"})").find("cluster.ps: text (\"a:1\") is given; a job is") == 0);
  CHECK(JsonError(R"({"ps": ["a:1", 7]})") ==
        "cluster.ps[1]: a number (7) is given, an address \"host:port\" is wanted");
  CHECK(JsonError(R"({"ps": {"x": "a:1"}})") ==
        "cluster.ps[\"x\"]: \"x\" is not an index; 0, 1, 2, .. are");
  CHECK(JsonError(R"({"ps": {"-1": "a:1"}})").find("\"-1\" is not an index") != std::string::npos);
  CHECK(JsonError(R"({"ps": {"1": "a:1", "01": "b:1"}})").find("index 1 is given twice") !=
        std::string::npos);
  CHECK(ClusterSpec::Create({{"ps", {{-1, "a"}}}}).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("an address is host and port", "[cluster][unit]") {
  CHECK(ParseHostPort("ps0.example.com:2222").value().host == "ps0.example.com");
  CHECK(ParseHostPort("ps0:65535").value().port == 65535);
  CHECK(ParseHostPort("[::1]:80").value().host == "::1");

  const auto error = [](const char* text) { return Message(ParseHostPort(text).status()); };
  CHECK(error("ps0") == "\"ps0\" is not host:port");
  CHECK(error(":80") == "\":80\" is not host:port");
  const std::string bare = "; an IPv6 host stands in brackets, [fd00::7]:2222";
  CHECK(error("::1:80") == "\"::1:80\" is not host:port" + bare);
  CHECK(error("fd00::7") == "\"fd00::7\" is not host:port" + bare);
  CHECK(error("[fd00::7]") == "\"[fd00::7]\" is not host:port");
  CHECK(error("http://a:80") == "\"http://a:80\" is not host:port");
  CHECK(error("a:") == "\"a:\": \"\" is not a port; 1 to 65535 is allowed");
  CHECK(error("a:8o") == "\"a:8o\": \"8o\" is not a port; 1 to 65535 is allowed");
  CHECK(error("a:0") == "\"a:0\": port 0 is out of range; 1 to 65535 is allowed");
  CHECK(error("a:65536") == "\"a:65536\": port 65536 is out of range; 1 to 65535 is allowed");
  CHECK(error("a:99999999999") ==
        "\"a:99999999999\": port 99999999999 is out of range; 1 to 65535 is allowed");
  CHECK_FALSE(ParseHostPort("a:-1").ok());
  CHECK_FALSE(ParseHostPort("").ok());
}

}  // namespace
}  // namespace muster::cluster
