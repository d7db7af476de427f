// What TorchScript says went wrong, in one form: its compiler, its parser and its interpreter each
// have their own.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster::engine {

struct ScriptError {
  // The sentence alone; may have several lines (suggestions).
  std::string message;
  // Where: the innermost call. Line and column count from 1; 0 = not said.
  std::string file;  // "<string>" for source of a job file
  std::string function;
  int line = 0;
  int column = 0;
  // The source line and the marks below it; empty when not said.
  std::string excerpt;
};

// `what`: what() of an exception of libtorch. `source`: the text that was compiled, "" if unknown.
[[nodiscard]] ScriptError ParseScriptError(std::string_view what, std::string_view source);

// "forward, line 3, column 12: undefined value x" and the excerpt below it. `where` names the text
// ("forward", "loss function"); source files of an archive are named instead.
[[nodiscard]] std::string Describe(const ScriptError& error, std::string_view where);

// libtorch's parser asserts ("report a bug to PyTorch"), and names no place, where a statement goes
// on after its end: `retrn x`. It reads from left to right, so that the shortest beginning of
// `source` which it refuses in that way ends at the place. `refusal` answers what() of parsing a
// text, an empty text when it parses. Any other `status` is returned as it is.
[[nodiscard]] Status PlacedSyntaxError(
    const Status& status, std::string_view where, std::string_view source,
    const std::function<std::string(const std::string&)>& refusal);

// The exception being handled, as a Status; call it in a catch block only. kInvalidArgument for
// what the user's program does, kResourceExhausted when memory ran out.
[[nodiscard]] Status CurrentException(std::string_view where, std::string_view source);

}  // namespace muster::engine
