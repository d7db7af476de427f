#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "common/base/suggest.h"
#include "common/base/utf8.h"
#include "common/config/settings_internal.h"
#include "common/config/yaml_documents.h"

namespace muster::config::internal {
namespace {

// A file of settings is a page; more is somebody else's file, or an attack on the parser.
constexpr std::size_t kMaxFileBytes = 1 << 20;

Result<std::string> Slurp(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return FromErrno(errno, fmt::format("open the file of settings {}", path));
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return FromErrno(errno, fmt::format("read the file of settings {}", path));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxFileBytes) {
    return InvalidArgument("{}: longer than {} bytes; that is no file of settings", path,
                           kMaxFileBytes);
  }
  return text;
}

std::string At(const std::string& path, const YAML::Mark& mark) {
  return fmt::format("{}:{}:{}", path, mark.line + 1, mark.column + 1);
}

// The library would put another character in the place of what is none, and a folder of that name
// is another folder. UTF-16 with its mark is YAML, too.
Status CheckUtf8(const std::string& path, const std::string& text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return Ok();
  const std::size_t at = FirstBadUtf8(text);
  if (at == std::string::npos) return Ok();
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(at);
  return InvalidArgument("{}:{}: byte \\x{:02x} is not UTF-8: save the file as UTF-8", path,
                         std::count(text.begin(), end, '\n') + 1,
                         static_cast<unsigned char>(text[at]));
}

// The value as a flag would write it.
Result<std::string> AsText(const Setting& setting, const YAML::Node& node,
                           const std::string& where) {
  if (node.IsScalar()) return node.Scalar();
  if (setting.kind != Kind::kList) {
    return InvalidArgument("{}: {} is one value, not a {}", where, setting.name,
                           node.IsSequence() ? "list"
                           : node.IsMap()    ? "mapping"
                                             : "blank");
  }
  if (!node.IsSequence()) {
    return InvalidArgument("{}: {} is a list, such as [a, b]", where, setting.name);
  }
  std::vector<std::string> items;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar() || item.Scalar().find(',') != std::string::npos) {
      return InvalidArgument("{}: an entry of {} is plain text without a comma", where,
                             setting.name);
    }
    items.push_back(item.Scalar());
  }
  return fmt::format("{}", fmt::join(items, ","));
}

// Ends at the first mistake: no daemon begins with half of its settings.
Result<std::map<std::string, FileValue>> Read(const std::string& path, const YAML::Node& root,
                                              const std::vector<Setting>& settings) {
  std::map<std::string, FileValue> values;
  if (root.IsNull()) return values;
  if (!root.IsMap()) {
    return InvalidArgument("{}: a file of settings is a list of lines \"name: value\"",
                           At(path, root.Mark()));
  }
  for (const auto& entry : root) {
    const YAML::Node& key = entry.first;
    const YAML::Node& node = entry.second;
    const std::string at_key = At(path, key.Mark());
    if (!key.IsScalar()) return InvalidArgument("{}: a key is plain text", at_key);
    const Setting* setting = FindSetting(settings, key.Scalar());
    if (setting == nullptr) {
      const std::vector<std::string> names = Names(settings);
      const std::string hint = DidYouMean(key.Scalar(), names);
      return InvalidArgument(
          "{}: unknown key \"{}\"{}", at_key, key.Scalar(),
          hint.empty() ? fmt::format("; known are {}", fmt::join(names, ", ")) : hint);
    }
    if (values.contains(setting->name)) {
      return InvalidArgument("{}: {} is given twice, first at {}", at_key, setting->name,
                             values[setting->name].origin.where);
    }
    // The library places an absent value after the next key.
    const YAML::Mark mark = node.IsNull() ? key.Mark() : node.Mark();
    const Origin origin{.layer = Origin::Layer::kFile, .where = At(path, mark)};
    MUSTER_TRY_ASSIGN(const std::string text, AsText(*setting, node, origin.where));
    // Checked here too: a bad line is an error even where a flag hides it.
    MUSTER_TRY(CheckValue(*setting, text, origin));
    values[setting->name] = {.text = text, .origin = origin};
  }
  return values;
}

}  // namespace

Result<std::map<std::string, FileValue>> ReadFile(const std::string& path,
                                                  const std::vector<Setting>& settings) {
  MUSTER_TRY_ASSIGN(const std::string text, Slurp(path));
  MUSTER_TRY(CheckUtf8(path, text));
  try {
    const std::vector<YAML::Mark> documents = DocumentStarts(text).marks();
    if (documents.size() > 1) {
      return InvalidArgument("{}: another YAML document begins here; a file of settings is one",
                             At(path, documents[1]));
    }
    return Read(path, YAML::Load(text), settings);
  } catch (const YAML::Exception& error) {
    return InvalidArgument("{}: not YAML: {}", At(path, error.mark), error.msg);
  }
}

}  // namespace muster::config::internal
