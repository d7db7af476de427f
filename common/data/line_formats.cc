// Formats with one record a line: text, and Criteo's click logs.
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/job_limits.h"
#include "common/base/words.h"
#include "common/data/formats.h"
#include "common/data/record_format.h"
#include "common/data/text_fields.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

struct Line {
  std::string_view text;  // without its end
  std::uint64_t next = 0;
};

Line LineAt(std::string_view content, std::uint64_t offset) {
  const std::size_t end = content.find('\n', offset);
  if (end == std::string_view::npos) return {content.substr(offset), content.size()};
  std::string_view text = content.substr(offset, end - offset);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return {text, end + 1};
}

class TextParser final : public RecordParser {
 public:
  TextParser(std::string_view content, std::size_t length) : content_(content), length_(length) {}

  Parsed Parse(std::uint64_t offset, std::span<std::byte* const> rows) const override {
    const Line line = LineAt(content_, offset);
    if (line.text.size() > length_) {
      return Parsed::Bad(line.next, fmt::format("a line of {} bytes, data.text.length is {}",
                                                line.text.size(), length_));
    }
    std::memcpy(rows[0], line.text.data(), line.text.size());
    std::memset(rows[0] + line.text.size(), 0, length_ - line.text.size());
    return Parsed::Record(line.next);
  }

 private:
  std::string_view content_;
  std::size_t length_;
};

class CriteoParser final : public RecordParser {
 public:
  CriteoParser(std::string_view content, std::int64_t buckets, bool log1p)
      : content_(content), buckets_(buckets), log1p_(log1p) {}

  Parsed Parse(std::uint64_t offset, std::span<std::byte* const> rows) const override {
    const Line line = LineAt(content_, offset);
    if (line.text.empty()) return Parsed::Blank(line.next);
    std::string_view fields[kFields];
    const int count = Split(line.text, fields);
    if (count != kFields) {
      return Parsed::Bad(line.next,
                         fmt::format("{}, {} are needed (a label, {} numbers and {} categories, "
                                     "separated by tabs)",
                                     Counted(static_cast<std::uint64_t>(count), "field"), kFields,
                                     kCriteoNumbers, kCriteoCategories));
    }
    float label = 0;
    if (!ParseNumber(fields[0], label)) return NotANumber(line, 0, fields[0]);
    std::memcpy(rows[0], &label, sizeof(label));

    float numbers[kCriteoNumbers];
    for (int i = 0; i < kCriteoNumbers; ++i) {
      double value = 0;
      const std::string_view field = fields[1 + i];
      if (!field.empty() && !ParseNumber(field, value)) return NotANumber(line, 1 + i, field);
      if (log1p_) value = value > 0 ? std::log1p(value) : 0;
      numbers[i] = static_cast<float>(value);
      // More than the column's float32 can hold.
      if (!std::isfinite(numbers[i])) return NotANumber(line, 1 + i, field);
    }
    std::memcpy(rows[1], numbers, sizeof(numbers));

    std::int64_t categories[kCriteoCategories];
    for (int i = 0; i < kCriteoCategories; ++i) {
      const std::string_view field = fields[1 + kCriteoNumbers + i];
      categories[i] = HashBucket(field, static_cast<std::uint64_t>(i), buckets_);
    }
    std::memcpy(rows[2], categories, sizeof(categories));
    return Parsed::Record(line.next);
  }

 private:
  static constexpr int kFields = 1 + kCriteoNumbers + kCriteoCategories;

  // The number of fields; those beyond kFields are counted only.
  static int Split(std::string_view text, std::string_view (&fields)[kFields]) {
    const char* p = text.data();
    const char* const end = p + text.size();
    int count = 0;
    while (true) {
      const auto* tab =
          static_cast<const char*>(std::memchr(p, '\t', static_cast<std::size_t>(end - p)));
      const char* const stop = tab != nullptr ? tab : end;
      if (count < kFields) fields[count] = {p, static_cast<std::size_t>(stop - p)};
      ++count;
      if (tab == nullptr) return count;
      p = tab + 1;
    }
  }

  static Parsed NotANumber(const Line& line, int field, std::string_view text) {
    return Parsed::Bad(
        line.next,
        fmt::format("field {} ({}): '{}' is not a finite number", field + 1,
                    field == 0 ? "the label" : fmt::format("number {}", field), Shown(text)));
  }

  std::string_view content_;
  std::int64_t buckets_;
  bool log1p_;
};

class TextFormat final : public RecordFormat {
 public:
  explicit TextFormat(std::vector<ColumnInfo> columns) : columns_(std::move(columns)) {}
  const std::vector<ColumnInfo>& columns() const override { return columns_; }
  bool lines() const override { return true; }
  Result<std::unique_ptr<RecordParser>> Begin(const std::string&, const std::string&,
                                              std::string_view content) const override {
    return std::unique_ptr<RecordParser>(
        std::make_unique<TextParser>(content, RowBytes(columns_.front())));
  }

 private:
  std::vector<ColumnInfo> columns_;
};

class CriteoFormat final : public RecordFormat {
 public:
  CriteoFormat(std::vector<ColumnInfo> columns, std::int64_t buckets, bool log1p)
      : columns_(std::move(columns)), buckets_(buckets), log1p_(log1p) {}
  const std::vector<ColumnInfo>& columns() const override { return columns_; }
  bool lines() const override { return true; }
  Result<std::unique_ptr<RecordParser>> Begin(const std::string&, const std::string&,
                                              std::string_view content) const override {
    return std::unique_ptr<RecordParser>(std::make_unique<CriteoParser>(content, buckets_, log1p_));
  }

 private:
  std::vector<ColumnInfo> columns_;
  std::int64_t buckets_;
  bool log1p_;
};

}  // namespace

std::unique_ptr<RecordFormat> MakeTextFormat(const v1::TextData&, std::vector<ColumnInfo> columns) {
  return std::make_unique<TextFormat>(std::move(columns));
}

std::unique_ptr<RecordFormat> MakeCriteoFormat(const v1::CriteoData& spec,
                                               std::vector<ColumnInfo> columns) {
  return std::make_unique<CriteoFormat>(
      std::move(columns),
      spec.hash_buckets() == 0 ? job_limits::kDefaultCriteoBuckets : spec.hash_buckets(),
      !spec.has_log1p() || spec.log1p());
}

}  // namespace muster::data
