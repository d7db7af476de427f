#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "common/base/suggest.h"
#include "common/config/settings.h"
#include "common/config/settings_internal.h"

namespace muster::config {
namespace {

std::string_view Placeholder(Kind kind) {
  switch (kind) {
    case Kind::kString:
      return " TEXT";
    case Kind::kInt:
      return " N";
    case Kind::kDuration:
      return " DURATION";
    case Kind::kSize:
      return " SIZE";
    case Kind::kList:
      return " A,B,..";
    case Kind::kBool:
      break;
  }
  return "";
}

Status UnknownFlag(std::string_view name, const std::vector<Setting>& settings) {
  std::vector<std::string> known;
  for (const std::string& setting : internal::Names(settings)) known.push_back("--" + setting);
  for (const char* common : {"--config", "--example-config", "--help", "--manual", "--version"})
    known.emplace_back(common);
  const std::string flag = fmt::format("--{}", name);
  const std::string hint = DidYouMean(flag, known);
  return InvalidArgument("unknown flag {}{}", flag,
                         hint.empty() ? "; --help lists the flags" : hint);
}

std::string AboutOf(const Setting& setting) {
  if (setting.choices.empty()) return setting.doc;
  return fmt::format("{} One of {}.", setting.doc, fmt::join(setting.choices, ", "));
}

// One command line on its way into Flags.
class FlagReader {
 public:
  FlagReader(int argc, const char* const* argv, const std::vector<Setting>& settings)
      : arguments_(argv + (argc > 0 ? 1 : 0), argv + argc), settings_(settings) {}

  Result<Flags> Read() {
    for (at_ = 0; at_ < arguments_.size(); ++at_) {
      const std::string& argument = arguments_[at_];
      if (argument == "-h") {
        flags_.help = true;
      } else if (argument.size() > 2 && argument.starts_with("--")) {
        MUSTER_TRY(ReadOne(argument.substr(2)));
      } else {
        return Stray(argument);
      }
    }
    return std::move(flags_);
  }

 private:
  Status ReadOne(const std::string& argument) {
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);
    if (bool* const asked = name == "help"             ? &flags_.help
                            : name == "version"        ? &flags_.version
                            : name == "example-config" ? &flags_.example_config
                            : name == "manual"         ? &flags_.manual
                                                       : nullptr) {
      if (value) return InvalidArgument("--{} takes no value, \"{}\" was given", name, *value);
      *asked = true;
      return Ok();
    }
    if (name == "config") {
      MUSTER_TRY_ASSIGN(flags_.config_file, TakeValue(name, value));
      return Ok();
    }
    if (const Setting* setting = internal::FindSetting(settings_, name)) {
      if (setting->kind == Kind::kBool && !value) value = "true";
      MUSTER_TRY_ASSIGN(const std::string text, TakeValue(name, value));
      return Keep(*setting, text);
    }
    if (name.starts_with("no-") && !value) {
      const Setting* setting = internal::FindSetting(settings_, name.substr(3));
      if (setting != nullptr && setting->kind == Kind::kBool) return Keep(*setting, "false");
    }
    return UnknownFlag(name, settings_);
  }

  // The text after '=', else the next argument. A value that begins with "--" needs the '=' form,
  // so that a forgotten value is noticed.
  Result<std::string> TakeValue(const std::string& name, const std::optional<std::string>& value) {
    if (value) return *value;
    if (at_ + 1 >= arguments_.size() || arguments_[at_ + 1].starts_with("--")) {
      return InvalidArgument("--{} needs a value: --{}=VALUE", name, name);
    }
    return arguments_[++at_];
  }

  Status Keep(const Setting& setting, const std::string& text) {
    const Origin origin{.layer = Origin::Layer::kFlag, .where = "--" + setting.name};
    MUSTER_TRY(internal::CheckValue(setting, text, origin));
    flags_.values[setting.name] = text;
    return Ok();
  }

  Status Stray(const std::string& argument) const {
    if (at_ > 0 && internal::ParseBool(argument).ok()) {
      return InvalidArgument("unexpected argument \"{}\"; to give a switch a value write {}={}",
                             argument, arguments_[at_ - 1], argument);
    }
    return InvalidArgument("unexpected argument \"{}\"; --help lists the flags", argument);
  }

  const std::vector<std::string> arguments_;
  const std::vector<Setting>& settings_;
  std::size_t at_ = 0;
  Flags flags_;
};

}  // namespace

Result<Flags> ParseFlags(int argc, const char* const* argv, const std::vector<Setting>& settings) {
  return FlagReader(argc, argv, settings).Read();
}

std::vector<internal::HelpLine> internal::HelpLines(const std::vector<Setting>& settings) {
  std::vector<HelpLine> lines;
  for (const Setting& setting : settings) {
    std::string doc = AboutOf(setting);
    if (!setting.fallback.empty()) doc += fmt::format(" Default {}.", setting.fallback);
    lines.push_back({fmt::format("--{}{}", setting.name, Placeholder(setting.kind)), doc});
  }
  lines.push_back({"--config FILE", "YAML file with settings."});
  lines.push_back({"--example-config", "Print such a file, with every setting as a comment."});
  lines.push_back({"--help", "Print this page."});
  lines.push_back({"--manual", "Print it for man(1)."});
  lines.push_back({"--version", "Print the version."});
  return lines;
}

std::string HelpText(std::string_view program, std::string_view about,
                     const std::vector<Setting>& settings) {
  const std::vector<internal::HelpLine> lines = internal::HelpLines(settings);
  std::size_t width = 0;
  for (const internal::HelpLine& line : lines) width = std::max(width, line.flag.size());

  std::string page = fmt::format("{}: {}\n\nUsage: {} [flags]\n\n", program, about, program);
  for (const internal::HelpLine& line : lines) {
    page += fmt::format("  {:<{}}  {}\n", line.flag, width, line.doc);
  }
  page +=
      "\nEvery flag is also an environment variable (--some-name: MUSTER_SOME_NAME) and a key of "
      "the\n"
      "file (some-name). A flag wins over the environment, that over the file, that over the "
      "default.\n";
  return page;
}

std::string ExampleConfig(std::string_view program, const std::vector<Setting>& settings) {
  constexpr std::size_t kColumns = 96;
  std::string file = fmt::format(
      "# Settings of {}. Each is shown with its default; take the # away to change one.\n"
      "# A flag (--some-name) wins over the environment (MUSTER_SOME_NAME), that over this file.\n",
      program);
  for (const Setting& setting : settings) {
    std::string line;
    file += '\n';
    std::istringstream words(AboutOf(setting));
    for (std::string word; words >> word;) {
      if (line.size() + 1 + word.size() > kColumns) file += "#" + std::exchange(line, "") + "\n";
      line += " " + word;
    }
    file += fmt::format("#{}\n#{}:{}{}\n", line, setting.name, setting.fallback.empty() ? "" : " ",
                        setting.fallback);
  }
  return file;
}

}  // namespace muster::config
