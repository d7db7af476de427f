// Reads event files back: frames through common/data's TFRecord parser, then tf.Event by hand.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/record_format.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::testing {

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version;
  std::string tag;
  float value = 0;
  // What earlier files say of `step` and later ones is void.
  bool session_start = false;
};

// One field of a protocol buffer after another.
class WireFields {
 public:
  explicit WireFields(std::string_view message) : rest_(message) {}
  bool Next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = Varint();
    number = static_cast<int>(key >> 3);
    if ((key & 7) == 0) return varint = Varint(), true;
    bytes = Take((key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : Varint());
    return true;
  }
  template <class T>
  T As() const {
    T value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  int number = 0;
  std::uint64_t varint = 0;
  std::string_view bytes;

 private:
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(Take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view Take(std::uint64_t size) {
    if (size > rest_.size()) throw std::runtime_error("a message is cut short");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

inline Event ParseEvent(std::string_view bytes) {
  Event event;
  for (WireFields field(bytes); field.Next();) {
    if (field.number == 1) event.wall_time = field.As<double>();
    if (field.number == 2) event.step = static_cast<std::int64_t>(field.varint);
    if (field.number == 3) event.file_version = field.bytes;
    if (field.number == 7) {
      for (WireFields session(field.bytes); session.Next();) {
        event.session_start |= session.number == 1 && session.varint == 1;
      }
    }
    if (field.number != 5) continue;
    for (WireFields value(field.bytes); value.Next();) {
      for (WireFields point(value.bytes); point.Next();) {
        if (point.number == 1) event.tag = point.bytes;
        if (point.number == 2) event.value = point.As<float>();
      }
    }
  }
  return event;
}

// The one event file of a folder.
inline std::string OnlyFile(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files.push_back(entry.path().string());
  }
  if (files.size() != 1) throw std::runtime_error(std::to_string(files.size()) + " files");
  return files[0];
}

// Throws when a frame fails its checksum.
inline std::vector<Event> ReadEvents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  const auto format = data::MakeTfRecordFormat(v1::TfRecordData(), {});
  const auto parser = format->Begin(path, path, content);
  if (!parser.ok()) throw std::runtime_error(ToString(parser.status()));
  std::vector<Event> events;
  for (std::uint64_t at = 0; at < content.size();) {
    const data::Parsed parsed = (*parser)->Parse(at, {});
    if (parsed.kind != data::Parsed::Kind::kRecord) throw std::runtime_error(parsed.problem);
    // 12 bytes of length and checksum before the event, 4 of checksum behind it.
    events.push_back(ParseEvent(std::string_view(content).substr(at + 12, parsed.next - at - 16)));
    at = parsed.next;
  }
  return events;
}

}  // namespace muster::testing
