#include "collectives/costs_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/number_in.h"

namespace muster::collectives {
namespace {

constexpr std::string_view kFirstWord = "muster-collective-costs";
constexpr std::string_view kVersion = "1";
constexpr std::array<std::string_view, kLinkKinds> kKinds = {"tcp", "unix"};
// More than a minute for a round is no measurement.
constexpr double kMostSeconds = 60;

struct Figure {
  std::string_view name;
  double Costs::* where;
  double unit;  // in seconds
};
constexpr std::array<Figure, 4> kFigures = {{{"round_us", &Costs::round, 1e-6},
                                             {"message_us", &Costs::message, 1e-6},
                                             {"byte_ns", &Costs::byte, 1e-9},
                                             {"reduced_byte_ns", &Costs::reduced_byte, 1e-9}}};

std::string ColumnNames() {
  std::vector<std::string_view> names{"link", "algorithm"};
  for (const Figure& figure : kFigures) names.push_back(figure.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string_view> AlgorithmNames() {
  std::vector<std::string_view> names;
  for (const Algorithm algorithm : kAlgorithms) names.push_back(NameOf(algorithm));
  return names;
}

std::vector<std::string_view> Words(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t length = std::min(line.find_first_of(kBlanks), line.size());
    words.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
}

// A text that a person may have written, as it is shown: it has a bound.
std::string Shown(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string shown;
  for (const char c : text.substr(0, kMost)) shown.push_back(c < ' ' || c > '~' ? '?' : c);
  return text.size() > kMost ? shown + "..." : shown;
}

bool InRange(double seconds) { return seconds >= 0 && seconds <= kMostSeconds; }

// Which of `names` this word is.
template <class Names>
std::optional<std::size_t> IndexOf(const Names& names, std::string_view word) {
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) return std::nullopt;
  return static_cast<std::size_t>(std::distance(names.begin(), found));
}

// A few lines: what is longer is no such file, and not read to its end.
Result<std::string> ReadText(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const auto why = [] { return Unavailable("{}", std::strerror(errno)); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return why();
  std::string text(kMost, '\0');
  text.resize(std::fread(text.data(), 1, kMost, file.get()));
  if (std::ferror(file.get()) != 0) return why();
  return text;
}

Status CheckFirst(const std::vector<std::string_view>& words, const std::string& where) {
  if (words.size() != 2 || words[0] != kFirstWord) {
    return InvalidArgument(
        "{}: a file of what collectives cost begins with \"{} {}\": muster bench allreduce --tune "
        "writes one",
        where, kFirstWord, kVersion);
  }
  if (words[1] == kVersion) return Ok();
  return InvalidArgument(
      "{}: version {} of what collectives cost; this Muster reads version {}: write the file anew "
      "by muster bench allreduce --tune",
      where, Shown(words[1]), kVersion);
}

}  // namespace

std::string CostsText(const LinkCosts& costs, std::string_view how) {
  std::string text = fmt::format("{} {}\n# {}\n#\n", kFirstWord, kVersion, how);
  text += fmt::format("# {:4} {:18}", "link", "algorithm");
  for (const Figure& figure : kFigures) text += fmt::format(" {:>16}", figure.name);
  text += "\n";
  for (std::size_t kind = 0; kind < kLinkKinds; ++kind) {
    for (const Algorithm algorithm : kAlgorithms) {
      text += fmt::format("{:6} {:18}", kKinds[kind], NameOf(algorithm));
      for (const Figure& figure : kFigures) {
        text +=
            fmt::format(" {:16.6g}", costs.of_kind[kind].of(algorithm).*figure.where / figure.unit);
      }
      text += "\n";
    }
  }
  return text;
}

Result<LinkCosts> ParseCosts(std::string_view text, const std::string& path) {
  LinkCosts costs;
  // In which line each stands; 0: in none yet.
  std::array<std::array<std::size_t, kAlgorithms.size()>, kLinkKinds> lines{};
  bool first = true;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    const std::vector<std::string_view> words = Words(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    if (first) {
      MUSTER_TRY(CheckFirst(words, where));
      first = false;
      continue;
    }
    if (words.size() != 2 + kFigures.size()) {
      return InvalidArgument("{}: \"{}\" has {} words, and {} are needed: {}", where, Shown(line),
                             words.size(), 2 + kFigures.size(), ColumnNames());
    }
    const auto kind = IndexOf(kKinds, words[0]);
    if (!kind.has_value()) {
      return InvalidArgument("{}: no link is called \"{}\", but {}", where, Shown(words[0]),
                             fmt::join(kKinds, ", "));
    }
    const auto algorithm = IndexOf(AlgorithmNames(), words[1]);
    if (!algorithm.has_value()) {
      return InvalidArgument("{}: no algorithm is called \"{}\", but {}", where, Shown(words[1]),
                             fmt::join(AlgorithmNames(), ", "));
    }
    std::size_t& before = lines[*kind][*algorithm];
    if (before != 0) {
      return InvalidArgument("{}: {} {} stands in line {} already", where, words[0], words[1],
                             before);
    }
    before = number;
    for (std::size_t f = 0; f < kFigures.size(); ++f) {
      const std::string_view word = words[2 + f];
      const double seconds = NumberIn<double>(word).value_or(-1) * kFigures[f].unit;
      if (!InRange(seconds)) {
        return InvalidArgument("{}: {} is \"{}\": a number from 0 to {:g} is needed", where,
                               kFigures[f].name, Shown(word), kMostSeconds / kFigures[f].unit);
      }
      costs.of_kind[*kind].of(kAlgorithms[*algorithm]).*kFigures[f].where = seconds;
    }
  }
  if (first) MUSTER_TRY(CheckFirst({}, path + ":1"));
  for (std::size_t kind = 0; kind < kLinkKinds; ++kind) {
    for (std::size_t a = 0; a < kAlgorithms.size(); ++a) {
      if (lines[kind][a] != 0) continue;
      return InvalidArgument(
          "{}: no line begins with \"{} {}\": each link needs one for each of {}", path,
          kKinds[kind], NameOf(kAlgorithms[a]), fmt::join(AlgorithmNames(), ", "));
    }
  }
  return costs;
}

Result<std::optional<LinkCosts>> CostsFrom(const Environment& environment) {
  const std::string path = environment(kCostsVariable).value_or("");
  if (path.empty()) return std::optional<LinkCosts>();
  const Result<std::string> text = ReadText(path);
  if (!text.ok()) {
    return FailedPrecondition(
        "{} names {}, which cannot be read: {}; write it by muster bench allreduce --tune {}, or "
        "unset the variable",
        kCostsVariable, path, Message(text.status()), path);
  }
  const Result<LinkCosts> costs = ParseCosts(*text, path);
  if (!costs.ok()) return Annotate(costs.status(), kCostsVariable);
  return std::optional<LinkCosts>(*costs);
}

std::string PackedCosts(const LinkCosts& costs) {
  std::string packed;
  for (const AlgorithmCosts& kind : costs.of_kind) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Figure& figure : kFigures) {
        const double seconds = kind.of(algorithm).*figure.where;
        packed.append(reinterpret_cast<const char*>(&seconds), sizeof(seconds));
      }
    }
  }
  return packed;
}

Result<LinkCosts> UnpackedCosts(std::span<const std::byte> packed) {
  if (packed.size() != kPackedCostsBytes) {
    return InvalidArgument("{} bytes of what collectives cost: {} are needed", packed.size(),
                           kPackedCostsBytes);
  }
  LinkCosts costs;
  const std::byte* at = packed.data();
  for (AlgorithmCosts& kind : costs.of_kind) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Figure& figure : kFigures) {
        double& seconds = kind.of(algorithm).*figure.where;
        std::memcpy(&seconds, at, sizeof(seconds));
        at += sizeof(seconds);
        if (!InRange(seconds)) {
          return InvalidArgument("{} of {} is {} s: 0 to {} are allowed", figure.name,
                                 NameOf(algorithm), seconds, kMostSeconds);
        }
      }
    }
  }
  return costs;
}

}  // namespace muster::collectives
