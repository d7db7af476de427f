#include "common/config/manual.h"

#include <fmt/format.h>

#include "common/base/version.h"
#include "common/config/settings_internal.h"

namespace muster::config {

std::string ManualText(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    // Its own sign; a minus that can be copied; what begins a command at the line's begin.
    if (c == '\\') {
      plain += "\\e";
    } else if (c == '-') {
      plain += "\\-";
    } else if ((c == '.' || c == '\'') && (plain.empty() || plain.back() == '\n')) {
      plain += fmt::format("\\&{}", c);
    } else {
      plain += c;
    }
  }
  return plain;
}

std::string ManualHead(std::string_view name, std::string_view about) {
  std::string title(name);
  for (char& c : title) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return fmt::format(".TH {} 1 \"\" \"muster {}\" \"Muster\"\n.SH NAME\n{} \\- {}\n",
                     ManualText(title), Version(), ManualText(name), ManualText(about));
}

std::string ManualOf(std::string_view program, std::string_view about,
                     const std::vector<Setting>& settings) {
  std::string page = ManualHead(program, about);
  page += fmt::format(".SH SYNOPSIS\n.B {} [OPTIONS]\n.SH OPTIONS\n", ManualText(program));
  for (const internal::HelpLine& line : internal::HelpLines(settings)) {
    page += fmt::format(".TP\n.B {}\n{}\n", ManualText(line.flag), ManualText(line.doc));
  }
  page += fmt::format(
      ".P\nEvery option is also an environment variable and a key of the file: {}\n"
      ".SH EXIT STATUS\n0 drained, 1 failed, 2 bad flags, 70 a bug of Muster, 78 bad settings.\n"
      ".SH SEE ALSO\n.BR muster (1)\n",
      ManualText("--some-name, MUSTER_SOME_NAME, some-name. A flag wins over the environment, that "
                 "over the file."));
  return page;
}

}  // namespace muster::config
