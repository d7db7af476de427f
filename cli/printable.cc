#include "cli/printable.h"

#include <cstdint>
#include <vector>

#include <fmt/core.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include "common/base/utf8.h"

namespace muster::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

// The code point that one valid sequence stands for.
std::uint32_t CodePoint(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.size() == 1) return byte(0);
  std::uint32_t code = byte(0) & (0xFFU >> (bytes.size() + 1));
  for (std::size_t i = 1; i < bytes.size(); ++i) code = code << 6 | (byte(i) & 0x3FU);
  return code;
}

bool IsControl(std::uint32_t code) {
  return (code < 0x20 && code != '\t' && code != '\n') || (code >= 0x7F && code < 0xA0);
}

// Marks of direction, and the separators that some terminals take for the end of a line.
bool TurnsText(std::uint32_t code) {
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

void MakeField(google::protobuf::Message& message, const Reflection& reflection,
               const FieldDescriptor& field) {
  const int count = field.is_repeated() ? reflection.FieldSize(message, &field) : 0;
  if (field.type() == FieldDescriptor::TYPE_STRING) {
    if (!field.is_repeated()) {
      return reflection.SetString(&message, &field,
                                  Printable(reflection.GetString(message, &field)));
    }
    for (int i = 0; i < count; ++i) {
      reflection.SetRepeatedString(&message, &field, i,
                                   Printable(reflection.GetRepeatedString(message, &field, i)));
    }
  } else if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
    if (!field.is_repeated()) return MakePrintable(*reflection.MutableMessage(&message, &field));
    for (int i = 0; i < count; ++i) {
      MakePrintable(*reflection.MutableRepeatedMessage(&message, &field, i));
    }
  }
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    const std::uint32_t code = length == 0 ? 0 : CodePoint(sequence);
    if (length == 0 || (IsControl(code) && code < 0x80)) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(sequence[0]));
    } else if (IsControl(code) || TurnsText(code)) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return out;
}

void MakePrintable(google::protobuf::Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) MakeField(message, reflection, *field);
}

}  // namespace muster::cli
