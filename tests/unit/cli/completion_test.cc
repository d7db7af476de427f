// Scripts that complete `muster` in shells.
#include "cli/completion.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <sys/stat.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/cli/early_text.h"

namespace muster::cli {
namespace {

using muster::testing::TempFolder;

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

// What a command writes, line by line.
std::set<std::string> LinesOf(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
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

// What bash would offer, the cursor behind the last word.
std::set<std::string> Bash(const TempFolder& folder, const std::string& words) {
  const std::string script = folder / "muster.bash";
  std::ofstream(script) << TextOf({"completion", "bash"});
  const std::string asks = folder / "ask.bash";
  std::ofstream(asks) << "PATH=" << folder.path() << ":$PATH\n. " << script << "\nCOMP_WORDS=("
                      << words << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_muster\n"
                      << "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  return LinesOf("bash --norc " + asks);
}

// The same of fish, for what has been typed.
std::set<std::string> Fish(const TempFolder& folder, const std::string& typed) {
  const std::string script = folder / "muster.fish";
  std::ofstream(script) << TextOf({"completion", "fish"});
  const std::string home = "HOME=" + folder.path() + " XDG_CONFIG_HOME=" + folder.path();
  return LinesOf(home + " PATH=" + folder.path() + ":$PATH fish --no-config -c '. " + script +
                 "; complete -C \"" + typed + "\" | cut -f1'");
}

// zsh has no word for it: another one presses the key in a terminal of its own, in which what is
// offered goes to a file, too.
constexpr const char* kZshTerminal = R"(zmodload zsh/zpty
cd $1
zpty inner zsh -f -i
zpty -w inner '. ./inner.zsh'
while zpty -r inner line; do [[ $line == *ready* ]] && break; done
zpty -w -n inner "$2"$'\t'
while zpty -t inner; do zpty -r inner line || break; done
cat offered
)";
constexpr const char* kZshInner = R"(PROMPT= RPROMPT=
path=($PWD $path)
fpath=($PWD $fpath)
autoload -U compinit
compinit -u -D
bindkey '^I' complete-word
leave() { exit }
comppostfuncs=(leave)
compadd() {
  # With these it only computes.
  if [[ "${@[1,${@[(i)(-|--)]}]}" != *-(O|A|D)\ * ]]; then
    local -a hits
    builtin compadd -A hits "$@"
    print -rl -- $hits >>offered
  fi
  builtin compadd "$@"
}
: >offered
print ready
)";

std::set<std::string> Zsh(const TempFolder& folder, const std::string& typed) {
  // Where zsh finds it by itself: for its first key.
  std::ofstream(folder / "_muster") << TextOf({"completion", "zsh"});
  std::ofstream(folder / "inner.zsh") << kZshInner;
  std::ofstream(folder / "terminal.zsh") << kZshTerminal;
  return LinesOf("timeout 60 zsh -f " + folder / "terminal.zsh" + " " + folder.path() + " '" +
                 typed + "'");
}

bool IsInstalled(const std::string& shell) {
  if (std::system(("command -v " + shell + " >/dev/null").c_str()) == 0) return true;
  WARN(shell << " is not installed: its script is not tried (group test of tools/packages)");
  return false;
}

// The cluster's jobs and tasks, as a muster in the path says them.
void WriteMuster(const TempFolder& folder) {
  std::ofstream(folder / "muster")
      << "#!/bin/sh\n[ \"$*\" = jobs ] && printf 'JOB NAME\\njob-7 clicks\\n'\n"
         "[ \"$*\" = status ] && printf 'TASK STATE\\nps:0 up\\nworker:0 up\\nworker:1 up\\n'\n";
  ::chmod((folder / "muster").c_str(), 0700);
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
  const TempFolder folder;
  CHECK(Bash(folder, "muster su") == Set{"submit"});
  CHECK(Bash(folder, "muster checkpoints e") == Set{"export"});
  CHECK(Bash(folder, "muster checkpoints export --st") == Set{"--step"});
  CHECK(Bash(folder, "muster submit --dry") == Set{"--dry-run"});
  CHECK(Bash(folder, "muster submit --col") == Set{"--color"});
  CHECK(Bash(folder, "muster --color ''") == Set{"auto", "always", "never"});
  CHECK(Bash(folder, "muster jobs -o ''") == Set{"table", "json"});
  CHECK(Bash(folder, "muster submit --restart-policy on") == Set{"on-failure"});
  // It may stand alone.
  CHECK(Bash(folder, "muster submit --restart on") == Set{"on-failure"});
  CHECK(Bash(folder, "muster submit --restart --wai") == Set{"--wait"});
  CHECK(Bash(folder, "muster completion ''").count("fish") == 1);
  CHECK(Bash(folder, "muster submit --max-restarts ''").empty());
  std::ofstream(folder / "job.yaml") << "";
  CHECK(Bash(folder, "muster submit -f " + folder / "jo") == Set{folder / "job.yaml"});
  CHECK(Bash(folder, "muster submit -- " + folder / "jo") == Set{folder / "job.yaml"});
  // The cluster's jobs, by id and name.
  WriteMuster(folder);
  CHECK(Bash(folder, "muster describe cl") == Set{"clicks"});
  CHECK(Bash(folder, "muster stop job") == Set{"job-7"});
  CHECK(Bash(folder, "muster drain p") == Set{"ps:0"});
  CHECK(Bash(folder, "muster undrain work") == Set{"worker:0", "worker:1"});
  CHECK(Bash(folder, "muster drain worker :") == Set{"0", "1"});
  CHECK(Bash(folder, "muster drain worker : 1") == Set{"1"});
}

TEST_CASE("fish and zsh complete commands, flags, values, files, jobs and tasks", "[cli][unit]") {
  const TempFolder folder;
  WriteMuster(folder);
  const auto complete = [&](std::set<std::string> (*offer)(const TempFolder&, const std::string&)) {
    CHECK(offer(folder, "muster su") == Set{"submit"});
    CHECK(offer(folder, "muster checkpoints e") == Set{"export"});
    CHECK(offer(folder, "muster checkpoints export --st") == Set{"--step"});
    CHECK(offer(folder, "muster submit --dry") == Set{"--dry-run"});
    CHECK(offer(folder, "muster submit --col") == Set{"--color"});
    CHECK(offer(folder, "muster --color ") == Set{"auto", "always", "never"});
    CHECK(offer(folder, "muster --color never su") == Set{"submit"});
    CHECK(offer(folder, "muster jobs -o ") == Set{"table", "json"});
    CHECK(offer(folder, "muster submit --restart-policy on") == Set{"on-failure"});
    CHECK(offer(folder, "muster submit --restart --wai") == Set{"--wait"});
    CHECK(offer(folder, "muster completion ").count("fish") == 1);
    CHECK(offer(folder, "muster describe cl") == Set{"clicks"});
    CHECK(offer(folder, "muster stop job") == Set{"job-7"});
    CHECK(offer(folder, "muster drain p") == Set{"ps:0"});
    CHECK(offer(folder, "muster undrain work") == Set{"worker:0", "worker:1"});
  };
  std::ofstream(folder / "job.yaml") << "";
  SECTION("fish") {
    if (!IsInstalled("fish")) return;
    complete(&Fish);
    CHECK(Fish(folder, "muster submit --restart=on") == Set{"--restart=on-failure"});
    const std::string file = folder / "job.yaml";
    CHECK(Fish(folder, "muster submit -f " + folder / "jo").count(file) == 1);
  }
  SECTION("zsh") {
    if (!IsInstalled("zsh")) return;
    complete(&Zsh);
    CHECK(Zsh(folder, "muster submit --restart on") == Set{"on-failure"});
    // The last part of a path.
    CHECK(Zsh(folder, "muster submit -f " + folder / "jo") == Set{"job.yaml"});
  }
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
