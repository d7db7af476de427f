#include "cli/format.h"

#include <algorithm>
#include <ctime>
#include <string_view>

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <google/protobuf/util/json_util.h>
#include <nlohmann/json.hpp>

#include "common/base/utf8.h"
#include "common/messages/job_state.h"

namespace muster::cli {
namespace {

std::string ToJson(const google::protobuf::Message& message, bool whitespace) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = whitespace;
  options.always_print_primitive_fields = true;
  std::string text;
  // Fails only for messages with Any or bad UTF-8 text; then nothing better can be said.
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) text = "{}";
  if (text.empty() || text.back() != '\n') text += '\n';
  return text;
}

std::tm LocalTime(std::int64_t ms) { return fmt::localtime(static_cast<std::time_t>(ms / 1000)); }

}  // namespace

std::string Reason(const v1::Job& job) {
  return job.reason() == StateName(job.state()) ? "" : job.reason();
}

std::string PageUrl(const std::string& page_address) {
  return fmt::format("{}{}/", page_address.find("://") == std::string::npos ? "http://" : "",
                     page_address);
}

std::string TaskName(const v1::Task& task) {
  return task.type().empty() ? "" : fmt::format("{}:{}", task.type(), task.index());
}

std::string Seconds(double seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} d", seconds / 86400);
}

std::string Thousands(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return text;
}

std::string ClockTime(std::int64_t ms) {
  return fmt::format("{:%H:%M:%S}.{:03}", LocalTime(ms), ms % 1000);
}

std::string DateTime(std::int64_t ms) { return fmt::format("{:%Y-%m-%d %H:%M:%S}", LocalTime(ms)); }

std::string_view Cut(std::string_view line, int columns) {
  std::size_t end = 0;
  for (int n = 0; columns > 0 && n < columns && end < line.size(); ++n) {
    end += std::max<std::size_t>(Utf8Length(line.substr(end)), 1);
  }
  return columns > 0 ? line.substr(0, end) : line;
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string Json(const google::protobuf::Message& message) { return ToJson(message, true); }
std::string ErrorJson(const Status& status, const std::vector<std::string>& problems) {
  nlohmann::ordered_json error{{"code", static_cast<int>(status.code())},
                               {"name", CodeName(status.code())},
                               {"message", Message(status)}};
  if (!problems.empty()) error["problems"] = problems;
  return nlohmann::ordered_json{{"error", error}}.dump(
             -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

std::string JsonLine(const google::protobuf::Message& message) { return ToJson(message, false); }

}  // namespace muster::cli
