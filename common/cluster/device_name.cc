#include "common/cluster/device_name.h"

#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include "common/base/number_in.h"

namespace muster::cluster {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    pieces.push_back(text.substr(0, end));
    if (end == text.size()) return pieces;
    text.remove_prefix(end + 1);
  }
}

// Reads the parts of one name into a DeviceName.
class Reader {
 public:
  explicit Reader(std::string_view whole) : whole_(whole) {}

  Result<DeviceName> Read() {
    for (const std::string_view part : Split(whole_, '/')) {
      if (!part.empty()) MUSTER_TRY(ReadPart(Split(part, ':')));
    }
    return std::move(name_);
  }

 private:
  Status ReadPart(const std::vector<std::string_view>& words) {
    const std::string_view kind = words[0];
    if (kind == "job" && words.size() == 2 && !words[1].empty()) {
      if (name_.job) return Twice("job");
      name_.job = std::string(words[1]);
      return Ok();
    }
    if (kind == "replica" && words.size() == 2) {
      return ReadNumber(words[1], "replica", name_.replica);
    }
    if (kind == "task" && words.size() == 2) return ReadNumber(words[1], "task", name_.task);
    if (kind == "device" && words.size() == 3) return ReadDevice(words[1], words[2]);
    if (words.size() == 2 && kind != "job" && kind != "device") return ReadDevice(kind, words[1]);
    return Refuse("a name is made of /job:NAME /replica:N /task:N /device:TYPE:N");
  }

  Status ReadDevice(std::string_view type, std::string_view index) {
    if (name_.type) return Twice("device");
    std::string upper(type);
    for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    const bool plain = !upper.empty() && std::all_of(upper.begin(), upper.end(), [](char c) {
      return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    if (!plain) return Refuse(fmt::format("\"{}\" is not a type such as CPU or GPU", type));
    name_.type = upper;
    return index == "*" ? Ok() : ReadNumber(index, "device", name_.index);
  }

  Status ReadNumber(std::string_view digits, const char* part, std::optional<int>& into) {
    if (into) return Twice(part);
    const int value = NumberIn<int>(digits).value_or(-1);
    if (value < 0) {
      return Refuse(fmt::format("\"{}\" is not a number of a {}", digits, part));
    }
    into = value;
    return Ok();
  }

  Status Twice(const char* part) const { return Refuse(fmt::format("{} is given twice", part)); }
  Status Refuse(const std::string& why) const {
    return InvalidArgument("device \"{}\": {}", whole_, why);
  }

  std::string_view whole_;
  DeviceName name_;
};

}  // namespace

Result<DeviceName> DeviceName::Parse(std::string_view name) { return Reader(name).Read(); }

std::string DeviceName::ToString() const {
  std::string text;
  if (job) text += "/job:" + *job;
  if (replica) text += fmt::format("/replica:{}", *replica);
  if (task) text += fmt::format("/task:{}", *task);
  if (type) text += fmt::format("/device:{}:{}", *type, index ? std::to_string(*index) : "*");
  return text;
}

DeviceName DeviceName::MergedWith(const DeviceName& defaults) const {
  DeviceName merged = *this;
  if (!merged.job) merged.job = defaults.job;
  if (!merged.replica) merged.replica = defaults.replica;
  if (!merged.task) merged.task = defaults.task;
  if (!merged.type) merged.type = defaults.type;
  if (!merged.index) merged.index = defaults.index;
  return merged;
}

Result<std::string> CanonicalDevice(std::string_view name, std::string_view defaults) {
  MUSTER_TRY_ASSIGN(const DeviceName given, DeviceName::Parse(name));
  MUSTER_TRY_ASSIGN(const DeviceName scope, DeviceName::Parse(defaults));
  const DeviceName last{.job = "localhost", .replica = 0, .task = 0, .type = "CPU", .index = 0};
  return given.MergedWith(scope).MergedWith(last).ToString();
}

}  // namespace muster::cluster
