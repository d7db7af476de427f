// deploy/kubernetes against the code: names, ports, flags, settings, rights.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/version.h"
#include "common/process/child.h"
#include "tests/support/catch.h"
#include "tests/support/manifests.h"

namespace muster::testing {
namespace {

const std::string kDeploy = std::string(MUSTER_SOURCE) + "/deploy";
const std::string kBase = kDeploy + "/kubernetes/base";

std::vector<YAML::Node> Objects() {
  static const std::vector<YAML::Node> objects = LoadManifests(kBase);
  return objects;
}

std::string Text(const YAML::Node& node) { return node.as<std::string>(); }

// The settings that a daemon knows, as flags: "--task".
std::set<std::string> FlagsOf(const std::string& daemon) {
  std::set<std::string> flags;
  auto child = process::Child::Start({.argv = {std::string(MUSTER_BIN) + "/" + daemon, "--help"},
                                      .on_line = [&flags](auto, const std::string& line) {
                                        if (line.starts_with("  --"))
                                          flags.insert(line.substr(2, line.find(' ', 2) - 2));
                                      }});
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(std::chrono::seconds(30)).ok());
  child->reset();  // its last line has come
  return flags;
}

std::string FlagOf(std::string variable) {
  variable.erase(0, std::string("MUSTER_").size());
  for (char& c : variable) c = c == '_' ? '-' : static_cast<char>(std::tolower(c));
  return "--" + variable;
}

// A name that an object has of a map from label to value.
std::map<std::string, std::string> Labels(const YAML::Node& map) {
  std::map<std::string, std::string> labels;
  for (const auto& entry : map) labels[Text(entry.first)] = Text(entry.second);
  return labels;
}

bool Selects(const YAML::Node& selector, const YAML::Node& labels) {
  const auto has = Labels(labels);
  for (const auto& [name, value] : Labels(selector)) {
    if (!has.contains(name) || has.at(name) != value) return false;
  }
  return true;
}

YAML::Node ContainerOf(const YAML::Node& set) {
  const YAML::Node containers = set["spec"]["template"]["spec"]["containers"];
  REQUIRE(containers.size() == 1);
  return containers[0];
}

std::map<std::string, int> PortsOf(const YAML::Node& container) {
  std::map<std::string, int> ports;
  for (const YAML::Node& port : container["ports"]) {
    ports[Text(port["name"])] = port["containerPort"].as<int>();
  }
  return ports;
}

// "host:5000" to 5000.
int PortIn(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

TEST_CASE("every flag and every setting of the manifests is a daemon's", "[deploy][kubernetes]") {
  std::set<std::string> known;
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    const YAML::Node container = ContainerOf(set);
    REQUIRE(container["command"].size() == 1);
    const std::string daemon = Text(container["command"][0]);
    CAPTURE(daemon);
    const std::set<std::string> flags = FlagsOf(daemon);
    CHECK(flags.contains("--task"));
    for (const YAML::Node& argument : container["args"]) {
      const std::string flag = Text(argument).substr(0, Text(argument).find('='));
      CAPTURE(flag);
      CHECK(flags.contains(flag));
    }
    known.insert(flags.begin(), flags.end());
  }

  const std::string tls = kDeploy + "/kubernetes/components/tls";
  for (const std::string& file : {kBase + "/settings.yaml", tls + "/settings.yaml"}) {
    for (const auto& entry : YAML::LoadFile(file)["data"]) {
      CAPTURE(file, Text(entry.first));
      CHECK(known.contains(FlagOf(Text(entry.first))));
    }
  }
}

TEST_CASE("ports, names and selectors of the manifests lead to each other",
          "[deploy][kubernetes]") {
  const YAML::Node settings = OfKind(Objects(), "ConfigMap").at(0)["data"];
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    const YAML::Node pod = set["spec"]["template"];
    const YAML::Node container = ContainerOf(set);
    const auto ports = PortsOf(container);
    CAPTURE(Text(set["metadata"]["name"]));
    CHECK(ports.at("admin") == settings["MUSTER_ADMIN_PORT"].as<int>());
    for (const YAML::Node& argument : container["args"]) {
      if (Text(argument).starts_with("--listen=")) {
        CHECK(PortIn(Text(argument)) == ports.at("grpc"));
      }
      if (Text(argument).starts_with("--data-listen=")) {
        CHECK(PortIn(Text(argument)) == ports.at("data"));
      }
    }
    for (const char* probe : {"startupProbe", "livenessProbe", "readinessProbe"}) {
      CAPTURE(probe);
      const YAML::Node get = container[probe]["httpGet"];
      CHECK(ports.contains(Text(get["port"])));
      CHECK(Text(get["path"]) == (probe == std::string("readinessProbe") ? "/readyz" : "/healthz"));
    }
    CHECK(Selects(set["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]));
    CHECK(Text(container["envFrom"][0]["configMapRef"]["name"]) ==
          Text(OfKind(Objects(), "ConfigMap").at(0)["metadata"]["name"]));
    std::set<std::string> volumes;
    for (const YAML::Node& volume : pod["spec"]["volumes"]) volumes.insert(Text(volume["name"]));
    for (const YAML::Node& mount : container["volumeMounts"]) {
      CHECK(volumes.erase(Text(mount["name"])) == 1);
    }
    CHECK(volumes.empty());

    int services = 0;
    for (const YAML::Node& service : OfKind(Objects(), "Service")) {
      if (Text(service["metadata"]["name"]) != Text(set["spec"]["serviceName"])) continue;
      ++services;
      CHECK(Text(service["spec"]["clusterIP"]) == "None");
      CHECK(Selects(service["spec"]["selector"], pod["metadata"]["labels"]));
      for (const YAML::Node& port : service["spec"]["ports"]) {
        CHECK(ports.at(Text(port["targetPort"])) == port["port"].as<int>());
      }
    }
    CHECK(services == 1);
  }
  // Where everybody looks for the coordinator.
  const std::string coordinator = Text(settings["MUSTER_COORDINATOR"]);
  bool found = false;
  for (const YAML::Node& service : OfKind(Objects(), "Service")) {
    found = found || (coordinator == Text(service["metadata"]["name"]) + ":5000" &&
                      service["spec"]["ports"][0]["port"].as<int>() == 5'000);
  }
  CHECK(found);
}

TEST_CASE("pods are what the restricted standard asks for, and have room to drain",
          "[deploy][kubernetes]") {
  const YAML::Node settings = OfKind(Objects(), "ConfigMap").at(0)["data"];
  const int drain_s = std::stoi(Text(settings["MUSTER_DRAIN_TIMEOUT"]));
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    const YAML::Node pod = set["spec"]["template"]["spec"];
    const YAML::Node container = ContainerOf(set);
    const YAML::Node rights = container["securityContext"];
    CAPTURE(Text(set["metadata"]["name"]));
    CHECK(pod["securityContext"]["runAsNonRoot"].as<bool>());
    CHECK(pod["securityContext"]["runAsUser"].as<int>() > 0);
    CHECK(Text(pod["securityContext"]["seccompProfile"]["type"]) == "RuntimeDefault");
    CHECK_FALSE(pod["automountServiceAccountToken"].as<bool>());
    CHECK_FALSE(rights["allowPrivilegeEscalation"].as<bool>());
    CHECK(rights["readOnlyRootFilesystem"].as<bool>());
    CHECK(Text(rights["capabilities"]["drop"][0]) == "ALL");
    for (const char* of : {"requests", "limits"}) {
      CHECK(container["resources"][of]["cpu"].IsDefined());
      CHECK(container["resources"][of]["memory"].IsDefined());
    }
    // What a daemon may still do when its drain's time is over: services/common/daemon.cc.
    constexpr int kLastWork_s = 15;
    CHECK(pod["terminationGracePeriodSeconds"].as<int>() >= drain_s + kLastWork_s);
    CHECK_FALSE(container["lifecycle"].IsDefined());  // a second SIGTERM ends a daemon at once
  }
  CHECK(Text(OfKind(Objects(), "Namespace")
                 .at(0)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]) ==
        "restricted");
}

// Keys of all maps of a document, those inside a patch that is a text, too, and the parts of paths,
// which a patch by operations has instead.
void AddKeys(const YAML::Node& node, std::set<std::string>& keys) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      keys.insert(Text(entry.first));
      AddKeys(entry.second, keys);
    }
  } else if (node.IsSequence()) {
    for (const YAML::Node& one : node) AddKeys(one, keys);
  } else if (node.IsScalar() && Text(node).find('\n') != std::string::npos) {
    AddKeys(YAML::Load(Text(node)), keys);
  } else if (node.IsScalar() && Text(node).starts_with('/')) {
    std::istringstream path(Text(node));
    for (std::string part; std::getline(path, part, '/');) keys.insert(part);
  }
}

TEST_CASE("SIGTERM reaches the daemon of a pod and has its time whichever components there are",
          "[deploy][kubernetes]") {
  // Each of these would have to be weighed against the others again: docs/kubernetes.md.
  const std::set<std::string> theirs = {"command", "lifecycle", "preStop", "MUSTER_DRAIN_TIMEOUT",
                                        "terminationGracePeriodSeconds"};
  int files = 0;
  for (const char* folder : {"/kubernetes/components", "/kubernetes/cluster"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(kDeploy + folder)) {
      if (file.path().extension() != ".yaml") continue;
      ++files;
      std::set<std::string> keys;
      for (const YAML::Node& document : YAML::LoadAllFromFile(file.path())) AddKeys(document, keys);
      for (const std::string& one : theirs) {
        CAPTURE(file.path().string(), one);
        CHECK_FALSE(keys.contains(one));
      }
    }
  }
  CHECK(files > 5);
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    const YAML::Node container = ContainerOf(set);
    CAPTURE(Text(set["metadata"]["name"]));
    CHECK(Text(container["command"][0]).starts_with("muster-"));  // no shell before it
    for (const YAML::Node& argument : container["args"]) {
      CHECK_FALSE(Text(argument).starts_with("--drain-timeout"));  // would win over the setting
    }
  }
}

TEST_CASE("whoever holds variables or jobs is not evicted together, and strangers stay out",
          "[deploy][kubernetes]") {
  std::set<std::string> guarded;
  for (const YAML::Node& budget : OfKind(Objects(), "PodDisruptionBudget")) {
    CHECK(budget["spec"]["maxUnavailable"].as<int>() == 1);
    for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
      if (Selects(budget["spec"]["selector"]["matchLabels"],
                  set["spec"]["template"]["metadata"]["labels"])) {
        guarded.insert(Text(set["metadata"]["name"]));
      }
    }
  }
  CHECK(guarded == std::set<std::string>{"muster-coordinator", "muster-ps"});
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    int policies = 0;
    for (const YAML::Node& policy : OfKind(Objects(), "NetworkPolicy")) {
      policies += Selects(policy["spec"]["podSelector"]["matchLabels"],
                          set["spec"]["template"]["metadata"]["labels"])
                      ? 1
                      : 0;
    }
    CHECK(policies >= 1);
  }
}

TEST_CASE("pods run the image that deploy/container makes of this version, without a registry",
          "[deploy][kubernetes]") {
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    const YAML::Node container = ContainerOf(set);
    CAPTURE(Text(set["metadata"]["name"]));
    CHECK(Text(container["image"]) == fmt::format("localhost/muster:{}", Version()));
    CHECK(Text(container["imagePullPolicy"]) == "IfNotPresent");
  }
  std::ifstream build(kDeploy + "/container/build");
  const std::string script{std::istreambuf_iterator<char>(build), {}};
  CHECK(script.find("localhost/muster:$version") != std::string::npos);
}

TEST_CASE("one pod mounts the coordinator's state, and all mount the checkpoints",
          "[deploy][kubernetes]") {
  std::map<std::string, std::set<std::string>> mounted;
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    for (const YAML::Node& volume : set["spec"]["template"]["spec"]["volumes"]) {
      if (const YAML::Node claim = volume["persistentVolumeClaim"]) {
        mounted[Text(claim["claimName"])].insert(Text(set["metadata"]["name"]));
      }
    }
  }
  CHECK(mounted == std::map<std::string, std::set<std::string>>{
                       {"muster-state", {"muster-coordinator"}},
                       {"muster-checkpoints", {"muster-coordinator", "muster-ps", "muster-worker"}},
                   });
  std::map<std::string, std::string> modes;
  for (const YAML::Node& claim : OfKind(Objects(), "PersistentVolumeClaim")) {
    modes[Text(claim["metadata"]["name"])] = Text(claim["spec"]["accessModes"][0]);
  }
  CHECK(modes == std::map<std::string, std::string>{{"muster-state", "ReadWriteOnce"},
                                                    {"muster-checkpoints", "ReadWriteMany"}});
}

// Labels "job" and "role" of a target.
using JobAndRole = std::pair<std::string, std::string>;

// What Prometheus' operator gives the pods of deploy/kubernetes.
std::set<JobAndRole> TargetsOfPods() {
  std::set<JobAndRole> targets;
  const YAML::Node monitor =
      YAML::LoadAllFromFile(kDeploy + "/kubernetes/components/monitoring/scrape.yaml").at(0);
  REQUIRE(Text(monitor["kind"]) == "PodMonitor");
  for (const YAML::Node& set : OfKind(Objects(), "StatefulSet")) {
    const YAML::Node pod = set["spec"]["template"]["metadata"];
    if (!Selects(monitor["spec"]["selector"]["matchLabels"], pod["labels"])) continue;
    for (const YAML::Node& endpoint : monitor["spec"]["podMetricsEndpoints"]) {
      if (!PortsOf(ContainerOf(set)).contains(Text(endpoint["port"]))) continue;
      JobAndRole target{
          Text(monitor["metadata"]["namespace"]) + "/" + Text(monitor["metadata"]["name"]), ""};
      auto labels = Labels(pod["labels"]);
      if (const YAML::Node label = monitor["spec"]["jobLabel"]) target.first = labels[Text(label)];
      std::map<std::string, std::string> meta;
      for (const auto& [name, value] : labels) {
        meta["__meta_kubernetes_pod_label_" +
             std::regex_replace(name, std::regex("[^A-Za-z0-9]"), "_")] = value;
      }
      for (const YAML::Node& rule : endpoint["relabelings"]) {
        if (Text(rule["targetLabel"]) == "role") {
          target.second = meta[Text(rule["sourceLabels"][0])];
        }
      }
      targets.insert(target);
    }
  }
  return targets;
}

// What deploy/monitoring/prometheus.yaml gives.
std::set<JobAndRole> TargetsOfHosts() {
  std::set<JobAndRole> targets;
  const YAML::Node config = YAML::LoadFile(kDeploy + "/monitoring/prometheus.yaml");
  for (const YAML::Node& scrape : config["scrape_configs"]) {
    for (const YAML::Node& group : scrape["static_configs"]) {
      targets.insert({Text(scrape["job_name"]), Text(group["labels"]["role"])});
    }
  }
  return targets;
}

TEST_CASE("pods have the labels that alerts and the dashboard ask for, as hosts have",
          "[deploy][kubernetes]") {
  const std::set<JobAndRole> targets = TargetsOfPods();

  CHECK(targets == TargetsOfHosts());
  std::set<std::string> given;
  for (const auto& [job, role] : targets) {
    given.insert(fmt::format("job=\"{}\"", job));
    given.insert(fmt::format("role=\"{}\"", role));
  }
  int asked = 0;
  for (const char* name : {"/monitoring/alerts.yaml", "/monitoring/dashboard.json"}) {
    std::ifstream file(kDeploy + name);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    text = std::regex_replace(text, std::regex(R"(\\")"), "\"");
    const std::regex label(R"re([{ ,]((job|role)="[^"]*"))re");
    for (std::sregex_iterator at(text.begin(), text.end(), label), end; at != end; ++at) {
      CAPTURE(name, at->str(1));
      CHECK(given.contains(at->str(1)));
      ++asked;
    }
  }
  CHECK(asked >= 5);
}

}  // namespace
}  // namespace muster::testing
