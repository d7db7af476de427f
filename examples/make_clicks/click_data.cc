#include "examples/make_clicks/click_data.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "common/base/split_mix.h"

namespace muster::examples {
namespace {

namespace fs = std::filesystem;

constexpr int kNumbers = 13;
constexpr int kCategories = 26;
// Chosen so that the optimum is about 0.87 and a linear model finds it from 100,000 rows.
constexpr double kCategoryDeviation = 0.42;
constexpr double kNumberDeviation = 0.2;
constexpr double kBias = -1.2;
constexpr double kMissingNumber = 0.1;
constexpr std::size_t kChunk = std::size_t{4} << 20;

// About normal, mean 0, deviation 1: twelve uniform draws (no libm, so the same everywhere).
double Normal(SplitMix64& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.Unit();
  return sum;
}

class HiddenModel {
 public:
  explicit HiddenModel(std::uint64_t seed) : seed_(seed) {
    SplitMix64 random(Mix(seed));
    for (int i = 0; i < kNumbers; ++i) {
      number_weight_[i] = kNumberDeviation * Normal(random);
      number_mean_[i] = 1 + 2 * random.Unit();
    }
    for (int f = 0; f < kCategories; ++f) {
      weights_[f].resize(static_cast<std::size_t>(100 + 12 * f));
      for (double& weight : weights_[f]) weight = kCategoryDeviation * Normal(random);
    }
  }

  // Appends one row and gives the probability that its label is 1.
  double AppendRow(SplitMix64& random, std::string& out, bool& clicked) const {
    double logit = kBias;
    std::string numbers;
    for (int i = 0; i < kNumbers; ++i) {
      numbers.push_back('\t');
      double seen = 0;  // what a reader makes of it: log(1 + max(x, 0)), 0 when missing
      const double value = std::floor(std::exp(number_mean_[i] + Normal(random))) - 1;
      if (random.Unit() >= kMissingNumber) {
        fmt::format_to(std::back_inserter(numbers), "{}", static_cast<std::int64_t>(value));
        seen = std::log1p(std::max(value, 0.0));
      }
      logit += number_weight_[i] * (seen - number_mean_[i]);
    }
    for (int f = 0; f < kCategories; ++f) {
      const std::vector<double>& weights = weights_[f];
      const double u = random.Unit();  // squared: low values are more frequent
      const auto value = static_cast<std::size_t>(u * u * static_cast<double>(weights.size()));
      logit += weights[value];
      numbers.push_back('\t');
      // Real logs have empty categories too: an absence is a value like any other.
      if (value > 0 || f % 3 != 0) AppendText(f, value, numbers);
    }
    const double probability = 1 / (1 + std::exp(-logit));
    clicked = random.Unit() < probability;
    out.push_back(clicked ? '1' : '0');
    out.append(numbers).push_back('\n');
    return probability;
  }

  std::uint64_t categories() const {
    std::uint64_t count = 0;
    for (const auto& weights : weights_) count += weights.size();
    return count;
  }

 private:
  void AppendText(int field, std::size_t value, std::string& out) const {
    const std::uint64_t id = Mix(Mix(seed_ ^ static_cast<std::uint64_t>(field)) ^ value);
    fmt::format_to(std::back_inserter(out), "{:08x}", id & 0xffffffff);
  }

  std::uint64_t seed_;
  std::array<double, kNumbers> number_weight_ = {};
  std::array<double, kNumbers> number_mean_ = {};
  std::array<std::vector<double>, kCategories> weights_;
};

std::string Gzip(std::string_view text) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string_view Extension(ClickCompression compression) {
  switch (compression) {
    case ClickCompression::kZstd:
      return ".tsv.zst";
    case ClickCompression::kGzip:
      return ".tsv.gz";
    default:
      return ".tsv";
  }
}

// Each chunk becomes a frame (zstd) or member (gzip) of its own; readers put them together.
class ClickFile {
 public:
  ClickFile(std::string path, ClickCompression compression)
      : path_(std::move(path)),
        compression_(compression),
        out_(path_, std::ios::binary | std::ios::trunc) {}

  // Where to append rows.
  std::string& buffer() { return buffer_; }

  Status FlushIfFull() { return buffer_.size() < kChunk ? Ok() : Flush(); }
  Status Close() {
    MUSTER_TRY(Flush());
    out_.close();
    return out_ ? Ok() : FromErrno(errno, fmt::format("write {}", path_));
  }

 private:
  Status Flush() {
    if (compression_ == ClickCompression::kZstd) buffer_ = Zstd(buffer_);
    if (compression_ == ClickCompression::kGzip) buffer_ = Gzip(buffer_);
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
    return out_ ? Ok() : FromErrno(errno, fmt::format("write {}", path_));
  }

  std::string path_;
  ClickCompression compression_;
  std::ofstream out_;
  std::string buffer_;
};

// Whether a run writes files of that name: train-00.tsv.zst, eval.tsv.
bool IsClickFile(std::string_view name) {
  constexpr std::string_view kTrain = "train-";
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view ending = name.substr(dot);
  if (ending != ".tsv" && ending != ".tsv.zst" && ending != ".tsv.gz") return false;
  const std::string_view stem = name.substr(0, dot);
  if (stem == "eval") return true;
  return stem.starts_with(kTrain) && stem.size() >= kTrain.size() + 2 &&
         stem.find_first_not_of("0123456789", kTrain.size()) == std::string_view::npos;
}

// Files of an earlier run would be matched by the same glob. Somebody else's stay.
void RemoveOldFiles(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!IsClickFile(entry.path().filename().string())) continue;
    if (entry.is_regular_file(error)) fs::remove(entry.path(), error);
  }
}

Status WriteTraining(const ClickOptions& options, const HiddenModel& model, ClickReport& report) {
  SplitMix64 random(Mix(options.seed ^ 0x7261696e));
  for (std::uint32_t f = 0; f < options.files; ++f) {
    report.train_files.push_back(
        fmt::format("{}/train-{:02}{}", options.folder, f, Extension(options.compression)));
    ClickFile file(report.train_files.back(), options.compression);
    const std::uint64_t end = options.rows * (f + 1) / options.files;
    for (std::uint64_t row = options.rows * f / options.files; row < end; ++row) {
      bool clicked = false;
      model.AppendRow(random, file.buffer(), clicked);
      MUSTER_TRY(file.FlushIfFull());
    }
    MUSTER_TRY(file.Close());
  }
  return Ok();
}

Status WriteHeldOut(const ClickOptions& options, const HiddenModel& model, ClickReport& report) {
  SplitMix64 random(Mix(options.seed ^ 0x6576616c));
  report.eval_file = fmt::format("{}/eval{}", options.folder, Extension(options.compression));
  ClickFile file(report.eval_file, options.compression);
  std::vector<double> scores(options.eval_rows);
  const auto clicked = std::make_unique<bool[]>(options.eval_rows);
  for (std::uint64_t row = 0; row < options.eval_rows; ++row) {
    scores[row] = model.AppendRow(random, file.buffer(), clicked[row]);
    MUSTER_TRY(file.FlushIfFull());
  }
  const std::span<const bool> labels(clicked.get(), options.eval_rows);
  report.optimum_auc = Auc(scores, labels);
  report.eval_click_rate = static_cast<double>(std::count(labels.begin(), labels.end(), true)) /
                           static_cast<double>(options.eval_rows);
  return file.Close();
}

}  // namespace

Result<ClickReport> MakeClicks(const ClickOptions& options) {
  if (options.folder.empty()) return InvalidArgument("no folder given");
  if (options.rows == 0 || options.eval_rows == 0) return InvalidArgument("no rows to write");
  if (options.files == 0 || options.files > options.rows) {
    return InvalidArgument("{} rows cannot be spread over {} files", options.rows, options.files);
  }
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) return FromErrno(error.value(), fmt::format("make {}", options.folder));
  RemoveOldFiles(options.folder);

  const HiddenModel model(options.seed);
  ClickReport report;
  report.categories = model.categories();
  MUSTER_TRY(WriteTraining(options, model, report));
  MUSTER_TRY(WriteHeldOut(options, model, report));
  return report;
}

double Auc(std::span<const double> scores, std::span<const bool> positive) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  double positives = 0;
  double rank_sum = 0;  // of the positives, ranks from 1, equal scores share their mean rank
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    double here = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end) {
      here += positive[order[end]] ? 1 : 0;
    }
    positives += here;
    rank_sum += here * static_cast<double>(begin + 1 + end) / 2;
    begin = end;
  }
  const double negatives = static_cast<double>(scores.size()) - positives;
  if (positives == 0 || negatives == 0) return 0.5;
  return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives);
}

}  // namespace muster::examples
