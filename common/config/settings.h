// The settings of a program: declared once, given by flag > environment > YAML file > default.
//
//   const std::vector<Setting> settings = {
//       {.name = "lease", .kind = Kind::kDuration, .fallback = "3s", .doc = "Silence that loses a
//       task."},
//   };
//   ParseFlags(argc, argv, settings)        --lease 5s   --lease=5s          error: exit code 2
//   Resolve(settings, flags, environment)   MUSTER_LEASE=5s, or "lease: 5s" in the file of --config
//                                                                            error: exit code 78
//   values->Duration("lease")
//
// One name everywhere: the flag --max-message-size is the variable MUSTER_MAX_MESSAGE_SIZE and the
// key max-message-size (or max_message_size) of the file. An empty environment variable counts as
// not set. Every program also has --config FILE (MUSTER_CONFIG), --example-config, --help,
// --manual and --version.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster::config {

enum class Kind {
  kString,
  kInt,
  kBool,      // flag --name, --no-name or --name=false; true false yes no on off 1 0
  kDuration,  // "500ms", see units.h
  kSize,      // "256MiB", see units.h
  kList,      // "a,b" as a flag or variable; a YAML list or "a,b" in the file
};

struct Setting {
  std::string name;  // lower case with dashes
  Kind kind = Kind::kString;
  // As it would be written in a flag. Empty: not set, and reads as 0, false or nothing.
  std::string fallback = {};
  std::string doc = {};  // one line for --help
  // kString: the only values allowed, unless empty.
  std::vector<std::string> choices = {};
  // kInt, kDuration in seconds and kSize in bytes: the least and the greatest value allowed.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

// Where a value came from.
struct Origin {
  enum class Layer { kDefault, kFile, kEnvironment, kFlag };
  Layer layer = Layer::kDefault;
  // "--lease", "MUSTER_LEASE", "/etc/muster/ps.yaml:3:8", "default".
  std::string where = "default";
};

// What the command line gave. Values are text, already checked against their kind.
struct Flags {
  std::map<std::string, std::string> values;  // by setting name
  std::optional<std::string> config_file;
  bool help = false;
  bool version = false;
  bool example_config = false;
  bool manual = false;
};

// Reads a command line (argv[0] is the program). Of a flag given twice the last counts.
//   kInvalidArgument: an unknown flag ("did you mean"), no value, a bad value, or a stray argument.
[[nodiscard]] Result<Flags> ParseFlags(int argc, const char* const* argv,
                                       const std::vector<Setting>& settings);

// The page for --help.
[[nodiscard]] std::string HelpText(std::string_view program, std::string_view about,
                                   const std::vector<Setting>& settings);

// A file for --config with every setting as a comment: what it means, its default.
[[nodiscard]] std::string ExampleConfig(std::string_view program,
                                        const std::vector<Setting>& settings);

// Settings with their values. Asking for a name that was not declared, or as another kind than
// declared, is a bug of the caller and aborts.
class Values {
 public:
  [[nodiscard]] std::string String(std::string_view name) const;
  [[nodiscard]] std::int64_t Int(std::string_view name) const;
  [[nodiscard]] bool Bool(std::string_view name) const;
  // Rounded up: what somebody has given is not 0, which often means never.
  template <class D = std::chrono::milliseconds>
  [[nodiscard]] D Duration(std::string_view name) const {
    return std::chrono::ceil<D>(Nanoseconds(name));
  }
  [[nodiscard]] std::uint64_t Size(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> List(std::string_view name) const;

  // Whether somebody gave a value (that is, it is not the default).
  [[nodiscard]] bool Given(std::string_view name) const;
  [[nodiscard]] const Origin& OriginOf(std::string_view name) const;

  // "lease = 5s (MUSTER_LEASE)", one for each setting in the order declared: for a log at start.
  [[nodiscard]] std::vector<std::string> Describe() const;

 private:
  friend Result<Values> Resolve(const std::vector<Setting>&, const Flags&, const Environment&);
  struct Entry {
    Setting setting;
    std::string text;
    Origin origin;
  };
  const Entry& Find(std::string_view name) const;
  const std::string& Text(std::string_view name, Kind kind) const;
  std::chrono::nanoseconds Nanoseconds(std::string_view name) const;

  std::vector<Entry> entries_;
};

// Puts the layers together. The file is the one that --config or else MUSTER_CONFIG names, if any.
//   kInvalidArgument: a bad value, or in the file an unknown key ("did you mean"), a key given
//   twice,
//                     a value of the wrong form, or no YAML; each with file:line:column.
//   kNotFound, kPermissionDenied, kUnavailable: the file cannot be read.
[[nodiscard]] Result<Values> Resolve(const std::vector<Setting>& settings, const Flags& flags,
                                     const Environment& environment);

// "max-message-size" -> "MUSTER_MAX_MESSAGE_SIZE".
[[nodiscard]] std::string EnvironmentName(std::string_view setting);

}  // namespace muster::config
