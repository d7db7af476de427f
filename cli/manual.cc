#include "cli/manual.h"

#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/flags.h"
#include "common/config/manual.h"

namespace muster::cli {
namespace {

using config::ManualText;

// "-f, --file FILE"
std::string Head(const CLI::Option& option) {
  std::string head;
  for (const std::string& name : option.get_snames()) head += (head.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) head += (head.empty() ? "--" : ", --") + name;
  if (option.get_items_expected_max() > 0) head += " " + option.get_type_name();
  return head;
}

bool IsHelp(const CLI::Option& option) { return option.check_name("--help"); }

std::string Entry(const std::string& head, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", ManualText(head), ManualText(text));
}

std::string Usage(const CLI::App& app, const std::string& path) {
  std::string usage = path;
  const auto flags =
      app.get_options([](const CLI::Option* one) { return one->nonpositional() && !IsHelp(*one); });
  if (!flags.empty()) {
    usage += " [OPTIONS]";
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) continue;
    usage += option->get_required() ? " " + option->get_name() : " [" + option->get_name() + "]";
  }
  if (!app.get_subcommands(nullptr).empty()) usage += " COMMAND";
  return usage + Behind(app);
}

// Arguments, then options.
std::string Entries(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional()) text += Entry(option->get_name(), option->get_description());
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional() && !IsHelp(*option)) {
      text += Entry(Head(*option), option->get_description());
    }
  }
  return text;
}

}  // namespace

std::string ManualPage(const CLI::App& app, const std::string& command) {
  const CLI::App* at = &app;
  if (!command.empty()) {
    const auto subs = app.get_subcommands(nullptr);
    const auto found = std::find_if(
        subs.begin(), subs.end(), [&](const CLI::App* sub) { return sub->get_name() == command; });
    if (found == subs.end()) return "";
    at = *found;
  }
  const std::string path = command.empty() ? "muster" : "muster " + command;
  const std::string title = command.empty() ? "muster" : "muster-" + command;
  std::string page = config::ManualHead(title, at->get_description());
  page += fmt::format(".SH SYNOPSIS\n.B {}\n", ManualText(Usage(*at, path)));
  if (const std::string entries = Entries(*at); !entries.empty()) page += ".SH OPTIONS\n" + entries;
  const auto below = at->get_subcommands(nullptr);
  if (!below.empty()) page += ".SH COMMANDS\n";
  for (const CLI::App* sub : below) {
    if (command.empty()) {
      page += Entry(sub->get_name(), sub->get_description());
    } else {
      page += fmt::format(".SS {}\n{}\n{}", ManualText(Usage(*sub, path + " " + sub->get_name())),
                          ManualText(sub->get_description()), Entries(*sub));
    }
  }
  if (command.empty()) {
    return page +
           ".SH SEE ALSO\n.BR muster-COMMAND (1)\nof each command, and\n"
           ".BR muster-coordinator (1),\n.BR muster-ps (1),\n.BR muster-worker (1)\n";
  }
  return page + ".SH SEE ALSO\n.BR muster (1),\nwhose options each command takes\n";
}

std::string ManualList(const CLI::App& app) {
  std::string list;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) list += sub->get_name() + "\n";
  return list;
}

}  // namespace muster::cli
