#include "worker/engine/script_error.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <exception>
#include <new>
#include <optional>
#include <regex>
#include <vector>

#include <c10/util/Exception.h>

#include "common/base/suggest.h"

namespace muster::engine {
namespace {

constexpr std::string_view kFrame = "  File \"";

std::string_view Trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \n\t:");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n\t:") - first + 1);
}

void DropEnd(std::string_view& text, std::string_view end) {
  if (text.ends_with(end)) text = Trim(text.substr(0, text.size() - end.size()));
}

// Takes the line that begins at `at`.
std::string_view LineAt(std::string_view text, std::size_t at) {
  return text.substr(at, text.find('\n', at) - at);
}

// File, line and function of `  File "<string>", line 3, in forward`.
void ParseFrame(std::string_view line, ScriptError& error) {
  line.remove_prefix(kFrame.size());
  const auto quote = line.find('"');
  if (quote == std::string_view::npos) return;
  error.file = line.substr(0, quote);
  if (const auto at = line.find("line ", quote); at != std::string_view::npos) {
    std::from_chars(line.data() + at + 5, line.data() + line.size(), error.line);
  }
  if (const auto at = line.find(", in ", quote); at != std::string_view::npos) {
    error.function = line.substr(at + 5);
  }
}

// The marked line of the frame's excerpt: the one above "~~~ <--- HERE".
void ParseExcerpt(std::string_view frame, ScriptError& error) {
  const auto here = frame.find("<--- HERE");
  if (here == std::string_view::npos) return;
  const auto marks_at = frame.rfind('\n', here) + 1;
  const std::string_view marks = LineAt(frame, marks_at);
  error.column = static_cast<int>(marks.find('~')) + 1;
  const auto above = marks_at >= 2 ? frame.rfind('\n', marks_at - 2) + 1 : 0;
  error.excerpt = std::string(LineAt(frame, above)) + "\n" +
                  std::string(marks.substr(0, marks.find_last_of('~') + 1));
}

// The parser points past a line that ends too early; people look at the line itself.
void PointAtEndOfLine(std::string_view source, ScriptError& error) {
  if (error.column != 0 || error.line < 2 ||
      error.message.find("found 'newline'") == std::string::npos) {
    return;
  }
  error.line -= 1;
  std::size_t at = 0;
  for (int i = 1; i < error.line && at != std::string_view::npos; ++i) {
    at = source.find('\n', at);
    if (at != std::string_view::npos) ++at;
  }
  if (at == std::string_view::npos || source.empty()) return;
  const std::string_view line = LineAt(source, at);
  error.column = static_cast<int>(line.size()) + 1;
  error.excerpt = std::string(line) + "\n" + std::string(line.size(), ' ') + "~";
}

constexpr std::string_view kAsserted = "INTERNAL ASSERT FAILED";

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// What an archive's own code has raised: below the traceback a line of its own begins with the
// class, "builtins.ValueError: ...". Empty: nothing of the kind.
std::string_view RaisedBelow(std::string_view frame) {
  for (auto at = frame.find('\n'); at != std::string_view::npos; at = frame.find('\n', at + 1)) {
    const std::string_view line = LineAt(frame, at + 1);
    std::size_t end = 0;
    while (end < line.size() && (IsWord(line[end]) || line[end] == '.')) ++end;
    if (line.substr(0, end).find('.') != std::string_view::npos &&
        line.substr(end).starts_with(": ")) {
      return frame.substr(at + 1);
    }
  }
  return {};
}

// The allocator's words (on Linux, and elsewhere), by themselves or as the interpreter passes them
// on, which leaves nothing of an exception but its text.
bool OutOfMemory(std::string_view what) {
  for (const char* words : {"can't allocate memory", "not enough memory", "std::bad_alloc"}) {
    if (what.find(words) != std::string_view::npos) return true;
  }
  return false;
}

// The line (from 0) whose end is the end of the shortest refused beginning; nullopt: none is
// refused.
std::optional<std::size_t> RefusedLine(const std::vector<std::string_view>& lines,
                                       const std::function<bool(const std::string&)>& refused) {
  std::string beginning;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    beginning += std::string(lines[i]) + "\n";
    if (lines[i].find_first_not_of(" \t\r") != std::string_view::npos && refused(beginning))
      return i;
  }
  return std::nullopt;
}

// Where in the refused line the word (or sign) begins that the parser did not expect.
std::size_t RefusedColumn(const std::string& before, std::string_view line,
                          const std::function<bool(const std::string&)>& refused) {
  std::size_t begin = line.find_first_not_of(" \t");
  while (begin < line.size()) {
    std::size_t end = begin + 1;
    while (end < line.size() && IsWord(line[begin]) && IsWord(line[end])) ++end;
    if (refused(before + std::string(line.substr(0, end)) + "\n")) return begin;
    begin = line.find_first_not_of(" \t", end);
  }
  return line.size();
}

// The first word of the line, when it is a slip of the fingers for one that begins statements.
std::string MeantStatement(std::string_view line) {
  static const std::vector<std::string> kStatements{
      "assert", "break", "continue", "def",    "del",   "elif", "else", "for",
      "if",     "pass",  "raise",    "return", "while", "with", "print"};
  const std::size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
  std::size_t end = begin;
  while (end < line.size() && IsWord(line[end])) ++end;
  return DidYouMean(line.substr(begin, end - begin), kStatements);
}

}  // namespace

Status PlacedSyntaxError(const Status& status, std::string_view where, std::string_view source,
                         const std::function<std::string(const std::string&)>& refusal) {
  if (Message(status).find(kAsserted) == std::string::npos) return status;
  const auto refused = [&](const std::string& text) {
    return refusal(text).find(kAsserted) != std::string::npos;
  };
  std::vector<std::string_view> lines;
  for (std::string_view rest = source; !rest.empty();) {
    lines.push_back(LineAt(rest, 0));
    rest.remove_prefix(std::min(rest.size(), lines.back().size() + 1));
  }
  const std::optional<std::size_t> line = RefusedLine(lines, refused);
  if (!line.has_value()) return status;
  std::string before;
  for (std::size_t i = 0; i < *line; ++i) before += std::string(lines[i]) + "\n";
  const std::size_t column = RefusedColumn(before, lines[*line], refused);
  ScriptError error;
  error.message = "invalid syntax: expected an operator, '=' or the end of the line" +
                  MeantStatement(lines[*line]);
  error.line = static_cast<int>(*line) + 1;
  error.column = static_cast<int>(column) + 1;
  error.excerpt = std::string(lines[*line]) + "\n" + std::string(column, ' ') + "~";
  return InvalidArgument("{}", Describe(error, where));
}

ScriptError ParseScriptError(std::string_view what, std::string_view source) {
  ScriptError error;
  const auto first_frame = what.find(kFrame);
  const auto last_frame = what.rfind(kFrame);
  std::string_view message = what.substr(0, first_frame);
  if (const auto runtime = what.rfind("\nRuntimeError: "); runtime != std::string_view::npos) {
    message = what.substr(runtime + std::string_view("\nRuntimeError: ").size());
  } else if (last_frame != std::string_view::npos) {
    std::string_view raised = RaisedBelow(what.substr(last_frame));
    if (raised.starts_with("builtins.")) raised.remove_prefix(std::string_view("builtins.").size());
    if (!raised.empty()) message = raised;
  }
  message = Trim(message);
  DropEnd(message, "The original call is");
  DropEnd(message, "here");
  static const std::regex kNoise(R"( \(of Python compilation unit at: 0x[0-9a-f]+\)|__torch__\.)");
  error.message = std::regex_replace(std::string(message), kNoise, "");
  if (first_frame == std::string_view::npos) return error;
  ParseFrame(LineAt(what, last_frame), error);
  ParseExcerpt(what.substr(last_frame), error);
  PointAtEndOfLine(source, error);
  return error;
}

std::string Describe(const ScriptError& error, std::string_view where) {
  if (error.line == 0) return fmt::format("{}: {}", where, error.message);
  std::string place(where);
  if (error.file != "<string>" && !error.file.empty()) {
    place += ", " + error.file;
  } else if (!error.function.empty() && error.function != where && error.function != "loss") {
    place += ", in " + error.function;
  }
  place += fmt::format(", line {}", error.line);
  if (error.column != 0) place += fmt::format(", column {}", error.column);
  std::string text = fmt::format("{}: {}", place, error.message);
  if (!error.excerpt.empty()) text += "\n" + error.excerpt;
  return text;
}

Status CurrentException(std::string_view where, std::string_view source) {
  const auto told = [&](std::string_view what) -> Status {
    const std::string text = Describe(ParseScriptError(what, source), where);
    if (OutOfMemory(what)) return ResourceExhausted("{}", text);
    return InvalidArgument("{}", text);
  };
  try {
    throw;
  } catch (const c10::Error& error) {
    return told(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: out of memory", where);
  } catch (const std::exception& error) {
    return told(error.what());
  } catch (...) {
    return Internal("{}: an exception of unknown type", where);
  }
}

}  // namespace muster::engine
