#include "common/cluster/slurm_resolver.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "common/base/number_in.h"
#include "common/base/words.h"

namespace muster::cluster {
namespace {

// The texts come from outside; "n[1-999999999999]" must not take the memory of a machine.
constexpr std::size_t kMost = 65536;

std::optional<int> ToNumber(std::string_view text) {
  const auto number = NumberIn<int>(text);
  return number.value_or(-1) < 0 ? std::nullopt : number;
}

// Splits at commas that stand outside brackets; nothing when brackets do not match or are nested.
std::optional<std::vector<std::string_view>> SplitOutside(std::string_view text) {
  std::vector<std::string_view> pieces;
  bool inside = false;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[' || c == ']') {
      if (inside == (c == '[')) return std::nullopt;
      inside = !inside;
    } else if (c == ',' && (!inside || i == text.size())) {
      pieces.push_back(text.substr(start, i - start));
      start = i + 1;
    }
  }
  if (inside) return std::nullopt;
  return pieces;
}

// "3-4,6" -> 3 4 6, each as wide as it is written.
std::optional<std::vector<std::string>> ExpandNumbers(std::string_view text) {
  std::vector<std::string> numbers;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view range = text.substr(0, comma);
    const std::size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const std::optional<int> low = ToNumber(first);
    const std::optional<int> high = ToNumber(last);
    if (!low || !high || *high < *low ||
        static_cast<std::size_t>(*high - *low) >= kMost - numbers.size()) {
      return std::nullopt;
    }
    // Wider than a number, which goes on behind the greatest of its kind.
    for (std::int64_t n = *low; n <= *high; ++n) {
      numbers.push_back(fmt::format("{:0{}}", n, first.size()));
    }
    if (comma == text.size()) return numbers;
    text.remove_prefix(comma + 1);
  }
}

// "rack[1-2]n[3-4]-ib": every bracket multiplies what stands before it.
std::optional<std::vector<std::string>> ExpandHost(std::string_view text) {
  std::vector<std::string> hosts = {""};
  while (!text.empty()) {
    const std::size_t open = std::min(text.find('['), text.size());
    for (std::string& host : hosts) host += text.substr(0, open);
    if (open == text.size()) break;
    const std::size_t close = text.find(']', open);
    const auto numbers = ExpandNumbers(text.substr(open + 1, close - open - 1));
    if (!numbers || numbers->size() * hosts.size() > kMost) return std::nullopt;
    std::vector<std::string> longer;
    for (const std::string& host : hosts) {
      for (const std::string& number : *numbers) longer.push_back(host + number);
    }
    hosts = std::move(longer);
    text.remove_prefix(close + 1);
  }
  return hosts;
}

// "1,GPU-5c1f,MIG-7" as CUDA reads it: it hides every device from the first on that does not exist,
// and names that none can have (-1, Slurm's NoDevFiles) are the usual way to say so.
std::vector<std::string> VisibleDevices(std::string_view text) {
  std::vector<std::string> devices;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, comma);
    if (!ToNumber(one) && !one.starts_with("GPU-") && !one.starts_with("MIG-")) return devices;
    devices.emplace_back(one);
    if (comma == text.size()) return devices;
    text.remove_prefix(comma + 1);
  }
}

Result<std::string> SlurmVariable(const Environment& environment, const std::string& name) {
  const std::optional<std::string> value = environment("SLURM_" + name);
  if (!value || value->empty()) {
    return FailedPrecondition(
        "SLURM_{} is not set; this resolver works inside a job step started by srun", name);
  }
  return *value;
}

Result<int> SlurmNumber(const Environment& environment, const std::string& name) {
  MUSTER_TRY_ASSIGN(const std::string text, SlurmVariable(environment, name));
  const std::optional<int> number = ToNumber(text);
  if (!number) return InvalidArgument("SLURM_{}: \"{}\" is not a whole number", name, text);
  return *number;
}

}  // namespace

Result<std::vector<std::string>> ExpandHostList(std::string_view list) {
  const auto refused = [&] {
    return InvalidArgument("\"{}\" is not a list of hosts such as n[1-2],m5 (of at most {} hosts)",
                           list, kMost);
  };
  const auto pieces = SplitOutside(list);
  if (!pieces) return refused();
  std::vector<std::string> hosts;
  for (const std::string_view piece : *pieces) {
    const auto some = ExpandHost(piece);
    if (!some || piece.empty() || hosts.size() + some->size() > kMost) return refused();
    hosts.insert(hosts.end(), some->begin(), some->end());
  }
  return hosts;
}

Result<std::vector<int>> ExpandTasksPerNode(std::string_view text) {
  const auto refused = [&] {
    return InvalidArgument("\"{}\" is not a list of tasks per node such as 3(x2),2", text);
  };
  std::vector<int> tasks;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view piece = rest.substr(0, comma);
    int times = 1;
    if (const std::size_t open = piece.find("(x"); open != std::string_view::npos) {
      if (piece.back() != ')') return refused();
      const auto given = ToNumber(piece.substr(open + 2, piece.size() - open - 3));
      if (!given || *given == 0) return refused();
      times = *given;
      piece = piece.substr(0, open);
    }
    const auto number = ToNumber(piece);
    if (!number || tasks.size() + static_cast<std::size_t>(times) > kMost) return refused();
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), *number);
    if (comma == rest.size()) return tasks;
    rest.remove_prefix(comma + 1);
  }
}

Result<SlurmResolver::Nodes> SlurmResolver::ReadNodes(const Environment& environment,
                                                      const Options& options) {
  MUSTER_TRY_ASSIGN(const std::string list, SlurmVariable(environment, "STEP_NODELIST"));
  const Result<std::vector<std::string>> hosts = ExpandHostList(list);
  if (!hosts.ok()) return Annotate(hosts.status(), "SLURM_STEP_NODELIST");
  Nodes nodes;
  if (options.tasks_per_node) {
    for (const std::string& host : *hosts) nodes.emplace_back(host, *options.tasks_per_node);
    return nodes;
  }
  MUSTER_TRY_ASSIGN(const std::string text, SlurmVariable(environment, "STEP_TASKS_PER_NODE"));
  const Result<std::vector<int>> tasks = ExpandTasksPerNode(text);
  if (!tasks.ok()) return Annotate(tasks.status(), "SLURM_STEP_TASKS_PER_NODE");
  if (tasks->size() != hosts->size()) {
    return FailedPrecondition(
        "SLURM_STEP_NODELIST has {} ({}), SLURM_STEP_TASKS_PER_NODE has {} ({})",
        Counted(hosts->size(), "node"), list, tasks->size(), text);
  }
  for (std::size_t i = 0; i < hosts->size(); ++i) nodes.emplace_back((*hosts)[i], (*tasks)[i]);
  return nodes;
}

Result<std::vector<SlurmResolver::Place>> SlurmResolver::ReadPlaces(const Environment& environment,
                                                                    const Nodes& nodes) {
  // "cyclic:block,Pack": how ranks go to nodes, to sockets, to cores.
  const std::string text = environment("SLURM_DISTRIBUTION").value_or("");
  const std::string how = text.substr(0, text.find_first_of(":,="));
  int each = std::numeric_limits<int>::max();
  if (how == "cyclic") {
    each = 1;
  } else if (how == "plane") {
    MUSTER_TRY_ASSIGN(each, SlurmNumber(environment, "DIST_PLANESIZE"));
    if (each < 1) return InvalidArgument("SLURM_DIST_PLANESIZE: {}; 1 and more are allowed", each);
  } else if (!how.empty() && how != "block" && how != "*") {
    return FailedPrecondition(
        "SLURM_DISTRIBUTION is {}: block, cyclic and plane tell which rank is on which node; start "
        "the step by one of them",
        text);
  }
  std::vector<Place> places;
  std::vector<int> placed(nodes.size());
  std::map<std::string, int> on_host;
  for (bool more = true; more;) {
    more = false;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      const int now = std::min(each, nodes[node].second - placed[node]);
      for (int k = 0; k < now; ++k) {
        places.push_back({.node = node, .local = on_host[nodes[node].first]++});
      }
      placed[node] += now;
      more = more || placed[node] < nodes[node].second;
    }
  }
  return places;
}

Result<SlurmResolver::Gpus> SlurmResolver::FindGpus(const Environment& environment,
                                                    const Options& options) {
  Gpus gpus;
  if (options.gpus_per_node) {
    gpus.per_node = *options.gpus_per_node;
  } else if (const auto visible = environment("CUDA_VISIBLE_DEVICES")) {
    gpus.names = VisibleDevices(*visible);
    gpus.per_node = static_cast<int>(gpus.names.size());
  } else if (!environment("SLURM_GPUS_ON_NODE").value_or("").empty()) {
    MUSTER_TRY_ASSIGN(gpus.per_node, SlurmNumber(environment, "GPUS_ON_NODE"));
  } else if (options.count_gpus) {
    gpus.per_node = options.count_gpus();
  }
  return gpus;
}

Result<SlurmResolver::Gpus> SlurmResolver::ReadGpus(const Environment& environment,
                                                    const Options& options, int fullest_node) {
  MUSTER_TRY_ASSIGN(Gpus gpus, FindGpus(environment, options));
  gpus.per_task =
      options.gpus_per_task.value_or(fullest_node == 0 ? 0 : gpus.per_node / fullest_node);
  if (gpus.per_node < 0 || gpus.per_task < 0) {
    return InvalidArgument("GPUs per node: {}, per task: {}; neither may be negative",
                           gpus.per_node, gpus.per_task);
  }
  if (std::int64_t{gpus.per_task} * fullest_node > gpus.per_node) {
    return FailedPrecondition(
        "requested more GPUs per node than available: {} with {} each, the node has {}",
        Counted(fullest_node, "task"), gpus.per_task, gpus.per_node);
  }
  return gpus;
}

Result<std::unique_ptr<SlurmResolver>> SlurmResolver::Create(const Environment& environment) {
  return Create(environment, Options());
}

Result<std::unique_ptr<SlurmResolver>> SlurmResolver::Create(const Environment& environment,
                                                             Options options) {
  if (options.tasks_per_node.value_or(0) < 0) {
    return InvalidArgument("{} tasks per node; 0 and more are allowed", *options.tasks_per_node);
  }
  MUSTER_TRY_ASSIGN(const int rank, SlurmNumber(environment, "PROCID"));
  MUSTER_TRY_ASSIGN(Nodes nodes, ReadNodes(environment, options));
  std::int64_t assigned = 0;
  std::map<std::string, int> on_host;
  int fullest = 0;
  for (const auto& [host, tasks] : nodes) {
    assigned += tasks;
    fullest = std::max(fullest, on_host[host] += tasks);
  }
  if (options.jobs.empty()) {
    MUSTER_TRY_ASSIGN(options.jobs["worker"], SlurmNumber(environment, "STEP_NUM_TASKS"));
  }
  std::int64_t requested = 0;
  for (const auto& [job, tasks] : options.jobs) {
    if (tasks < 0) return InvalidArgument("{} tasks of job {}; 0 and more are allowed", tasks, job);
    requested += tasks;
  }
  if (requested != assigned) {
    return FailedPrecondition("requested {} but {} {} assigned to the step",
                              Counted(requested, "task"), assigned,
                              Agreeing(assigned, "was", "were"));
  }
  if (rank >= assigned) {
    return FailedPrecondition("SLURM_PROCID is {}, but the step has {}", rank,
                              Counted(assigned, "task"));
  }
  if (options.port_base < 1 || std::int64_t{options.port_base} + fullest - 1 > 65535) {
    return InvalidArgument("ports {} and up for {} on a node; 1 to 65535 is allowed",
                           options.port_base, Counted(fullest, "task"));
  }
  MUSTER_TRY_ASSIGN(Gpus gpus, ReadGpus(environment, options, fullest));
  MUSTER_TRY_ASSIGN(std::vector<Place> places, ReadPlaces(environment, nodes));
  return std::unique_ptr<SlurmResolver>(new SlurmResolver(
      std::move(options), std::move(nodes), std::move(places), std::move(gpus), rank));
}

SlurmResolver::SlurmResolver(Options options, Nodes nodes, std::vector<Place> places, Gpus gpus,
                             int rank)
    : ClusterResolver({.rpc_layer = options.rpc_layer}),
      options_(std::move(options)),
      nodes_(std::move(nodes)),
      places_(std::move(places)),
      gpus_(std::move(gpus)),
      rank_(rank) {}

Result<ClusterSpec> SlurmResolver::Cluster() {
  std::vector<std::string> addresses;
  for (const auto& [node, local] : places_) {
    addresses.push_back(fmt::format("{}:{}", nodes_[node].first, options_.port_base + local));
  }
  ClusterSpec::DenseJobs jobs;
  int first = 0;
  for (const auto& [job, tasks] : options_.jobs) {
    jobs[job].assign(addresses.begin() + first, addresses.begin() + first + tasks);
    if (rank_ >= first && rank_ < first + tasks) {
      own_.task_type = job;
      own_.task_id = rank_ - first;
    }
    first += tasks;
  }
  return ClusterSpec::Dense(jobs);
}

Result<AcceleratorCounts> SlurmResolver::NumAccelerators(const ClusterTask&) {
  return AcceleratorCounts{{"GPU", gpus_.per_task}};
}

std::string SlurmResolver::VisibleGpus() const {
  const int local = places_[static_cast<std::size_t>(rank_)].local;
  std::vector<std::string> gpus;
  for (int k = 0; k < gpus_.per_task; ++k) {
    const int gpu = local * gpus_.per_task + k;
    gpus.push_back(gpus_.names.empty() ? std::to_string(gpu)
                                       : gpus_.names[static_cast<std::size_t>(gpu)]);
  }
  return fmt::format("{}", fmt::join(gpus, ","));
}

}  // namespace muster::cluster
