// Where words and data go: data to `out`, words to `err`.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "common/base/environment.h"

namespace muster::cli {

// 0: not known.
struct ScreenSize {
  int rows = 0;
  int columns = 0;
};

struct Terminal {
  std::ostream& out;
  std::ostream& err;
  // A person watches `err`: progress is one line that is drawn again and again.
  bool live = false;
  // And `out`: it may be drawn on as a whole.
  bool screen = false;
  // `out` may have colours.
  bool colour = false;
  int columns = 80;
  // The screen that `out` is, at that moment: windows are resized. May be empty.
  std::function<ScreenSize()> size = {};
};

enum class Colour { kGreen, kRed, kYellow };

// `text` in that colour, or as it is.
std::string Paint(const Terminal& terminal, Colour colour, std::string_view text);

// Whether stdout has colours. `terminal`: it is one. NO_COLOR and TERM are asked for `auto` alone.
bool WantsColour(Colours colours, const Environment& environment, bool terminal);
// This process's own: stdout and stderr.
Terminal ProcessTerminal(const Environment& environment, Colours colours);

}  // namespace muster::cli
