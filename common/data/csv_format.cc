// Comma or otherwise separated text: RFC 4180, with any one-character delimiter and LF or CRLF.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/words.h"
#include "common/data/record_format.h"
#include "common/data/text_fields.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

// A quote that is still open after this much was never meant to be: the line is bad, and what
// follows it is read on its own.
constexpr std::uint64_t kLongestRecord = std::uint64_t{1} << 20;
constexpr char kNotClosed[] = "a quote that is not closed";
constexpr char kNotClosedInTime[] =
    "a quote that is not closed within 1 MiB, the most that a record with quotes may have";

// Cuts a record into fields, from left to right.
class FieldCutter {
 public:
  enum class End : std::uint8_t { kField, kRecord, kBad };

  FieldCutter(std::string_view content, std::uint64_t offset, char delimiter)
      : content_(content), begin_(offset), at_(offset), delimiter_(delimiter) {}

  // Cuts the next field. kField: more follow; kRecord: it was the last; kBad: see problem().
  End Next() { return at_ < content_.size() && content_[at_] == '"' ? Quoted() : Plain(); }
  // The field, unquoted; valid until Next().
  std::string_view field() const { return field_; }
  // After kRecord and kBad: where the next record begins.
  std::uint64_t next() const { return at_; }
  const char* problem() const { return problem_; }

 private:
  End Plain() {
    std::size_t end = at_;
    while (end < content_.size() && content_[end] != delimiter_ && content_[end] != '\n') ++end;
    field_ = content_.substr(at_, end - at_);
    at_ = end;
    if (at_ < content_.size() && content_[at_] == '\n' && field_.ends_with('\r')) {
      field_.remove_suffix(1);
    }
    return AfterField();
  }

  End Quoted() {
    std::size_t from = at_ + 1;
    unescaped_.clear();
    const std::string_view searched = content_.substr(0, begin_ + kLongestRecord);
    while (true) {
      const std::size_t quote = searched.find('"', from);
      if (quote == std::string_view::npos) {
        return Bad(searched.size() < content_.size() ? kNotClosedInTime : kNotClosed, begin_);
      }
      const std::string_view piece = content_.substr(from, quote - from);
      at_ = quote + 1;
      if (at_ < content_.size() && content_[at_] == '"') {  // "" stands for one quote
        unescaped_.append(piece).push_back('"');
        from = at_ + 1;
        continue;
      }
      field_ = unescaped_.empty() ? piece : std::string_view(unescaped_.append(piece));
      break;
    }
    if (content_.substr(at_, 2) == "\r\n") ++at_;
    if (at_ < content_.size() && content_[at_] != delimiter_ && content_[at_] != '\n') {
      return Bad("text after a closing quote", at_);
    }
    return AfterField();
  }

  // at_ stands behind the field: on a delimiter, a line end or the end of the file.
  End AfterField() {
    if (at_ == content_.size()) return End::kRecord;
    return content_[at_++] == delimiter_ ? End::kField : End::kRecord;
  }

  End Bad(const char* problem, std::uint64_t line_from) {
    problem_ = problem;
    const std::size_t end = content_.find('\n', line_from);
    at_ = end == std::string_view::npos ? content_.size() : end + 1;
    return End::kBad;
  }

  std::string_view content_;
  std::uint64_t begin_;
  std::uint64_t at_;
  char delimiter_;
  std::string_view field_;
  std::string unescaped_;
  const char* problem_ = nullptr;
};

struct CsvColumnPlan {
  std::string name;
  DType dtype = DType::kFloat32;
  std::optional<double> missing;
  std::int64_t hash_buckets = 0;
};

// Empty when `text` became a value at `out`, else what is wrong.
std::string Convert(const CsvColumnPlan& column, std::string_view text, std::byte* out) {
  const auto put = [out](auto value) { std::memcpy(out, &value, sizeof(value)); };
  const auto number = [&]<class T>(T value) -> std::string {
    if (TrimBlanks(text).empty()) {
      if (!column.missing.has_value()) return "is empty, and the spec gives no `missing` value";
      put(static_cast<T>(*column.missing));
      return {};
    }
    if (column.hash_buckets == 0 && !ParseNumber(text, value)) {
      return fmt::format("'{}' is not {} number", Shown(text), WithArticle(NameOf(column.dtype)));
    }
    put(value);
    return {};
  };
  if (column.dtype == DType::kFloat64) return number(0.0);
  if (column.dtype == DType::kFloat32) return number(0.0F);
  return number(column.hash_buckets == 0 ? std::int64_t{0}
                                         : HashBucket(text, 0, column.hash_buckets));
}

class CsvParser final : public RecordParser {
 public:
  CsvParser(std::string_view content, std::uint64_t first, char delimiter, std::vector<int> slots,
            const std::vector<CsvColumnPlan>& columns)
      : content_(content),
        first_(first),
        delimiter_(delimiter),
        slots_(std::move(slots)),
        columns_(columns) {}

  std::uint64_t first() const override { return first_; }

  Parsed Parse(std::uint64_t offset, std::span<std::byte* const> rows) const override {
    FieldCutter cutter(content_, offset, delimiter_);
    std::string problem;  // the first one; the rest of the record is cut all the same
    std::size_t field = 0;
    while (true) {
      const FieldCutter::End end = cutter.Next();
      if (end == FieldCutter::End::kBad) {
        return Parsed::Bad(cutter.next(), fmt::format("field {}: {}", field + 1, cutter.problem()));
      }
      const bool blank = field == 0 && end == FieldCutter::End::kRecord && cutter.field().empty();
      if (blank && slots_.size() > 1) return Parsed::Blank(cutter.next());
      if (field < slots_.size() && slots_[field] >= 0 && problem.empty()) {
        const auto slot = static_cast<std::size_t>(slots_[field]);
        problem = Convert(columns_[slot], cutter.field(), rows[slot]);
        if (!problem.empty()) {
          problem = fmt::format("field {} ({}): {}", field + 1, columns_[slot].name, problem);
        }
      }
      ++field;
      if (end == FieldCutter::End::kRecord) break;
    }
    if (field != slots_.size()) {
      problem = fmt::format("{}, {} are needed", Counted(field, "field"), slots_.size());
    }
    if (!problem.empty()) return Parsed::Bad(cutter.next(), std::move(problem));
    return Parsed::Record(cutter.next());
  }

 private:
  std::string_view content_;
  std::uint64_t first_;
  char delimiter_;
  // Which column each field is, or -1.
  std::vector<int> slots_;
  const std::vector<CsvColumnPlan>& columns_;
};

// Every field of a file's first record.
struct FirstRecord {
  std::vector<std::string> fields;
  std::uint64_t next = 0;
};

// Blank lines before the first record are passed over, as between records.
Result<FirstRecord> CutFirst(const std::string& at, std::string_view content, std::uint64_t offset,
                             char delimiter) {
  FirstRecord record;
  std::size_t line = 1;
  for (; offset < content.size(); ++offset) {
    if (content[offset] == '\n') {
      ++line;
    } else if (content.substr(offset, 2) != "\r\n") {
      break;
    }
  }
  FieldCutter cutter(content, offset, delimiter);
  FieldCutter::End end = FieldCutter::End::kField;
  while (end == FieldCutter::End::kField) {
    end = cutter.Next();
    if (end == FieldCutter::End::kBad) {
      return DataLoss("{}, line {}: field {}: {}", at, line, record.fields.size() + 1,
                      cutter.problem());
    }
    record.fields.emplace_back(cutter.field());
  }
  record.next = cutter.next();
  return record;
}

class CsvFormat final : public RecordFormat {
 public:
  CsvFormat(const v1::CsvData& spec, std::vector<ColumnInfo> columns)
      : columns_(std::move(columns)),
        delimiter_(spec.delimiter()),
        header_(!spec.has_header() || spec.header()) {
    for (const ColumnInfo& info : columns_) {
      const v1::CsvColumn& column = spec.columns().at(info.name);
      CsvColumnPlan plan{.name = info.name, .dtype = info.dtype, .missing = {}};
      if (column.has_missing()) plan.missing = column.missing();
      plan.hash_buckets = column.hash_buckets();
      plans_.push_back(std::move(plan));
      indexes_.push_back(column.index());
    }
  }

  const std::vector<ColumnInfo>& columns() const override { return columns_; }
  bool lines() const override { return true; }

  Result<std::unique_ptr<RecordParser>> Begin(const std::string& path, const std::string& at,
                                              std::string_view content) const override {
    const char delimiter = DelimiterOf(path);
    const std::uint64_t start = content.starts_with("\xef\xbb\xbf") ? 3 : 0;
    if (content.starts_with("\xff\xfe") || content.starts_with("\xfe\xff")) {
      return InvalidArgument("{}: this is UTF-16 text; write it as UTF-8", at);
    }
    if (header_ && start == content.size()) {
      return DataLoss("{}: empty; its first line should name the columns", at);
    }
    if (start == content.size()) {
      return std::unique_ptr<RecordParser>(
          std::make_unique<CsvParser>(content, start, delimiter, std::vector<int>(), plans_));
    }
    MUSTER_TRY_ASSIGN(FirstRecord first, CutFirst(at, content, start, delimiter));
    std::vector<int> slots(first.fields.size(), -1);
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      MUSTER_TRY_ASSIGN(const std::size_t field, header_ ? FieldByName(at, first.fields, i)
                                                         : FieldByIndex(at, first.fields, i));
      if (slots[field] >= 0) {
        return InvalidArgument("columns {} and {} both read field {}",
                               plans_[static_cast<std::size_t>(slots[field])].name, plans_[i].name,
                               field);
      }
      slots[field] = static_cast<int>(i);
    }
    return std::unique_ptr<RecordParser>(std::make_unique<CsvParser>(
        content, header_ ? first.next : start, delimiter, std::move(slots), plans_));
  }

 private:
  char DelimiterOf(std::string_view path) const {
    if (!delimiter_.empty()) return delimiter_.front();
    for (const std::string_view end : {".gz", ".zst"}) {
      if (path.ends_with(end)) path.remove_suffix(end.size());
    }
    return path.ends_with(".tsv") ? '\t' : ',';
  }

  Result<std::size_t> FieldByName(const std::string& at, const std::vector<std::string>& fields,
                                  std::size_t column) const {
    const std::string& name = plans_[column].name;
    const auto it = std::find(fields.begin(), fields.end(), name);
    if (it == fields.end()) {
      return InvalidArgument("{}: no column {}; its first line names {}", at, name,
                             Joined(fields, kMostNamed, Shown));
    }
    if (std::find(it + 1, fields.end(), name) != fields.end()) {
      return InvalidArgument("{}: its first line names column {} twice", at, name);
    }
    return static_cast<std::size_t>(it - fields.begin());
  }

  Result<std::size_t> FieldByIndex(const std::string& at, const std::vector<std::string>& fields,
                                   std::size_t column) const {
    if (indexes_[column] < fields.size()) return indexes_[column];
    return InvalidArgument("{}: column {} has index {}, but the first line has {}", at,
                           plans_[column].name, indexes_[column], Counted(fields.size(), "field"));
  }

  std::vector<ColumnInfo> columns_;
  std::string delimiter_;
  bool header_;
  std::vector<CsvColumnPlan> plans_;
  std::vector<std::size_t> indexes_;
};

}  // namespace

std::unique_ptr<RecordFormat> MakeCsvFormat(const v1::CsvData& spec,
                                            std::vector<ColumnInfo> columns) {
  return std::make_unique<CsvFormat>(spec, std::move(columns));
}

}  // namespace muster::data
