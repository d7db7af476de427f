#include <algorithm>
#include <charconv>
#include <optional>
#include <regex>

#include <fmt/core.h>

#include "common/config/job_yaml/job_yaml.h"

namespace muster::config {
namespace {

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

// Where line `line` (from 1) of a block scalar stands in the file; nullopt: it is no such scalar.
std::optional<Position> InBlock(const std::vector<std::string_view>& file, const Position& scalar,
                                std::string_view source, int line, int column) {
  constexpr std::size_t kNear = 4;  // comments and empty lines after "forward: |"
  const std::vector<std::string_view> inner = Lines(source);
  const auto wanted = static_cast<std::size_t>(line - 1);
  if (line < 1 || wanted >= inner.size()) return std::nullopt;
  const auto begin = static_cast<std::size_t>(std::max(0, scalar.line - 1));
  for (std::size_t first = begin; first < begin + kNear; ++first) {
    std::optional<std::size_t> indent;
    bool same = first + inner.size() <= file.size();
    for (std::size_t i = 0; same && i < inner.size(); ++i) {
      if (inner[i].empty()) continue;
      const std::string_view outer = file[first + i];
      if (!indent && outer.ends_with(inner[i])) indent = outer.size() - inner[i].size();
      same = indent && outer.size() >= *indent && outer.substr(*indent) == inner[i] &&
             outer.substr(0, *indent).find_first_not_of(' ') == std::string_view::npos;
    }
    if (same && indent) {
      return Position{static_cast<int>(first + wanted) + 1,
                      static_cast<int>(*indent) + std::max(1, column)};
    }
  }
  return std::nullopt;
}

std::string LocateLine(const JobFile& job, const std::string& text) {
  static const std::regex kPlace(
      R"(^(.*?)\b(forward|loss function)((?:, in [\w.]+)?), line (\d+)(?:, column (\d+))?: )");
  // The library's matcher recurses: no long lines for it.
  constexpr std::size_t kLongest = 2'000;
  std::smatch match;
  if (text.size() > kLongest || !std::regex_search(text, match, kPlace)) return text;
  const bool forward = match[2] == "forward";
  const auto scalar = job.positions.find(forward ? "model.forward" : "loss.function");
  if (scalar == job.positions.end()) return text;
  const std::string& source = forward ? job.spec.model().forward() : job.spec.loss().function();
  const auto number = [](const std::string& digits) {
    int value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  };
  const auto place =
      InBlock(Lines(job.text), scalar->second, source, number(match[4]), number(match[5]));
  if (!place) {
    return fmt::format("{}:{}:{}: {}", job.file, scalar->second.line, scalar->second.column, text);
  }
  return fmt::format("{}:{}:{}: {}{}{}: {}", job.file, place->line, place->column, match[1].str(),
                     match[2].str(), match[3].str(), match.suffix().str());
}

}  // namespace

std::string LocateScript(const JobFile& job, const std::string& message) {
  std::string located;
  for (const std::string_view line : Lines(message)) {
    located += (located.empty() ? "" : "\n") + LocateLine(job, std::string(line));
  }
  return located;
}

}  // namespace muster::config
