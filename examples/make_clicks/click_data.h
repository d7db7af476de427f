// Click logs in Criteo's format whose best possible score is known: labels are drawn from a hidden
// logistic model over all 13 numbers and 26 categories, so the AUC of that model's own
// probabilities is what a perfect training run would reach.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace muster::examples {

enum class ClickCompression : std::uint8_t { kZstd, kGzip, kNone };

struct ClickOptions {
  std::uint64_t rows = 200'000;
  std::uint64_t eval_rows = 20'000;
  // The training rows are spread over this many files, train-00.tsv.zst and so on; the held-out
  // ones are in eval.tsv.zst.
  std::uint32_t files = 4;
  std::uint64_t seed = 1;
  ClickCompression compression = ClickCompression::kZstd;
  // Made if missing. Click files that an earlier run left there are replaced; what has another name
  // than those stays.
  std::string folder = {};
};

struct ClickReport {
  std::vector<std::string> train_files;
  std::string eval_file;
  // What the hidden model reaches on the held-out rows.
  double optimum_auc = 0;
  double eval_click_rate = 0;
  // Distinct (field, text) pairs that can occur.
  std::uint64_t categories = 0;
};

// Writes the files. The same options make the same bytes.
//   kInvalidArgument: no rows, no files...  From the system: the folder cannot be written.
Result<ClickReport> MakeClicks(const ClickOptions& options);

// Area under the ROC curve; equal scores count half. 0.5 when one class is missing.
double Auc(std::span<const double> scores, std::span<const bool> positive);

}  // namespace muster::examples
