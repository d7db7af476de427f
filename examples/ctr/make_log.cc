// make_log FOLDER [ROWS]: writes a click log in Criteo's format (a label, 13 numbers, 26
// categories, separated by tabs) into FOLDER: train-0.tsv .. train-3.tsv, held-out.tsv with a fifth
// as many rows, and planted.txt with the numbers of rows and the best AUC that there is to reach.
//
// Labels are drawn from a hidden model: a weight for each number and category, and three pairs of
// fields whose categories matter together, which a linear model cannot find. Its own probabilities
// give the AUC in planted.txt. The same ROWS make the same files.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kNumbers = 13;
constexpr std::size_t kFields = 26;
constexpr std::size_t kFiles = 4;
// Categories of the pairs (0, 1), (2, 3), (4, 5) have a place in a hidden plane.
constexpr std::size_t kPaired = 6;
using Place = std::array<double, 2>;

class Planted {
 public:
  Planted() {
    for (double& weight : numbers_) weight = 0.2 * normal_(random_);
    for (std::size_t field = 0; field < kFields; ++field) {
      const std::size_t size = field < kPaired ? 12 : 50 + 20 * field;
      for (std::size_t i = 0; i < size; ++i) {
        categories_[field].push_back(0.4 * normal_(random_));
        if (field < kPaired) {
          places_[field].push_back({0.9 * normal_(random_), 0.9 * normal_(random_)});
        }
      }
    }
  }

  // Appends a row; the probability that its label is 1, and the label.
  std::pair<double, bool> Append(std::string& out) {
    double logit = -1;
    std::string row;
    for (const double weight : numbers_) {
      const auto number = static_cast<int>(std::exp(1.5 + normal_(random_)));
      logit += weight * (std::log1p(number) - 1.7);
      row += '\t' + std::to_string(number);
    }
    std::array<std::size_t, kFields> chosen{};
    for (std::size_t field = 0; field < kFields; ++field) {
      const double draw = uniform_(random_);  // squared: the first ones are the frequent ones
      const auto size = static_cast<double>(categories_[field].size());
      chosen[field] = static_cast<std::size_t>(draw * draw * size);
      logit += categories_[field][chosen[field]];
      std::array<char, 16> text{};
      std::snprintf(text.data(), text.size(), "\t%02x%06x", static_cast<unsigned>(field),
                    static_cast<unsigned>(chosen[field]));
      row += text.data();
    }
    for (std::size_t field = 0; field < kPaired; field += 2) {
      const Place& a = places_[field][chosen[field]];
      const Place& b = places_[field + 1][chosen[field + 1]];
      logit += a[0] * b[0] + a[1] * b[1];
    }
    const double probability = 1 / (1 + std::exp(-logit));
    const bool clicked = uniform_(random_) < probability;
    out += clicked ? '1' : '0';
    out += row + '\n';
    return {probability, clicked};
  }

 private:
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::array<double, kNumbers> numbers_{};
  std::array<std::vector<double>, kFields> categories_;
  std::array<std::vector<Place>, kFields> places_;
};

// The share of (clicked, not clicked) pairs whose probabilities are in the right order.
double Auc(std::vector<std::pair<double, bool>> rows) {
  std::sort(rows.begin(), rows.end());
  double clicked = 0;
  double ranks = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].second) continue;
    clicked += 1;
    ranks += static_cast<double>(i + 1);
  }
  const double others = static_cast<double>(rows.size()) - clicked;
  return (ranks - clicked * (clicked + 1) / 2) / (clicked * others);
}

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.good()) return true;
  std::fprintf(stderr, "make_log: %s cannot be written\n", path.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const long rows = argc > 2 ? std::atol(argv[2]) : 300'000;
  if (argc < 2 || rows < 100) {
    std::fprintf(stderr, "make_log FOLDER [ROWS]: at least 100 rows\n");
    return 2;
  }
  const std::string folder = argv[1];
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);

  Planted planted;
  for (std::size_t file = 0; file < kFiles; ++file) {
    std::string text;
    for (long row = 0; row < rows / static_cast<long>(kFiles); ++row) (void)planted.Append(text);
    if (!Write(folder + "/train-" + std::to_string(file) + ".tsv", text)) return 1;
  }
  std::string text;
  std::vector<std::pair<double, bool>> held_out;
  for (long row = 0; row < rows / 5; ++row) held_out.push_back(planted.Append(text));
  if (!Write(folder + "/held-out.tsv", text)) return 1;
  const std::string numbers = std::to_string(rows) + " rows, " + std::to_string(rows / 5) +
                              " held out, best AUC " + std::to_string(Auc(held_out)) + "\n";
  std::printf("%s", numbers.c_str());
  return Write(folder + "/planted.txt", numbers) ? 0 : 1;
}
