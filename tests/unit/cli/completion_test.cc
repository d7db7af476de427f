// Scripts that complete `muster` in shells.
#include "cli/completion.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <sys/stat.h>

#include "tests/unit/cli/early_text.h"
#include "tests/unit/services_common/temp_dir.h"

namespace muster::cli {
namespace {

// The words of a page of --help that match.
std::set<std::string> Matches(const std::string& page, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(page.begin(), page.end(), regex), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

std::set<std::string> Commands(const std::vector<std::string>& line) {
  const std::string page = TextOf(line);
  return Matches(page.substr(page.find("Subcommands:")), "\n  ([a-z]+) ");
}

// What bash would offer, the cursor behind the last word.
std::set<std::string> Bash(const TempDir& folder, const std::string& words) {
  const std::string script = folder.path() + "/muster.bash";
  std::ofstream(script) << TextOf({"completion", "bash"});
  const std::string asks = folder.path() + "/ask.bash";
  std::ofstream(asks) << "PATH=" << folder.path() << ":$PATH\n. " << script << "\nCOMP_WORDS=("
                      << words << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_muster\n"
                      << "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  std::FILE* const pipe = ::popen(("bash --norc " + asks).c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) {
    output.append(part.data(), got);
  }
  REQUIRE(::pclose(pipe) == 0);
  std::set<std::string> offered;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) offered.insert(line);
  }
  return offered;
}

using Set = std::set<std::string>;

TEST_CASE("each command and flag that --help names is in the scripts of all shells",
          "[cli][unit]") {
  const std::string shell = GENERATE("bash", "zsh", "fish");
  const std::string script = TextOf({"completion", shell});
  std::size_t flags = 0;
  for (const std::string& command : Commands({"--help"})) {
    CAPTURE(shell, command);
    CHECK(script.find(command) != std::string::npos);
    if (command == "bench") continue;  // another program's
    for (const std::string& flag : Matches(TextOf({command, "--help"}), "(--[a-z][a-z-]+)")) {
      const std::string written = shell == "fish" ? "-l " + flag.substr(2) : flag;
      CAPTURE(flag);
      CHECK(script.find(written) != std::string::npos);
      ++flags;
    }
  }
  CHECK(flags > 40);
}

TEST_CASE("bash completes commands, flags, values, files and jobs", "[cli][unit]") {
  const TempDir folder;
  CHECK(Bash(folder, "muster su") == Set{"submit"});
  CHECK(Bash(folder, "muster checkpoints e") == Set{"export"});
  CHECK(Bash(folder, "muster checkpoints export --st") == Set{"--step"});
  CHECK(Bash(folder, "muster submit --dry") == Set{"--dry-run"});
  CHECK(Bash(folder, "muster submit --col") == Set{"--color"});
  CHECK(Bash(folder, "muster --color ''") == Set{"auto", "always", "never"});
  CHECK(Bash(folder, "muster jobs -o ''") == Set{"table", "json"});
  CHECK(Bash(folder, "muster submit --restart-policy on") == Set{"on-failure"});
  CHECK(Bash(folder, "muster completion ''").count("fish") == 1);
  CHECK(Bash(folder, "muster submit --max-restarts ''").empty());
  std::ofstream(folder.path() + "/job.yaml") << "";
  CHECK(Bash(folder, "muster submit -f " + folder.path() + "/jo") ==
        Set{folder.path() + "/job.yaml"});
  CHECK(Bash(folder, "muster submit -- " + folder.path() + "/jo") ==
        Set{folder.path() + "/job.yaml"});
  // The cluster's jobs, by id and name.
  std::ofstream(folder.path() + "/muster")
      << "#!/bin/sh\n[ \"$*\" = jobs ] && printf 'JOB NAME\\njob-7 clicks\\n'\n"
         "[ \"$*\" = status ] && printf 'TASK STATE\\nps:0 up\\nworker:0 up\\nworker:1 up\\n'\n";
  ::chmod((folder.path() + "/muster").c_str(), 0700);
  CHECK(Bash(folder, "muster describe cl") == Set{"clicks"});
  CHECK(Bash(folder, "muster stop job") == Set{"job-7"});
  CHECK(Bash(folder, "muster drain p") == Set{"ps:0"});
  CHECK(Bash(folder, "muster undrain work") == Set{"worker:0", "worker:1"});
  CHECK(Bash(folder, "muster drain worker :") == Set{"0", "1"});
  CHECK(Bash(folder, "muster drain worker : 1") == Set{"1"});
}

TEST_CASE("a shell that is not known is refused with those that are", "[cli][unit]") {
  const auto parsed = ParseCommandLine({"completion", "tcsh"});
  const auto* early = std::get_if<EarlyExit>(&parsed);
  REQUIRE(early != nullptr);
  CHECK(early->code == ExitCode::kUsage);
  CHECK(early->text.find("fish") != std::string::npos);
}

}  // namespace
}  // namespace muster::cli
