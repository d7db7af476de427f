#include "tests/cluster/pods.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/shell_word.h"
#include "tests/support/manifests.h"

namespace muster::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr const char* kDesk = "desk";

// As names() has them, and the desk.
std::vector<std::string> HostNames(const std::vector<YAML::Node>& objects) {
  std::vector<std::string> names;
  for (const YAML::Node& set : OfKind(objects, "StatefulSet")) {
    for (int i = 0; i < set["spec"]["replicas"].as<int>(); ++i) {
      names.push_back(fmt::format("{}-{}", set["metadata"]["name"].as<std::string>(), i));
    }
  }
  names.emplace_back(kDesk);
  return names;
}

// The root of containers: this machine's, or one of deploy/container that has been unpacked.
std::string Image() {
  const char* const given = std::getenv("MUSTER_TEST_IMAGE");
  return given == nullptr || *given == '\0' ? "/" : given;
}

// "$(NAME)" becomes its value.
std::string Expanded(std::string text, const std::map<std::string, std::string>& environment) {
  for (const auto& [name, value] : environment) {
    const std::string reference = "$(" + name + ")";
    for (std::size_t at = 0; (at = text.find(reference, at)) != std::string::npos;) {
      text.replace(at, reference.size(), value);
      at += value.size();
    }
  }
  return text;
}

// What comes back for a request over a connected socket, as a kubelet asks: over TLS it looks at no
// certificate, and shows none.
std::string Ask(int fd, bool tls, const std::string& request) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                             &SSL_CTX_free);
  const std::unique_ptr<SSL, void (*)(SSL*)> session(SSL_new(context.get()), &SSL_free);
  // OpenSSL writes to a socket that the pod may have closed.
  (void)std::signal(SIGPIPE, SIG_IGN);
  if (tls && (SSL_set_fd(session.get(), fd) != 1 || SSL_connect(session.get()) != 1)) return "";
  const auto length = static_cast<int>(request.size());
  const ssize_t sent = tls ? SSL_write(session.get(), request.data(), length)
                           : ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  while (sent > 0) {
    char bytes[1'024];
    const ssize_t got =
        tls ? SSL_read(session.get(), bytes, sizeof bytes) : ::recv(fd, bytes, sizeof bytes, 0);
    if (got <= 0) break;
    answer.append(bytes, static_cast<std::size_t>(got));
  }
  return answer;
}

// The status code; 0: no answer in that time.
int HttpGet(const std::string& address, int port, const std::string& path, bool tls, int limit_s) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{.tv_sec = limit_s, .tv_usec = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  (void)::inet_pton(AF_INET, address.c_str(), &peer.sin_addr);
  peer.sin_port = htons(static_cast<std::uint16_t>(port));
  const std::string request = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n\r\n", path, address, port);
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0) {
    answer = Ask(fd, tls, request);
  }
  ::close(fd);
  const std::size_t space = answer.find(' ');
  return space == std::string::npos ? 0 : std::atoi(answer.c_str() + space);
}

void Give(const std::string& path, mode_t mode, unsigned group) {
  if (::chown(path.c_str(), 0, group) != 0 || ::chmod(path.c_str(), mode) != 0) {
    throw std::runtime_error("cannot give away " + path);
  }
}

}  // namespace

std::string Pods::WhyNot() {
  if (::getuid() != 0) return "no pods to be had here: it takes root to be another user";
  if (std::string why = Hosts::WhyNot(); !why.empty()) return why;
  const std::string failure = FailureOf(
      {"unshare", "-m", "sh", "-c",
       "mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && "
       "mkdir /mnt/upper /mnt/work /mnt/root && mount -t overlay overlay "
       "-o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root && command -v setpriv"});
  return failure.empty() ? "" : "no pods to be had here: " + failure;
}

Pods::Pods(const std::vector<YAML::Node>& objects,
           const std::map<std::string, std::map<std::string, std::string>>& secrets)
    : secrets_(secrets), hosts_(HostNames(objects)) {
  for (const YAML::Node& map : OfKind(objects, "ConfigMap")) {
    config_maps_[map["metadata"]["name"].as<std::string>()] = map["data"];
  }
  for (const YAML::Node& set : OfKind(objects, "StatefulSet")) {
    const auto name = set["metadata"]["name"].as<std::string>();
    for (int i = 0; i < set["spec"]["replicas"].as<int>(); ++i) {
      Pod pod;
      pod.spec = set["spec"]["template"]["spec"];
      pod.name = fmt::format("{}-{}", name, i);
      pod.index = i;
      names_.push_back(pod.name);
      // What the name service has of a headless Service; one pod's is its own name.
      const auto service = set["spec"]["serviceName"].as<std::string>();
      hosts_.Alias(pod.name, service);
      hosts_.Alias(pod.name, pod.name + "." + service);
      pods_.emplace(pod.name, std::move(pod));
    }
  }
  // Pods come below it.
  Give(folder_.path(), 0711, 0);
}

Pods::~Pods() {
  for (auto& [name, pod] : pods_) {
    if (pod.child) (void)pod.child->End(std::chrono::milliseconds(0));
    pod.child.reset();  // its last lines come before the logs go
  }
}

std::string Pods::EnvironmentValue(const Pod& pod, const YAML::Node& entry) const {
  if (entry["value"]) return entry["value"].as<std::string>();
  const auto field = entry["valueFrom"]["fieldRef"]["fieldPath"].as<std::string>();
  if (field == "metadata.name") return pod.name;
  if (field == "status.podIP") return AddressOf(pod.name);
  if (field == "metadata.labels['apps.kubernetes.io/pod-index']") return std::to_string(pod.index);
  throw std::runtime_error("this harness knows no field " + field);
}

std::map<std::string, std::string> Pods::EnvironmentOf(const Pod& pod) const {
  const YAML::Node container = pod.spec["containers"][0];
  std::map<std::string, std::string> environment{{"PATH", "/opt/muster/bin:/usr/bin:/bin"},
                                                 {"HOSTNAME", pod.name}};
  for (const YAML::Node& from : container["envFrom"]) {
    const YAML::Node& data = config_maps_.at(from["configMapRef"]["name"].as<std::string>());
    for (const auto& entry : data) {
      environment[entry.first.as<std::string>()] = entry.second.as<std::string>();
    }
  }
  for (const YAML::Node& entry : container["env"]) {
    environment[entry["name"].as<std::string>()] =
        Expanded(EnvironmentValue(pod, entry), environment);
  }
  return environment;
}

// As a kubelet makes it, for the pod's group.
Pods::Volume Pods::MakeVolume(const Pod& pod, const YAML::Node& volume) {
  const auto group = pod.spec["securityContext"]["fsGroup"].as<unsigned>();
  Volume made;
  if (const YAML::Node claim = volume["persistentVolumeClaim"]) {
    made.path = folder_ / ("claim-" + claim["claimName"].as<std::string>());
    if (fs::create_directory(made.path)) Give(made.path, 02775, group);
    return made;
  }
  made.path = folder_ / fmt::format("volume-{}", ++folders_);
  fs::create_directory(made.path);
  const YAML::Node secret = volume["secret"];
  if (const YAML::Node map = volume["configMap"]; secret || map) {
    const auto from =
        secret ? secret["secretName"].as<std::string>() : map["name"].as<std::string>();
    for (const auto& [name, text] : secrets_.at(from)) {
      std::ofstream(made.path + "/" + name, std::ios::binary) << text;
      Give(made.path + "/" + name, secret ? 0440 : 0644, group);
    }
    made.read_only = true;
    Give(made.path, 0755, group);
    return made;
  }
  if (!volume["emptyDir"]) throw std::runtime_error("this harness knows no such volume");
  made.memory = volume["emptyDir"]["medium"].IsDefined();
  Give(made.path, 02777, group);
  return made;
}

// What makes the container around the command, and becomes it.
std::string Pods::MakeScript(const Pod& pod) {
  const YAML::Node container = pod.spec["containers"][0];
  const std::string scratch = folder_ / fmt::format("root-{}", ++folders_);
  fs::create_directory(scratch);
  std::string script = fmt::format(
      "set -e\nmount --make-rprivate /\nS={}\nmount -t tmpfs -o mode=755 tmpfs $S\n"
      "mkdir $S/upper $S/work $S/root\nR=$S/root\n"
      "mount -t overlay overlay -o lowerdir={},upperdir=$S/upper,workdir=$S/work $R\n"
      "for one in proc sys dev; do mount --rbind /$one $R/$one; done\n"
      "for one in hosts resolv.conf; do touch $R/etc/$one; mount --bind /etc/$one $R/etc/$one; "
      "done\n",
      ShellWord(scratch), ShellWord(Image()));
  // An image has its programs, and no data.
  const auto show = [&script](const std::string& from, const std::string& at) {
    script +=
        fmt::format("mkdir -p $R{1}\nmount --bind {0} $R{1}\nmount -o remount,bind,ro $R{1}\n",
                    ShellWord(from), at);
  };
  if (Image() == "/") show(MUSTER_BIN, "/opt/muster/bin");
  if (const std::string data = "/usr/share/datasets"; Image() != "/" && fs::exists(data)) {
    show(data, data);
  }
  std::map<std::string, Volume> volumes;
  for (const YAML::Node& volume : pod.spec["volumes"]) {
    volumes[volume["name"].as<std::string>()] = MakeVolume(pod, volume);
  }
  for (const YAML::Node& mount : container["volumeMounts"]) {
    const Volume& volume = volumes.at(mount["name"].as<std::string>());
    const std::string at = "$R" + mount["mountPath"].as<std::string>();
    script += fmt::format("mkdir -p {}\n", at);
    script += volume.memory ? fmt::format("mount -t tmpfs -o mode=1777 tmpfs {}\n", at)
                            : fmt::format("mount --bind {} {}\n", ShellWord(volume.path), at);
    if (volume.read_only) script += fmt::format("mount -o remount,bind,ro {}\n", at);
  }
  if (container["securityContext"]["readOnlyRootFilesystem"].as<bool>()) {
    script += "mount -o remount,ro $R\n";
  }
  const YAML::Node who = pod.spec["securityContext"];
  const auto environment = EnvironmentOf(pod);
  script += fmt::format(
      "exec chroot $R setpriv --reuid {} --regid {} --groups {} --no-new-privs "
      "--bounding-set=-all --inh-caps=-all env -i",
      who["runAsUser"].as<unsigned>(), who["runAsGroup"].as<unsigned>(),
      who["fsGroup"].as<unsigned>());
  for (const auto& [name, value] : environment) script += " " + ShellWord(name + "=" + value);
  for (const char* part : {"command", "args"}) {
    for (const YAML::Node& word : container[part]) {
      script += " " + ShellWord(Expanded(word.as<std::string>(), environment));
    }
  }
  return script + "\n";
}

bool Pods::Start(const std::string& name) {
  Pod& pod = pods_.at(name);
  // Who comes back is another pod, elsewhere.
  if (pod.deleted) hosts_.Readdress(name);
  std::vector<std::string> argv = hosts_.On(name);
  argv.insert(argv.end(), {"unshare", "-m", "sh", "-c", MakeScript(pod)});
  auto child = process::Child::Start(
      {.argv = std::move(argv), .on_line = [this, name](auto, const std::string& line) {
         const MutexLock lock(mutex_);
         logs_[name] += line + "\n";
       }});
  if (!child.ok()) throw std::runtime_error(ToString(child.status()));
  pod.child = *std::move(child);
  const YAML::Node probe = pod.spec["containers"][0]["startupProbe"];
  const seconds most(probe["periodSeconds"].as<int>() * probe["failureThreshold"].as<int>());
  return Eventually(most, [&] { return Probe(name, "startupProbe"); });
}

int Pods::Delete(const std::string& name) {
  Pod& pod = pods_.at(name);
  const process::Exit exit =
      pod.child->End(seconds(pod.spec["terminationGracePeriodSeconds"].as<int>()));
  pod.child.reset();
  pod.deleted = true;
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

int Pods::PortOf(const Pod& pod, const YAML::Node& port) const {
  for (const YAML::Node& one : pod.spec["containers"][0]["ports"]) {
    if (one["name"].as<std::string>() == port.as<std::string>()) {
      return one["containerPort"].as<int>();
    }
  }
  return port.as<int>();
}

bool Pods::Probe(const std::string& name, const std::string& probe) const {
  const Pod& pod = pods_.at(name);
  const YAML::Node how = pod.spec["containers"][0][probe];
  const YAML::Node get = how["httpGet"];
  const int limit = how["timeoutSeconds"] ? how["timeoutSeconds"].as<int>() : 1;
  const bool tls = get["scheme"] && get["scheme"].as<std::string>() == "HTTPS";
  const int code =
      HttpGet(AddressOf(name), PortOf(pod, get["port"]), get["path"].as<std::string>(), tls, limit);
  return code >= 200 && code < 400;
}

int Pods::AnswerTo(const std::string& name, const std::string& path, bool tls) const {
  constexpr int kLimitSeconds = 10;
  return HttpGet(AddressOf(name), PortOf(pods_.at(name), YAML::Node("admin")), path, tls,
                 kLimitSeconds);
}

bool Pods::IsReady(const std::string& pod, seconds limit) const {
  return Eventually(limit, [&] { return Probe(pod, "readinessProbe"); });
}

int Pods::pid(const std::string& pod) const { return pods_.at(pod).child->pid(); }

RunResult Pods::Muster(const std::vector<std::string>& arguments,
                       std::map<std::string, std::string> environment) const {
  std::vector<std::string> argv = hosts_.On(kDesk);
  argv.push_back(fmt::format("{}/muster", MUSTER_BIN));
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  environment["XDG_RUNTIME_DIR"] = folder_.path();
  return RunCommand(argv, environment, seconds(300));
}

std::string Pods::Log(const std::string& pod) const {
  const MutexLock lock(mutex_);
  const auto found = logs_.find(pod);
  return found == logs_.end() ? "" : found->second;
}

}  // namespace muster::testing
