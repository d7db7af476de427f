#include "common/config/settings.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "common/base/byte_count.h"
#include "common/base/suggest.h"
#include "common/config/settings_internal.h"
#include "common/config/units.h"

namespace muster::config {
namespace internal {

const Setting* FindSetting(const std::vector<Setting>& settings, std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const Setting& setting) { return setting.name == dashed; });
  return found == settings.end() ? nullptr : &*found;
}

std::vector<std::string> Names(const std::vector<Setting>& settings) {
  std::vector<std::string> names;
  for (const Setting& setting : settings) names.push_back(setting.name);
  return names;
}

std::vector<std::string> SplitList(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view piece = text.substr(0, comma);
    while (!piece.empty() && piece.front() == ' ') piece.remove_prefix(1);
    while (!piece.empty() && piece.back() == ' ') piece.remove_suffix(1);
    if (!piece.empty()) pieces.emplace_back(piece);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return pieces;
}

Result<bool> ParseBool(std::string_view text) {
  for (const std::string_view yes : {"true", "yes", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"false", "no", "off", "0"}) {
    if (text == no) return false;
  }
  return InvalidArgument("\"{}\" is neither true nor false", text);
}

Result<std::int64_t> ParseInt(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return InvalidArgument("\"{}\" does not fit in 64 bits", text);
  }
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("\"{}\" is not a whole number", text);
  }
  return value;
}

namespace {

// A limit as it would be written in a flag.
std::string LimitText(const Setting& setting, double limit) {
  if (setting.kind == Kind::kInt) return fmt::format("{}", limit);
  if (setting.kind == Kind::kSize) return ByteCount(static_cast<std::uint64_t>(limit));
  return FormatDuration(std::chrono::nanoseconds(std::llround(limit * 1e9)));
}

Status CheckRange(const Setting& setting, double value, const std::string& text) {
  if (value >= setting.least && value <= setting.most) return Ok();
  if (std::isinf(setting.most)) {
    return InvalidArgument("{} is too small; at least {} is allowed", text,
                           LimitText(setting, setting.least));
  }
  return InvalidArgument("{} is out of range; {} to {} is allowed", text,
                         LimitText(setting, setting.least), LimitText(setting, setting.most));
}

Status CheckKind(const Setting& setting, const std::string& text) {
  switch (setting.kind) {
    case Kind::kInt: {
      MUSTER_TRY_ASSIGN(const std::int64_t value, ParseInt(text));
      return CheckRange(setting, static_cast<double>(value), text);
    }
    case Kind::kBool:
      return ParseBool(text).status();
    case Kind::kDuration: {
      MUSTER_TRY_ASSIGN(const std::chrono::nanoseconds value, ParseDuration(text));
      return CheckRange(setting, std::chrono::duration<double>(value).count(), text);
    }
    case Kind::kSize: {
      MUSTER_TRY_ASSIGN(const std::uint64_t value, ParseSize(text));
      return CheckRange(setting, static_cast<double>(value), text);
    }
    case Kind::kList:
      return Ok();
    case Kind::kString:
      break;
  }
  const std::vector<std::string>& choices = setting.choices;
  if (choices.empty() || std::count(choices.begin(), choices.end(), text) != 0) return Ok();
  return InvalidArgument("\"{}\" is not one of {}{}", text, fmt::join(choices, ", "),
                         DidYouMean(text, choices));
}

}  // namespace

Status CheckValue(const Setting& setting, const std::string& text, const Origin& origin) {
  if (origin.layer == Origin::Layer::kFlag) return Annotate(CheckKind(setting, text), origin.where);
  return Annotate(CheckKind(setting, text), fmt::format("{}: {}", origin.where, setting.name));
}

}  // namespace internal

std::string EnvironmentName(std::string_view setting) {
  std::string name = "MUSTER_";
  for (const char c : setting) {
    name += c == '-' ? '_' : (c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
  }
  return name;
}

const Values::Entry& Values::Find(std::string_view name) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.setting.name == name; });
  const bool setting_is_declared = found != entries_.end();
  MUSTER_INVARIANT(setting_is_declared);
  return *found;
}

const std::string& Values::Text(std::string_view name, Kind kind) const {
  const Entry& entry = Find(name);
  const bool asked_as_declared = entry.setting.kind == kind;
  MUSTER_INVARIANT(asked_as_declared);
  return entry.text;
}

std::string Values::String(std::string_view name) const { return Text(name, Kind::kString); }

// Every text was checked by Resolve, so the parsers below cannot fail.
std::int64_t Values::Int(std::string_view name) const {
  const std::string& text = Text(name, Kind::kInt);
  return text.empty() ? 0 : internal::ParseInt(text).value();
}

bool Values::Bool(std::string_view name) const {
  const std::string& text = Text(name, Kind::kBool);
  return !text.empty() && internal::ParseBool(text).value();
}

std::chrono::nanoseconds Values::Nanoseconds(std::string_view name) const {
  const std::string& text = Text(name, Kind::kDuration);
  return text.empty() ? std::chrono::nanoseconds(0) : ParseDuration(text).value();
}

std::uint64_t Values::Size(std::string_view name) const {
  const std::string& text = Text(name, Kind::kSize);
  return text.empty() ? 0 : ParseSize(text).value();
}

std::vector<std::string> Values::List(std::string_view name) const {
  return internal::SplitList(Text(name, Kind::kList));
}

bool Values::Given(std::string_view name) const {
  return Find(name).origin.layer != Origin::Layer::kDefault;
}

const Origin& Values::OriginOf(std::string_view name) const { return Find(name).origin; }

std::vector<std::string> Values::Describe() const {
  std::vector<std::string> lines;
  for (const Entry& entry : entries_) {
    lines.push_back(
        fmt::format("{} = {} ({})", entry.setting.name, entry.text, entry.origin.where));
  }
  return lines;
}

Result<Values> Resolve(const std::vector<Setting>& settings, const Flags& flags,
                       const Environment& environment) {
  const auto variable = [&](const std::string& setting) {
    std::optional<std::string> value = environment(EnvironmentName(setting));
    return value && value->empty() ? std::nullopt : value;
  };
  std::map<std::string, internal::FileValue> file;
  std::optional<std::string> path = flags.config_file;
  if (!path) path = variable("config");
  if (path) {
    MUSTER_TRY_ASSIGN(file, internal::ReadFile(*path, settings));
  }

  Values values;
  for (const Setting& setting : settings) {
    Values::Entry entry{.setting = setting, .text = setting.fallback, .origin = {}};
    if (const auto flag = flags.values.find(setting.name); flag != flags.values.end()) {
      entry.text = flag->second;
      entry.origin = {.layer = Origin::Layer::kFlag, .where = "--" + setting.name};
    } else if (const auto value = variable(setting.name)) {
      entry.text = *value;
      entry.origin = {.layer = Origin::Layer::kEnvironment, .where = EnvironmentName(setting.name)};
    } else if (const auto in_file = file.find(setting.name); in_file != file.end()) {
      entry.text = in_file->second.text;
      entry.origin = in_file->second.origin;
    }
    const bool unset = entry.text.empty() && entry.origin.layer == Origin::Layer::kDefault;
    if (!unset) MUSTER_TRY(internal::CheckValue(setting, entry.text, entry.origin));
    values.entries_.push_back(std::move(entry));
  }
  return values;
}

}  // namespace muster::config
