#include "common/data/example_wire.h"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

#include "common/base/words.h"

namespace muster::data {
namespace {

enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };
enum Kind : std::uint32_t { kNone = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3 };

constexpr const char* kBroken = "is no valid tf.Example";

// Walks over one message. After a broken field ok() is false and Next() ends.
class Fields {
 public:
  explicit Fields(std::string_view message) : p_(message.data()), end_(p_ + message.size()) {}

  bool Next() {
    if (!ok_ || p_ == end_) return false;
    const std::uint64_t tag = Varint();
    number_ = static_cast<std::uint32_t>(tag >> 3);
    wire_ = static_cast<std::uint32_t>(tag & 7);
    switch (wire_) {
      case kVarint:
        value_ = Varint();
        break;
      case kFixed64:
        Take(8);
        break;
      case kLength:
        Take(Varint());
        break;
      case kFixed32:
        Take(4);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }

  bool ok() const { return ok_; }
  std::uint32_t number() const { return number_; }
  bool Is(std::uint32_t number, Wire wire) const { return number_ == number && wire_ == wire; }
  // What a field with kVarint says.
  std::uint64_t value() const { return value_; }
  // The bytes of a field with any other wire type.
  std::string_view payload() const { return payload_; }

  // Reads a bare varint: what packed lists are made of.
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && p_ != end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*p_++);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  bool AtEnd() const { return p_ == end_; }

 private:
  void Take(std::uint64_t size) {
    if (!ok_ || size > static_cast<std::uint64_t>(end_ - p_)) {
      ok_ = false;
      return;
    }
    payload_ = {p_, static_cast<std::size_t>(size)};
    p_ += size;
  }

  const char* p_;
  const char* end_;
  bool ok_ = true;
  std::uint32_t number_ = 0;
  std::uint32_t wire_ = 0;
  std::uint64_t value_ = 0;
  std::string_view payload_;
};

std::string_view NameOfKind(std::uint32_t kind) {
  switch (kind) {
    case kBytesList:
      return "bytes";
    case kFloatList:
      return "float";
    case kInt64List:
      return "int64";
    default:
      return "nothing";
  }
}

std::uint32_t KindFor(DType dtype) {
  if (dtype == DType::kFloat32) return kFloatList;
  return dtype == DType::kInt64 ? kInt64List : kBytesList;
}

// Collects a feature's values at `out`, which has room for `room`; all are counted.
class Values {
 public:
  Values(std::byte* out, std::size_t room) : out_(out), room_(room) {}

  // `list` is a BytesList, FloatList or Int64List. False when it is broken.
  bool AddList(std::uint32_t kind, std::string_view list) {
    Fields fields(list);
    while (fields.Next()) {
      if (fields.number() != 1) continue;
      if (kind == kFloatList && fields.Is(1, kLength)) {
        if (fields.payload().size() % sizeof(float) != 0) return false;
        Add(fields.payload().data(), fields.payload().size() / sizeof(float), sizeof(float));
      } else if (kind == kFloatList && fields.Is(1, kFixed32)) {
        Add(fields.payload().data(), 1, sizeof(float));
      } else if (kind == kInt64List && fields.Is(1, kLength)) {
        Fields packed(fields.payload());
        while (packed.ok() && !packed.AtEnd()) AddInt(packed.Varint());
        if (!packed.ok()) return false;
      } else if (kind == kInt64List && fields.Is(1, kVarint)) {
        AddInt(fields.value());
      } else if (kind == kBytesList && fields.Is(1, kLength)) {
        Add(fields.payload().data(), fields.payload().size(), 1);
        ++strings_;
      } else {
        return false;
      }
    }
    return fields.ok();
  }
  void Clear() { count_ = strings_ = 0; }

  std::size_t count() const { return count_; }
  std::size_t strings() const { return strings_; }

 private:
  void AddInt(std::uint64_t value) { Add(&value, 1, sizeof(value)); }
  void Add(const void* values, std::size_t count, std::size_t width) {
    const std::size_t fit = std::min(count, room_ - std::min(room_, count_));
    if (fit > 0) std::memcpy(out_ + count_ * width, values, fit * width);
    count_ += count;
  }

  std::byte* out_;
  std::size_t room_;
  std::size_t count_ = 0;
  std::size_t strings_ = 0;
};

std::string ReadFeature(std::string_view feature, const FeaturePlan& plan, std::byte* row) {
  Values values(row, plan.values);
  std::uint32_t kind = kNone;
  const std::uint32_t wanted = KindFor(plan.dtype);
  Fields fields(feature);
  while (fields.Next()) {
    if (fields.number() < kBytesList || fields.number() > kInt64List) continue;
    if (fields.number() != kind) values.Clear();  // the last one of a oneof counts
    kind = fields.number();
    if (!fields.Is(kind, kLength)) return kBroken;
    if (kind == wanted && !values.AddList(kind, fields.payload())) return kBroken;
  }
  if (!fields.ok()) return kBroken;
  if (kind != wanted && !(kind == kNone && plan.padded)) {
    return fmt::format("feature '{}' holds {}, {} was expected", plan.name, NameOfKind(kind),
                       NameOfKind(wanted));
  }
  if (values.strings() > 1) {
    return fmt::format("feature '{}' holds {} byte strings, 1 was expected", plan.name,
                       values.strings());
  }
  if (values.count() > plan.values || (!plan.padded && values.count() < plan.values)) {
    return fmt::format("feature '{}' holds {}, {}{} {} expected", plan.name,
                       Counted(values.count(), "value"), plan.padded ? "at most " : "", plan.values,
                       Agreeing(plan.values, "was", "were"));
  }
  const std::size_t width = SizeOf(plan.dtype);
  std::memset(row + values.count() * width, plan.dtype == DType::kInt64 ? 0xff : 0,
              (plan.values - values.count()) * width);
  return {};
}

// Finds the planned features among the entries of one Features message. False when it is broken.
bool FindFeatures(std::string_view features, std::span<const FeaturePlan> plans,
                  std::vector<std::string_view>& found) {
  Fields entries(features);
  while (entries.Next()) {
    if (!entries.Is(1, kLength)) continue;
    std::string_view key;
    std::string_view feature;
    Fields entry(entries.payload());
    while (entry.Next()) {
      if (entry.Is(1, kLength)) key = entry.payload();
      if (entry.Is(2, kLength)) feature = entry.payload();
    }
    if (!entry.ok()) return false;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      // An empty feature is still there: point into the message, not at nothing.
      if (plans[i].name == key) found[i] = feature.data() != nullptr ? feature : key.substr(0, 0);
    }
  }
  return entries.ok();
}

}  // namespace

std::string ReadExample(std::string_view example, std::span<const FeaturePlan> plans,
                        std::span<std::byte* const> rows) {
  std::vector<std::string_view> found(plans.size());
  Fields fields(example);
  while (fields.Next()) {
    if (fields.Is(1, kLength) && !FindFeatures(fields.payload(), plans, found)) return kBroken;
  }
  if (!fields.ok()) return kBroken;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (found[i].data() == nullptr && !plans[i].padded) {
      return fmt::format("feature '{}' is missing", plans[i].name);
    }
    if (std::string problem = ReadFeature(found[i], plans[i], rows[i]); !problem.empty()) {
      return problem;
    }
  }
  return {};
}

}  // namespace muster::data
