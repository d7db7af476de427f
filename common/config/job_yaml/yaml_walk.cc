#include "common/config/job_yaml/yaml_walk.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <yaml-cpp/yaml.h>

#include "common/base/suggest.h"
#include "common/base/utf8.h"
#include "common/config/job_yaml/scalar.h"
#include "common/config/yaml_documents.h"

namespace muster::config {
namespace {

namespace pb = google::protobuf;
using Field = pb::FieldDescriptor;

// Each value below a key is known by a path that the key is part of: a long one, as often as there
// are values, would be more memory than there is. No name that a job may have is as long.
constexpr std::size_t kLongestKey = 1'024;

// Thrown and caught in this file only: the walk has seen enough.
struct Enough {};

Position ToPosition(const YAML::Mark& mark) {
  return mark.is_null() ? Position{} : Position{mark.line + 1, mark.column + 1};
}

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

std::string Shorten(const std::string& text) {
  const std::size_t end = std::min(text.find('\n'), std::size_t{40});
  return text.size() <= end ? text : Utf8Beginning(text, end) + "...";
}

// A plain scalar has the tag "?", a quoted one "!".
bool IsPlain(const YAML::Node& node) { return node.Tag() != "!"; }

bool HasExplicitTag(const YAML::Node& node) {
  return !node.Tag().empty() && node.Tag() != "?" && node.Tag() != "!";
}

std::string Given(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a mapping";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Scalar:
      return IsPlain(node) ? fmt::format("'{}'", Shorten(node.Scalar()))
                           : fmt::format("the quoted text \"{}\"", Shorten(node.Scalar()));
    default:
      return "nothing";
  }
}

// SOFTMAX_CROSS_ENTROPY of LOSS_KIND_SOFTMAX_CROSS_ENTROPY, in lower case. Every enum has a zero
// value <PREFIX>_UNSPECIFIED, which tells the prefix and cannot be written.
std::map<std::string, const pb::EnumValueDescriptor*> EnumNames(const pb::EnumDescriptor* type) {
  const std::string zero = type->FindValueByNumber(0)->name();
  const std::size_t prefix = zero.size() - std::string_view("UNSPECIFIED").size();
  std::map<std::string, const pb::EnumValueDescriptor*> names;
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->number() == 0) continue;
    std::string name = type->value(i)->name().substr(prefix);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    names[name] = type->value(i);
  }
  return names;
}

class Walker {
 public:
  Walker(const std::vector<std::string>& hidden, WalkResult& result)
      : hidden_(hidden), result_(result) {}

  void Message(const YAML::Node& node, const std::string& path, pb::Message& message);
  void Report(const YAML::Mark& mark, std::string path, std::string text);

 private:
  void Visit(const YAML::Node& node, const std::string& path);
  std::vector<std::string> FieldNames(const pb::Descriptor* type) const;
  void Value(const YAML::Node& node, const std::string& path, const Field* field,
             pb::Message& message);
  void Map(const YAML::Node& node, const std::string& path, const Field* field,
           pb::Message& message);
  void List(const YAML::Node& node, const std::string& path, const Field* field,
            pb::Message& message);
  void Scalar(const YAML::Node& node, const std::string& path, const Field* field,
              pb::Message& message);
  bool SetNumber(const std::string& text, const Field* field, pb::Message& message);
  void Enum(const YAML::Node& node, const std::string& path, const Field* field,
            pb::Message& message);
  // The key as text; nullopt (and a problem) when it is none or was there before.
  std::optional<std::string> Key(const YAML::Node& key, const std::string& path,
                                 std::map<std::string, Position>& seen);

  bool HasValue(const YAML::Node& key, const YAML::Node& value, const std::string& path);

  const std::vector<std::string>& hidden_;
  WalkResult& result_;
  int values_ = 0;
};

void Walker::Report(const YAML::Mark& mark, std::string path, std::string text) {
  if (static_cast<int>(result_.problems.size()) + 1 >= kMostProblems) {
    result_.problems.push_back({{"", kTooMany}, ToPosition(mark)});
    throw Enough();
  }
  result_.problems.push_back({{std::move(path), std::move(text)}, ToPosition(mark)});
}

void Walker::Visit(const YAML::Node& node, const std::string& path) {
  if (++values_ > kMostValues) {
    Report(node.Mark(), path,
           fmt::format("more than {} values; aliases count each time they are used", kMostValues));
    throw Enough();
  }
  result_.positions.emplace(path, ToPosition(node.Mark()));
  if (HasExplicitTag(node)) {
    Report(node.Mark(), path, fmt::format("tag {} is not understood; remove it", node.Tag()));
  }
}

std::vector<std::string> Walker::FieldNames(const pb::Descriptor* type) const {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) {
    const Field* field = type->field(i);
    if (std::find(hidden_.begin(), hidden_.end(), field->full_name()) == hidden_.end()) {
      names.push_back(field->name());
    }
  }
  return names;
}

// The library places an absent value after the next key, so the key's own place is given.
bool Walker::HasValue(const YAML::Node& key, const YAML::Node& value, const std::string& path) {
  if (!value.IsNull()) return true;
  Report(key.Mark(), path, "has no value; give one or remove the key");
  return false;
}

std::optional<std::string> Walker::Key(const YAML::Node& key, const std::string& path,
                                       std::map<std::string, Position>& seen) {
  if (!key.IsScalar()) {
    Report(key.Mark(), path, fmt::format("a key must be a word; given {}", Given(key)));
    return std::nullopt;
  }
  const std::string& name = key.Scalar();
  if (name.size() > kLongestKey) {
    Report(key.Mark(), path,
           fmt::format("a key of {} bytes, '{}'; at most {}", name.size(), Shorten(name),
                       kLongestKey));
    return std::nullopt;
  }
  const auto [before, fresh] = seen.emplace(name, ToPosition(key.Mark()));
  if (!fresh) {
    Report(key.Mark(), Join(path, name),
           fmt::format("given twice; the first is in line {}", before->second.line));
    return std::nullopt;
  }
  return name;
}

// Every problem of a mapping is reported, not its first alone. A message of one list takes the list
// itself, one with a kind the kind's name.
void Walker::Message(const YAML::Node& node, const std::string& path, pb::Message& message) {
  Visit(node, path);
  const pb::Descriptor* type = message.GetDescriptor();
  if (node.IsScalar()) {
    if (const Field* kind = type->FindFieldByName("kind"); kind != nullptr && IsPlain(node)) {
      return Enum(node, path, kind, message);
    }
  }
  const bool one_list = type->field_count() == 1 && type->field(0)->is_repeated() &&
                        type->field(0)->type() == Field::TYPE_STRING;
  if (one_list && (node.IsScalar() || node.IsSequence())) {
    return List(node, path, type->field(0), message);
  }
  const std::vector<std::string> names = FieldNames(type);
  if (!node.IsMap()) {
    return Report(node.Mark(), path,
                  fmt::format("expected a mapping with keys of {}; given {}",
                              fmt::join(names, ", "), Given(node)));
  }
  std::map<std::string, Position> seen;
  for (const auto& entry : node) {
    const std::optional<std::string> key = Key(entry.first, path, seen);
    if (!key) continue;
    const Field* field = std::find(names.begin(), names.end(), *key) == names.end()
                             ? nullptr
                             : type->FindFieldByName(*key);
    if (field == nullptr) {
      const std::string near = DidYouMean(*key, names);
      Report(entry.first.Mark(), Join(path, *key),
             near.empty() ? fmt::format("unknown key; known here: {}", fmt::join(names, ", "))
                          : "unknown key" + near);
      if (const auto name = ClosestName(*key, names)) result_.meant.push_back(Join(path, *name));
      continue;
    }
    if (HasValue(entry.first, entry.second, Join(path, *key))) {
      Value(entry.second, Join(path, *key), field, message);
    }
  }
}

void Walker::Value(const YAML::Node& node, const std::string& path, const Field* field,
                   pb::Message& message) {
  if (field->is_map()) return Map(node, path, field, message);
  if (field->is_repeated()) return List(node, path, field, message);
  if (field->type() == Field::TYPE_MESSAGE) {
    return Message(node, path, *message.GetReflection()->MutableMessage(&message, field));
  }
  return Scalar(node, path, field, message);
}

void Walker::Map(const YAML::Node& node, const std::string& path, const Field* field,
                 pb::Message& message) {
  Visit(node, path);
  if (!node.IsMap()) {
    return Report(node.Mark(), path,
                  fmt::format("expected a mapping from names to values; given {}", Given(node)));
  }
  const Field* key_field = field->message_type()->map_key();
  const Field* value_field = field->message_type()->map_value();
  std::map<std::string, Position> seen;
  for (const auto& entry : node) {
    const std::optional<std::string> key = Key(entry.first, path, seen);
    if (!key) continue;
    if (!HasValue(entry.first, entry.second, Join(path, *key))) {
      result_.meant.push_back(path);  // so it is not empty either
      continue;
    }
    pb::Message* added = message.GetReflection()->AddMessage(&message, field);
    added->GetReflection()->SetString(added, key_field, *key);
    Value(entry.second, Join(path, *key), value_field, *added);
  }
}

void Walker::List(const YAML::Node& node, const std::string& path, const Field* field,
                  pb::Message& message) {
  if (field->type() == Field::TYPE_STRING && node.IsScalar()) {
    return Scalar(node, path, field, message);
  }
  Visit(node, path);
  if (!node.IsSequence()) {
    return Report(node.Mark(), path, fmt::format("expected a list; given {}", Given(node)));
  }
  int index = 0;
  for (const YAML::Node& element : node) {
    const std::string element_path = Join(path, std::to_string(index++));
    if (field->type() == Field::TYPE_MESSAGE) {
      Message(element, element_path, *message.GetReflection()->AddMessage(&message, field));
    } else {
      Scalar(element, element_path, field, message);
    }
  }
}

void Walker::Enum(const YAML::Node& node, const std::string& path, const Field* field,
                  pb::Message& message) {
  const auto names = EnumNames(field->enum_type());
  const auto found = names.find(node.Scalar());
  if (found == names.end()) {
    std::vector<std::string> allowed;
    for (const auto& [name, value] : names) allowed.push_back(name);
    return Report(node.Mark(), path,
                  fmt::format("expected one of {}; given {}{}", fmt::join(allowed, ", "),
                              Given(node), DidYouMean(node.Scalar(), allowed)));
  }
  const pb::Reflection* reflection = message.GetReflection();
  field->is_repeated() ? reflection->AddEnum(&message, field, found->second)
                       : reflection->SetEnum(&message, field, found->second);
}

std::string Expected(const Field* field) {
  switch (field->cpp_type()) {
    case Field::CPPTYPE_BOOL:
      return "true or false";
    case Field::CPPTYPE_DOUBLE:
      return "a finite decimal number";
    case Field::CPPTYPE_UINT32:
      return fmt::format("a whole number from 0 to {}", std::numeric_limits<std::uint32_t>::max());
    case Field::CPPTYPE_UINT64:
      return "a whole number, 0 or more";
    case Field::CPPTYPE_INT64:
      return "a whole number";
    default:
      return "text";
  }
}

void Walker::Scalar(const YAML::Node& node, const std::string& path, const Field* field,
                    pb::Message& message) {
  Visit(node, path);
  const pb::Reflection* reflection = message.GetReflection();
  if (field->cpp_type() == Field::CPPTYPE_ENUM && node.IsScalar() && IsPlain(node)) {
    return Enum(node, path, field, message);
  }
  if (field->cpp_type() == Field::CPPTYPE_STRING && node.IsScalar()) {
    field->is_repeated() ? reflection->AddString(&message, field, node.Scalar())
                         : reflection->SetString(&message, field, node.Scalar());
    return;
  }
  const bool number = field->cpp_type() != Field::CPPTYPE_ENUM && node.IsScalar() && IsPlain(node);
  if (!number || !SetNumber(node.Scalar(), field, message)) {
    const std::string expected =
        field->cpp_type() == Field::CPPTYPE_ENUM ? "a word without quotes" : Expected(field);
    Report(node.Mark(), path, fmt::format("expected {}; given {}", expected, Given(node)));
  }
}

// False: the text is no number of the field's type, or out of its range.
bool Walker::SetNumber(const std::string& text, const Field* field, pb::Message& message) {
  const pb::Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case Field::CPPTYPE_BOOL:
      if (const auto value = ParseBool(text)) {
        reflection->SetBool(&message, field, *value);
        return true;
      }
      return false;
    case Field::CPPTYPE_DOUBLE:
      if (const auto value = ParseDouble(text)) {
        reflection->SetDouble(&message, field, *value);
        return true;
      }
      return false;
    case Field::CPPTYPE_INT64:
      if (const auto value = ParseInt64(text)) {
        field->is_repeated() ? reflection->AddInt64(&message, field, *value)
                             : reflection->SetInt64(&message, field, *value);
        return true;
      }
      return false;
    case Field::CPPTYPE_UINT64:
      if (const auto value = ParseUint64(text)) {
        reflection->SetUInt64(&message, field, *value);
        return true;
      }
      return false;
    case Field::CPPTYPE_UINT32:
      if (const auto value = ParseUint64(text);
          value && *value <= std::numeric_limits<std::uint32_t>::max()) {
        reflection->SetUInt32(&message, field, static_cast<std::uint32_t>(*value));
        return true;
      }
      return false;
    default:
      return false;
  }
}

}  // namespace

WalkResult WalkYaml(std::string_view text, const std::vector<std::string>& hidden,
                    pb::Message& message) {
  WalkResult result;
  Walker walker(hidden, result);
  // The library's exceptions end here.
  try {
    const std::vector<YAML::Mark> documents = DocumentStarts(text).marks();
    if (documents.size() > 1) {
      walker.Report(documents[1], "",
                    fmt::format("{} YAML documents; expected one", documents.size()));
      return result;
    }
    const YAML::Node document = YAML::Load(std::string(text));
    if (document.IsNull()) {
      walker.Report(YAML::Mark(), "", "the file says nothing");
    } else {
      walker.Message(document, "", message);
    }
  } catch (const Enough&) {
    return result;  // reported where it was thrown
  } catch (const YAML::Exception& error) {
    result.problems.push_back({{"", "not YAML: " + error.msg}, ToPosition(error.mark)});
  } catch (const std::exception& error) {
    result.problems.push_back({{"", fmt::format("not YAML: {}", error.what())}, Position{}});
  }
  return result;
}

}  // namespace muster::config
