#include "common/cluster/json_text.h"

#include <limits>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/number_in.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

std::string Shortened(std::string text) {
  constexpr std::size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "..";
  return text;
}

}  // namespace

Result<json> ParseJson(std::string_view text, std::string_view what) {
  std::vector<std::set<std::string>> open;  // keys of each object that is not closed yet
  std::string twice;
  const auto notice_repeats = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open.back().insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  try {
    json value = json::parse(text, notice_repeats);
    if (!twice.empty()) {
      return InvalidArgument("{}: \"{}\" is given twice in one object", what, Shortened(twice));
    }
    return value;
  } catch (const json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: .." without its number.
    std::string_view reason = error.what();
    if (const auto end = reason.find("] "); end != std::string_view::npos) {
      reason.remove_prefix(end + 2);
    }
    return InvalidArgument("{}: not JSON: {}", what, reason);
  }
}

std::string Describe(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  const std::string text = Shortened(value.dump(-1, ' ', false, json::error_handler_t::replace));
  if (value.is_string()) return "text (" + text + ")";
  if (value.is_number()) return "a number (" + text + ")";
  return text;
}

Result<int> ParseIndex(std::string_view text, std::string_view what) {
  const int index = NumberIn<int>(text).value_or(-1);
  if (index < 0) {
    return InvalidArgument("{}: \"{}\" is not an index; 0, 1, 2, .. are", what,
                           Shortened(std::string(text)));
  }
  return index;
}

Result<int> ToIndex(const json& value, std::string_view what) {
  if (value.is_string()) return ParseIndex(value.get_ref<const std::string&>(), what);
  if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<int>::max()) {
    return InvalidArgument("{}: {} is not an index; 0, 1, 2, .. are", what, Describe(value));
  }
  return value.get<int>();
}

}  // namespace muster::cluster
