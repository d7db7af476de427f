// The command line as data.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cli/exit_code.h"

namespace muster::cli {

enum class Output { kTable, kJson };
enum class Colours { kAuto, kAlways, kNever };

struct Options {
  // "submit", "checkpoints list".
  std::string command;

  // Finding the cluster; empty: by the rules of cluster_finder.h.
  std::string coordinator;
  std::string token_file;
  // Empty: by MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY.
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
  Output output = Output::kTable;
  // auto: on a terminal, unless NO_COLOR is set or TERM is dumb.
  Colours colours = Colours::kAuto;

  // submit
  std::string file;
  std::string name;
  bool wait = false;
  bool dry_run = false;
  bool begin_anew = false;
  // submit of a program: its path and arguments, what stands behind `--`.
  std::vector<std::string> program;
  // So many workers, at most so many; 0: all that are there, 0: `least`.
  struct Workers {
    std::uint32_t least = 0;
    std::uint32_t most = 0;
  };
  Workers job_workers;
  // parameter_server, multi_worker_mirrored, none; empty: what stands behind `--` says it.
  std::string strategy;
  enum class RestartPolicy { kNever, kOnFailure, kExitCode };
  // Not given: never, but of an elastic job on-failure.
  std::optional<RestartPolicy> restart_policy;
  // 0: the default, 3.
  std::uint32_t max_restarts = 0;
  // 0: the default, 1.
  std::uint32_t closures_per_worker = 0;
  std::uint32_t job_servers = 0;
  std::uint64_t memory_bytes = 0;
  // Also up's.
  bool evaluator = false;
  // submit of a command.
  std::vector<std::string> send;
  // For all processes: name and value.
  std::map<std::string, std::string> job_environment;
  // For those that end because another one has failed; 0: the default, 10 s.
  std::chrono::milliseconds end_grace{0};
  // 0: the default, 1.
  std::uint32_t processes_per_worker = 0;

  // What most commands speak of: a job's id or name, and a task ("worker:1").
  std::string job;
  std::string task;
  // submit, logs
  bool follow = false;
  // logs
  std::uint32_t tail = 0;
  std::optional<std::chrono::milliseconds> since;
  // status
  bool wait_ready = false;
  // top
  bool once = false;
  // wait (nullopt: for ever), status (nullopt: a minute)
  std::optional<std::chrono::milliseconds> timeout;
  // stop
  std::chrono::milliseconds grace{60'000};
  // checkpoints gc: also what jobs that have succeeded ended with.
  bool finished = false;
  // backup
  std::string backup_file;
  // checkpoints verify, export
  std::optional<std::uint64_t> step;
  std::string export_file;

  // up
  int ps = 2;
  int workers = 2;
  bool restart = true;
  bool verbose = false;
  std::chrono::milliseconds drain_timeout{30'000};
  std::string state_dir;

  // certs
  struct Certs {
    std::string folder = "certs";
    std::string name;
    int days = 0;  // 0: the command's default
    std::vector<std::string> nodes;
    std::string submitter;
    std::string viewer;
    std::vector<std::string> hosts;
    std::string file;
  };
  Certs certs;

  // bench: handed on as they are.
  std::vector<std::string> rest;
};

// Instead of options: text for stdout (--help) or stderr (a mistake), and what to end with.
struct EarlyExit {
  std::string text;
  ExitCode code = ExitCode::kDone;
  // With -o json a mistake is also data for stdout.
  std::string json = {};
};

std::variant<Options, EarlyExit> ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace muster::cli
