// replay_main CORPUS MUTANTS: runs a target over every file of a folder and over mutants of them.
//
// Not a search, which libFuzzer does (preset `fuzz`): it keeps the targets alive in the default
// suite and finds again what was found before. Mutants come from a fixed seed, so a failure is
// repeatable; the input that ended the process is left in ./crash-<target>.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

namespace {

using Input = std::vector<std::uint8_t>;

// What runs now, for the handler of a fatal signal.
const Input* current = nullptr;
std::string crash_file;

extern "C" void KeepInput(int signal) {
  const int fd = ::open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && current != nullptr) {
    if (::write(fd, current->data(), current->size()) >= 0) ::close(fd);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run(const Input& input) {
  // A copy of exactly this size: a read past its end is one past an allocation.
  const Input exact(input.begin(), input.end());
  current = &exact;
  (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
  current = nullptr;
}

std::vector<Input> ReadCorpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// One to four changes: a bit, a byte, an interesting number, a cut, a piece doubled or taken from
// another input.
Input Mutant(const std::vector<Input>& corpus, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  Input input = corpus[below(corpus.size())];
  for (std::size_t change = 1 + below(4); change > 0; --change) {
    if (input.empty()) input.push_back(static_cast<std::uint8_t>(random()));
    const std::size_t at = below(input.size());
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        *place = static_cast<std::uint8_t>(*place ^ 1U << below(8));
        break;
      case 1:
        *place = static_cast<std::uint8_t>(random());
        break;
      case 2: {
        static constexpr std::uint64_t kNumbers[] = {0,          1,      0x7f,       0x80,
                                                     0xff,       0xffff, 0x7fffffff, 0x80000000,
                                                     0xffffffff, ~0ULL,  ~0ULL >> 1, 1ULL << 63};
        const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
        const std::size_t width =
            std::min<std::size_t>(std::size_t{1} << below(4), input.size() - at);
        std::memcpy(input.data() + at, &number, width);
        break;
      }
      case 3:
        input.resize(at);
        break;
      case 4: {
        const Input piece(place, place + static_cast<std::ptrdiff_t>(std::min<std::size_t>(
                                             1 + below(64), input.size() - at)));
        input.insert(place, piece.begin(), piece.end());
        break;
      }
      default: {
        const Input& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size());
        const std::size_t n = std::min(below(64) + 1, other.size() - from);
        input.insert(place, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + n));
      }
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS MUTANTS\n", argv[0]);
    return 2;
  }
  const std::vector<Input> corpus = ReadCorpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s holds no input\n", argv[1]);
    return 2;
  }
  const unsigned long mutants = std::strtoul(argv[2], nullptr, 10);
  crash_file = "crash-" + std::filesystem::path(argv[0]).filename().string();
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    std::signal(signal, KeepInput);

  for (const Input& input : corpus) Run(input);
  std::mt19937_64 random(1);
  for (unsigned long i = 0; i < mutants; ++i) Run(Mutant(corpus, random));
  std::printf("%zu inputs and %lu mutants of them\n", corpus.size(), mutants);
  return 0;
}
