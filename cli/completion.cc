#include "cli/completion.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/words.h"

namespace muster::cli {
namespace {

// What takes a value takes one of `choices`, a file, or anything.
struct Flag {
  std::vector<std::string> names;  // with their dashes
  std::string about;
  bool value = false;
  bool optional = false;  // it may stand without its value
  bool file = false;
  std::vector<std::string> choices = {};
};

struct Command {
  std::string path;  // "", "submit", "checkpoints list"
  std::string about;
  std::vector<Flag> flags = {};
  std::string known = {};  // what its first argument is one of: "jobs", "tasks"
  std::vector<std::string> arguments = {};
  std::vector<Command> commands = {};

  std::string name() const { return path.substr(path.rfind(' ') + 1); }
};

// "auto|always|never": all lower case, unlike N|MIN:MAX. In brackets where a value may be left out.
std::vector<std::string> ChoicesIn(std::string type) {
  std::vector<std::string> choices;
  if (type.starts_with('[') && type.ends_with(']')) type = type.substr(1, type.size() - 2);
  if (type.find('|') == std::string::npos) return choices;
  if (std::any_of(type.begin(), type.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) {
    return choices;
  }
  std::istringstream in(type);
  for (std::string one; std::getline(in, one, '|');) choices.push_back(one);
  return choices;
}

Flag FlagOf(const CLI::Option& option) {
  Flag flag{.names = {}, .about = option.get_description()};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  flag.value = option.get_items_expected_max() > 0;
  flag.optional = flag.value && option.get_items_expected_min() == 0;
  const std::string type = option.get_type_name();
  flag.choices = ChoicesIn(type);
  const auto named = [&](const char* name) {
    return std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end();
  };
  flag.file = flag.value && (type == "FILE" || named("--file") || named("--token-file") ||
                             named("--state-dir") || (named("--output") && flag.choices.empty()));
  return flag;
}

Command CommandOf(const CLI::App& app, const std::string& path) {
  Command command{.path = path, .about = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) {
      command.flags.push_back(FlagOf(*option));
    } else if (option->get_name() == "JOB") {
      command.known = "jobs";
    } else if (option->get_name() == "TASK" && command.known.empty()) {
      command.known = "tasks";
    } else {
      for (const std::string& choice : ChoicesIn(option->get_type_name())) {
        command.arguments.push_back(choice);
      }
    }
  }
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    command.commands.push_back(
        CommandOf(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name()));
  }
  return command;
}

// The command and all below it.
std::vector<const Command*> AllOf(const Command& command) {
  std::vector<const Command*> all{&command};
  for (const Command& sub : command.commands) {
    for (const Command* below : AllOf(sub)) all.push_back(below);
  }
  return all;
}

std::vector<std::string> FlagsOf(const Command& command) {
  std::vector<std::string> flags;
  for (const Flag& flag : command.flags) {
    flags.insert(flags.end(), flag.names.begin(), flag.names.end());
  }
  return flags;
}

// All that may come next, but for the whole line's flags.
std::vector<std::string> WordsOf(const Command& command) {
  std::vector<std::string> words = command.arguments;
  for (const Command& sub : command.commands) words.push_back(sub.name());
  if (command.path.empty()) return words;
  for (const std::string& flag : FlagsOf(command)) words.push_back(flag);
  return words;
}

std::string Bash(const Command& root) {
  std::string finds, values, words;
  for (const Command* command : AllOf(root)) {
    for (const Command& sub : command->commands) {
      finds +=
          fmt::format("      \"{}/{}\") command=\"{}\" ;;\n", command->path, sub.name(), sub.path);
    }
    // What the whole line takes may stand anywhere in it.
    const std::string where = command->path.empty() ? "*\"" : "\"" + command->path;
    for (const Flag& flag : command->flags) {
      if (!flag.value) continue;
      std::string patterns;
      for (const std::string& name : flag.names) {
        patterns += fmt::format("{}{} {}\"", patterns.empty() ? "" : "|", where, name);
      }
      std::string gives;
      if (flag.file) gives = "COMPREPLY=($(compgen -f -- \"$current\")); ";
      if (!flag.choices.empty()) {
        gives = fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); ",
                            fmt::join(flag.choices, " "));
      }
      // Behind one that needs no value, other flags may come as well.
      values += fmt::format("    {}) {} ;;\n", patterns,
                            flag.optional ? fmt::format("more=\"{}\"", fmt::join(flag.choices, " "))
                                          : gives + "return");
    }
    words += fmt::format(
        "    \"{}\") words=\"{}{}\" ;;\n", command->path, fmt::join(WordsOf(*command), " "),
        command->known.empty() ? "" : fmt::format(" $(__muster_known_{})", command->known));
  }
  return fmt::format(R"(# bash completion for muster, made by `muster completion bash`.
__muster_known_jobs() {{ muster jobs 2>/dev/null | awk 'NR > 1 {{ print $1; print $2 }}'; }}
__muster_known_tasks() {{ muster status 2>/dev/null | awk '$1 ~ /:[0-9]+$/ {{ print $1 }}'; }}
_muster() {{
  local i command= words= more= stem= current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$command/${{COMP_WORDS[i]}}" in
{}      */--) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
  done
  case "$command $before" in
{}  esac
  case "$command" in
{}  esac
  # bash takes worker:1 for three words, and replaces the last.
  if [[ $current == : ]]; then stem=$before: current=
  elif [[ $before == : ]]; then stem=${{COMP_WORDS[COMP_CWORD - 2]}}:; fi
  COMPREPLY=($(compgen -W "$words $more {}" -- "$stem$current"))
  COMPREPLY=("${{COMPREPLY[@]#"$stem"}}")
}}
complete -o bashdefault -F _muster muster
)",
                     finds, values, words, fmt::join(FlagsOf(root), " "));
}

// For a text in single quotes, in which the characters of `special` mean something to _arguments.
std::string ZshText(const std::string& text, std::string_view special) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      if (special.find(c) != std::string_view::npos) quoted += '\\';
      quoted += c;
    }
  }
  return quoted;
}

// What the whole line takes, too, may stand behind a command.
std::vector<Flag> FlagsBehind(const Command& command, const Command& root) {
  std::vector<Flag> flags = command.flags;
  if (command.path.empty()) return flags;
  const std::vector<std::string> own = FlagsOf(command);
  for (const Flag& flag : root.flags) {
    const bool known = std::any_of(flag.names.begin(), flag.names.end(), [&](const auto& name) {
      return std::find(own.begin(), own.end(), name) != own.end();
    });
    if (!known) flags.push_back(flag);
  }
  return flags;
}

// The arguments of _arguments for one command.
std::string ZshArguments(const Command& command, const Command& root) {
  std::string lines;
  for (const Flag& flag : FlagsBehind(command, root)) {
    for (const std::string& name : flag.names) {
      const std::string value = !flag.value ? ""
                                : flag.file ? ":file:_files"
                                            : fmt::format("{}:value:({})", flag.optional ? ":" : "",
                                                          fmt::join(flag.choices, " "));
      lines += fmt::format(" \\\n      '{}[{}]{}'", name, ZshText(flag.about, "[]:"), value);
    }
  }
  if (!command.known.empty()) {
    lines += fmt::format(" \\\n      '1:{0}:($(__muster_known_{0}))'", command.known);
  }
  if (!command.arguments.empty()) {
    lines += fmt::format(" \\\n      '1:value:({})'", fmt::join(command.arguments, " "));
  }
  return lines;
}

std::string ZshFunction(const Command& command, const Command& root) {
  std::string name = "_muster";
  for (const char c : command.path.empty() ? "" : "_" + command.path) name += c == ' ' ? '_' : c;
  std::string text = fmt::format("{}() {{\n", name);
  if (command.commands.empty()) {
    return text + fmt::format("  _arguments -s{}\n}}\n", ZshArguments(command, root));
  }
  std::string choices, cases;
  for (const Command& sub : command.commands) {
    choices += fmt::format(" {}\\:\"{}\"", sub.name(), ZshText(sub.about, "\"$`\\:"));
    cases += fmt::format("    {}) {}_{} ;;\n", sub.name(), name, sub.name());
  }
  text += fmt::format(
      "  local curcontext=$curcontext state line\n"
      "  _arguments -C{} \\\n      '1:command:(({}))' \\\n      '*::argument:->rest'\n"
      "  case $line[1] in\n{}  esac\n}}\n",
      ZshArguments(command, root), choices.substr(1), cases);
  for (const Command& sub : command.commands) text += ZshFunction(sub, root);
  return text;
}

std::string Zsh(const Command& root) {
  return "#compdef muster\n# zsh completion for muster, made by `muster completion zsh`.\n"
         "__muster_known_jobs() { muster jobs 2>/dev/null | awk 'NR > 1 { print $1; print $2 }' "
         "}\n"
         "__muster_known_tasks() { muster status 2>/dev/null | awk '$1 ~ /:[0-9]+$/ { print $1 }' "
         "}\n" +
         ZshFunction(root, root) +
         // Found in zsh's path it is the body of _muster, which is run when the key is pressed for
         // the first time.
         "if [[ $funcstack[1] == _muster ]]; then _muster \"$@\"; else compdef _muster muster; "
         "fi\n";
}

std::string Fish(const Command& root) {
  std::string text =
      "# fish completion for muster, made by `muster completion fish`.\n"
      "function ___muster_known_jobs\n"
      "  command muster jobs 2>/dev/null | awk 'NR > 1 { print $1; print $2 }'\n"
      "end\n"
      "function ___muster_known_tasks\n"
      "  command muster status 2>/dev/null | awk '$1 ~ /:[0-9]+$/ { print $1 }'\n"
      "end\n"
      "complete -c muster -f\n";
  for (const Command* command : AllOf(root)) {
    // All words of the path have been typed, and no word of a command below.
    std::string seen;
    std::istringstream path(command->path);
    for (std::string word; path >> word;) {
      seen += fmt::format("{}__fish_seen_subcommand_from {}", seen.empty() ? "" : "; and ", word);
    }
    std::vector<std::string> below;
    for (const Command& sub : command->commands) below.push_back(sub.name());
    std::string here = seen;
    if (!below.empty()) {
      here += fmt::format("{}not __fish_seen_subcommand_from {}", here.empty() ? "" : "; and ",
                          fmt::join(below, " "));
    }
    const auto when = [](const std::string& condition) {
      return condition.empty() ? "" : fmt::format(" -n {}", Quoted(condition));
    };
    for (const Command& sub : command->commands) {
      text += fmt::format("complete -c muster{} -a {} -d {}\n", when(here), sub.name(),
                          Quoted(sub.about));
    }
    for (const std::string& argument : command->arguments) {
      text += fmt::format("complete -c muster{} -a {}\n", when(here), argument);
    }
    if (!command->known.empty()) {
      text += fmt::format("complete -c muster{} -a '(___muster_known_{})'\n", when(here),
                          command->known);
    }
    for (const Flag& flag : command->flags) {
      text += fmt::format("complete -c muster{}", when(seen));
      for (const std::string& name : flag.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (flag.value && !flag.optional) text += flag.file ? " -r -F" : " -x";
      if (!flag.choices.empty()) text += fmt::format(" -a '{}'", fmt::join(flag.choices, " "));
      text += fmt::format(" -d {}\n", Quoted(flag.about));
    }
  }
  return text;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, Shell shell) {
  const Command root = CommandOf(app, "");
  switch (shell) {
    case Shell::kBash:
      return Bash(root);
    case Shell::kZsh:
      return Zsh(root);
    case Shell::kFish:
      break;
  }
  return Fish(root);
}

}  // namespace muster::cli
