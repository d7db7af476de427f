// Learns vectors of words from a text: skip-gram with negative sampling (word2vec). The vectors are
// rows of tables on the parameter servers, cut into shards. A closure takes a piece of the text,
// reads the rows that it needs and sends the gradients of these alone; the servers' Adagrad applies
// them. Kill workers while it runs: their pieces are learned elsewhere, each once.
//
//   bible -f 'Gen1:1-Rev22:21' > /tmp/kjv.txt                  (Debian's package bible-kjv)
//   muster submit --follow -- words /tmp/kjv.txt [<passes>]
//
// Prints the mean loss of each pass, the neighbours of some words, and how many related pairs
// ("gold" and "silver") are neighbours. Exit code: 0 when at least three quarters of them are, else
// 1; 2 for arguments that cannot be.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <muster/muster.h>

namespace {

// Rows of the tables: so many words are learned, the most frequent ones.
constexpr std::int64_t kWords = 6'000;
constexpr std::int64_t kDimensions = 64;
// Words of the text for one closure.
constexpr std::int64_t kPiece = 4'000;
constexpr std::int64_t kWindow = 5;
constexpr std::int64_t kNegatives = 5;
// Words that are more frequent than this are skipped at times, "the" mostly.
constexpr double kFrequent = 3e-4;
constexpr double kRate = 0.1;
constexpr std::int64_t kNeighbours = 10;
constexpr double kLeastRelated = 0.75;

constexpr std::array kShown = {"king", "gold", "jerusalem", "two", "moses", "wisdom"};
constexpr std::array<std::pair<const char*, const char*>, 16> kRelated = {{
    {"gold", "silver"},
    {"brass", "iron"},
    {"blue", "purple"},
    {"heaven", "earth"},
    {"sun", "moon"},
    {"north", "south"},
    {"east", "west"},
    {"two", "three"},
    {"moses", "aaron"},
    {"husband", "wife"},
    {"sons", "daughters"},
    {"hand", "arm"},
    {"ram", "bullock"},
    {"horses", "chariots"},
    {"wicked", "righteous"},
    {"wisdom", "understanding"},
}};

}  // namespace

struct Text {
  // The most frequent first: a word's number is its row in the tables.
  std::vector<std::string> words;
  // The share of each in the text.
  std::vector<double> frequency;
  // For drawing words, each about as often as it stands in the text.
  std::vector<double> drawn_up_to;
  std::vector<std::int64_t> tokens;

  std::int64_t pieces() const { return static_cast<std::int64_t>(tokens.size()) / kPiece; }
  // -1: it is none of them.
  std::int64_t number_of(const std::string& word) const {
    const auto found = std::find(words.begin(), words.end(), word);
    return found == words.end() ? -1 : found - words.begin();
  }
};

// Runs of letters, in lower case; what has digits ("Ge1:1") is no word.
Text read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) muster::raise(muster::ErrorCode::kNotFound, path + " cannot be read");
  std::vector<std::string> all;
  std::map<std::string, std::int64_t> counts;
  for (std::string run; file >> run;) {
    std::string word;
    bool digits = false;
    for (const char c : run) {
      const auto letter = static_cast<unsigned char>(c);
      digits = digits || std::isdigit(letter) != 0;
      if (std::isalpha(letter) != 0) word += static_cast<char>(std::tolower(letter));
    }
    if (word.empty() || digits) continue;
    ++counts[word];
    all.push_back(std::move(word));
  }

  std::vector<std::pair<std::int64_t, std::string>> by_count;
  for (const auto& [word, count] : counts) by_count.emplace_back(-count, word);
  std::sort(by_count.begin(), by_count.end());
  Text text;
  std::map<std::string, std::int64_t> numbers;
  double drawn = 0;
  for (const auto& [count, word] : by_count) {
    if (std::ssize(text.words) == kWords) break;
    numbers[word] = std::ssize(text.words);
    text.words.push_back(word);
    text.frequency.push_back(static_cast<double>(-count) / static_cast<double>(all.size()));
    drawn += std::pow(text.frequency.back(), 0.75);
    text.drawn_up_to.push_back(drawn);
  }
  for (const std::string& word : all) {
    if (const auto number = numbers.find(word); number != numbers.end()) {
      text.tokens.push_back(number->second);
    }
  }
  if (text.pieces() == 0) {
    muster::raise(muster::ErrorCode::kInvalidArgument,
                  path + " has " + std::to_string(text.tokens.size()) + " words, at least " +
                      std::to_string(kPiece) + " are needed");
  }
  return text;
}

namespace {

// One in each process: the driver's variables are on the servers, executors find them there.
struct Model {
  muster::ParameterServerStrategy strategy{muster::min_size_partitioner(256 << 10, 16)};
  // A word's vector, and its vector as a neighbour of others.
  muster::Variable words, contexts;
  muster::ServerOptimizer optimizer;

  Model() {
    const auto scope = strategy.scope();
    words = muster::Variable::create(
        "words", (torch::rand({kWords, kDimensions}) - 0.5) / static_cast<double>(kDimensions));
    contexts = muster::Variable::create("contexts", torch::zeros({kWords, kDimensions}));
    optimizer = muster::ServerOptimizer(torch::optim::AdagradOptions(kRate), {words, contexts});
  }
};
std::unique_ptr<Model> make_model() { return std::make_unique<Model>(); }

struct Examples {
  std::vector<std::int64_t> centers;
  // For each center a word that stands near it, and then kNegatives that were drawn.
  std::vector<std::int64_t> contexts;
};

// Depends on nothing but its arguments: a closure that runs again learns the same again.
Examples examples_of(const Text& text, std::int64_t pass, std::int64_t piece) {
  std::seed_seq seed{pass, piece};
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> share;

  std::vector<std::int64_t> kept;
  for (std::int64_t i = piece * kPiece; i < (piece + 1) * kPiece; ++i) {
    const std::int64_t word = text.tokens[static_cast<std::size_t>(i)];
    const double frequency = text.frequency[static_cast<std::size_t>(word)];
    if (share(random) < std::sqrt(kFrequent / frequency)) kept.push_back(word);
  }

  Examples examples;
  for (std::int64_t i = 0; i < std::ssize(kept); ++i) {
    const auto reach = static_cast<std::int64_t>(1 + random() % kWindow);
    const std::int64_t last = std::min(std::ssize(kept) - 1, i + reach);
    for (std::int64_t j = std::max<std::int64_t>(0, i - reach); j <= last; ++j) {
      if (j == i) continue;
      examples.centers.push_back(kept[static_cast<std::size_t>(i)]);
      examples.contexts.push_back(kept[static_cast<std::size_t>(j)]);
      for (int k = 0; k < kNegatives; ++k) {
        const double at = share(random) * text.drawn_up_to.back();
        const auto word = std::lower_bound(text.drawn_up_to.begin(), text.drawn_up_to.end(), at);
        examples.contexts.push_back(word - text.drawn_up_to.begin());
      }
    }
  }
  return examples;
}

}  // namespace

// Runs on a worker: one update by a piece of the text. The mean loss of its examples.
double learn(Model& model, const Text& text, std::int64_t pass, std::int64_t piece) {
  const Examples examples = examples_of(text, pass, piece);
  const auto count = std::ssize(examples.centers);
  if (count == 0) return 0;
  const torch::Tensor centers =
      muster::embedding_lookup(model.words, torch::tensor(examples.centers));
  const torch::Tensor contexts = muster::embedding_lookup(
      model.contexts, torch::tensor(examples.contexts).view({count, 1 + kNegatives}));

  // How much the model thinks that the second word stands near the first one; true of the first.
  const torch::Tensor scores = torch::bmm(contexts, centers.unsqueeze(2)).squeeze(2);
  const torch::Tensor loss = -torch::log_sigmoid(scores.select(1, 0)).sum() -
                             torch::log_sigmoid(-scores.narrow(1, 1, kNegatives)).sum();
  loss.backward();
  model.optimizer.apply_gradients({{muster::embedding_gradient(model.words), model.words},
                                   {muster::embedding_gradient(model.contexts), model.contexts}});
  return loss.item<double>() / static_cast<double>(count);
}

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(read_text);
MUSTER_FUNCTION(learn);

namespace {

// The numbers of the words whose vectors point most nearly as this one's does.
std::vector<std::int64_t> neighbours(const torch::Tensor& unit_vectors, std::int64_t word) {
  torch::Tensor cosines = torch::mv(unit_vectors, unit_vectors[word]);
  cosines[word] = -1;
  const std::int64_t wanted = std::min(kNeighbours, cosines.size(0));
  const torch::Tensor nearest = std::get<1>(cosines.topk(wanted));
  return {nearest.data_ptr<std::int64_t>(), nearest.data_ptr<std::int64_t>() + wanted};
}

// The share of related pairs that are neighbours, of those that the text has.
double show(const Text& text, const torch::Tensor& vectors) {
  const auto known = static_cast<std::int64_t>(text.words.size());
  const torch::Tensor unit = torch::nn::functional::normalize(
      vectors.narrow(0, 0, known), torch::nn::functional::NormalizeFuncOptions().dim(1));
  for (const char* word : kShown) {
    const std::int64_t number = text.number_of(word);
    if (number < 0) continue;
    std::printf("%-10s", word);
    for (const std::int64_t near : neighbours(unit, number)) {
      std::printf(" %s", text.words[static_cast<std::size_t>(near)].c_str());
    }
    std::printf("\n");
  }

  int pairs = 0;
  int found = 0;
  for (const auto& [a, b] : kRelated) {
    const std::int64_t first = text.number_of(a);
    const std::int64_t second = text.number_of(b);
    if (first < 0 || second < 0) continue;
    ++pairs;
    const auto near = [&](std::int64_t word, std::int64_t wanted) {
      const std::vector<std::int64_t> all = neighbours(unit, word);
      return std::find(all.begin(), all.end(), wanted) != all.end();
    };
    if (near(first, second) || near(second, first)) ++found;
  }
  std::printf("related: %d of %d pairs\n", found, pairs);
  return pairs == 0 ? 1 : static_cast<double>(found) / pairs;
}

}  // namespace

int main(int argc, char** argv) {
  muster::init(argc, argv);
  const int passes = argc > 2 ? std::atoi(argv[2]) : 5;
  if (argc < 2 || passes < 1) {
    std::fprintf(stderr, "usage: words <text> [<passes>]\n");
    return 2;
  }

  muster::program_object<Model>();  // makes the variables
  muster::ClusterCoordinator coordinator;
  const Text text = read_text(argv[1]);
  std::printf("%zu words of a text of %zu\n", text.words.size(), text.tokens.size());
  const auto on_workers = coordinator.create_per_worker_resource<read_text>(std::string(argv[1]));

  for (int pass = 1; pass <= passes; ++pass) {
    muster::report("pass " + std::to_string(pass));
    std::vector<muster::RemoteValue<double>> losses;
    for (std::int64_t piece = 0; piece < text.pieces(); ++piece) {
      losses.push_back(coordinator.schedule<learn>(on_workers, pass, piece));
    }
    double sum = 0;
    for (const auto& loss : losses) sum += loss.fetch();
    std::printf("pass %d: loss %.4f\n", pass, sum / static_cast<double>(losses.size()));
    std::fflush(stdout);
  }

  const double related = show(text, muster::program_object<Model>().words.value());
  return related >= kLeastRelated ? 0 : 1;
}
