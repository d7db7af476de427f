// Shared by the files of this folder only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/settings.h"

namespace muster::config::internal {

// The declared setting of that name ('_' counts as '-'), or null.
const Setting* FindSetting(const std::vector<Setting>& settings, std::string_view name);

std::vector<std::string> Names(const std::vector<Setting>& settings);

// Whether `text` is a value of the setting: its kind, its choices, its range. The message names
// setting, origin, what was given and what is allowed.
Status CheckValue(const Setting& setting, const std::string& text, const Origin& origin);

// What --help says, a line a flag: those of all programs too.
struct HelpLine {
  std::string flag;
  std::string doc;
};
std::vector<HelpLine> HelpLines(const std::vector<Setting>& settings);

// "a, b,c" -> a b c; empty pieces are left out.
std::vector<std::string> SplitList(std::string_view text);

// What a YAML file gives.
struct FileValue {
  std::string text;
  Origin origin;
};
Result<std::map<std::string, FileValue>> ReadFile(const std::string& path,
                                                  const std::vector<Setting>& settings);

Result<bool> ParseBool(std::string_view text);
Result<std::int64_t> ParseInt(std::string_view text);

}  // namespace muster::config::internal
