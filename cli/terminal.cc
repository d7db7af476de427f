#include "cli/terminal.h"

#include <iostream>

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace muster::cli {
namespace {

constexpr int kFallbackColumns = 80;

int Columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                           : kFallbackColumns;
}

ScreenSize SizeOfOut() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return {.rows = size.ws_row, .columns = size.ws_col};
}

}  // namespace

std::string Paint(const Terminal& terminal, Colour colour, std::string_view text) {
  if (!terminal.colour) return std::string(text);
  const char* const code = colour == Colour::kGreen ? "32" : colour == Colour::kRed ? "31" : "33";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

bool WantsColour(Colours colours, const Environment& environment, bool terminal) {
  if (colours != Colours::kAuto) return colours == Colours::kAlways;
  return terminal && environment("TERM").value_or("dumb") != "dumb" &&
         environment("NO_COLOR").value_or("").empty();
}

Terminal ProcessTerminal(const Environment& environment, Colours colours) {
  const bool dumb = environment("TERM").value_or("dumb") == "dumb";
  const bool live = ::isatty(STDERR_FILENO) == 1 && !dumb;
  const bool shown = ::isatty(STDOUT_FILENO) == 1;
  return {.out = std::cout,
          .err = std::cerr,
          .live = live,
          .screen = live && shown,
          .colour = WantsColour(colours, environment, shown),
          .columns = Columns(),
          .size = SizeOfOut};
}

}  // namespace muster::cli
