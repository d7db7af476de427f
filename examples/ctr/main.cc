// Wide and deep on a click log in Criteo's format: tables of categories, cut over the parameter
// servers, of which closures fetch the rows that a batch has, and a small network, whose optimizer
// is on the servers too. make_log writes such a log with a known best score.
//
//   muster submit --strategy parameter_server --follow -- ctr FOLDER [EPOCHS]
//
// FOLDER is where all workers find the log. Exit code: 0 when the AUC on the held-out rows is at
// least 0.95 of the best one there is, else 1.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <muster/muster.h>

namespace {

constexpr double kLeastShare = 0.95;
constexpr std::int64_t kBuckets = 1 << 16;
constexpr std::int64_t kDimensions = 8;
constexpr std::int64_t kBatch = 256;
constexpr std::int64_t kScored = 2'000;  // rows for one closure

// Label, 13 numbers, 26 categories.
using Rows = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;

muster::Dataset<Rows> read(const std::string& files) {
  return muster::dataset::criteo<Rows>({.files = files, .hash_buckets = kBuckets});
}

struct TowerImpl : torch::nn::Cloneable<TowerImpl> {
  TowerImpl() { reset(); }  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall)
  void reset() override {
    layers = register_module("tower",
                             torch::nn::Sequential(torch::nn::Linear(13 + 26 * kDimensions, 64),
                                                   torch::nn::ReLU(), torch::nn::Linear(64, 1)));
  }
  torch::Tensor forward(const torch::Tensor& features) { return layers->forward(features); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Tower);

// One in each process. Tables are cut into parts of 256 KiB and more.
struct Model {
  muster::ParameterServerStrategy strategy{muster::min_size_partitioner(256 << 10, 8)};
  muster::Variable wide = table("wide", torch::zeros({kBuckets, 1}));
  muster::Variable deep = table("deep", torch::randn({kBuckets, kDimensions}) * 0.05);
  muster::ServerOptimizer tables{torch::optim::AdagradOptions(0.05), {wide, deep}};
  muster::DistributedModule<TowerImpl> tower = strategy.distribute(Tower());
  muster::DistributedOptimizer<torch::optim::Adam> optimizer =
      strategy.optimizer<torch::optim::Adam>(tower, torch::optim::AdamOptions(1e-3));

  // The logits of a batch.
  torch::Tensor operator()(const torch::Tensor& numbers, const torch::Tensor& categories) {
    const torch::Tensor rows = muster::embedding_lookup(deep, categories).flatten(1);
    return muster::embedding_lookup(wide, categories).sum({1, 2}) +
           tower(torch::cat({numbers, rows}, 1)).squeeze(1);
  }

 private:
  muster::Variable table(const std::string& name, const torch::Tensor& value) {
    const auto scope = strategy.scope();
    return muster::Variable::create(name, value);
  }
};

std::unique_ptr<Model> make_model() {
  torch::manual_seed(1);
  return std::make_unique<Model>();
}

// On each worker: the whole log again and again, in an order of its own.
muster::Dataset<Rows> batches(const std::string& folder) {
  return read(folder + "/train-*.tsv")
      .shuffle(20'000, static_cast<std::uint64_t>(muster::worker_index()) + 1)
      .repeat()
      .batch(kBatch);
}

// One update by a batch of the worker's.
double step(Model& model, muster::WorkerIterator<Rows>& data) {
  const auto [labels, numbers, categories] = data.get_next();
  const torch::Tensor loss =
      torch::binary_cross_entropy_with_logits(model(numbers, categories), labels);
  loss.backward();
  model.optimizer.step();
  model.tables.apply_gradients({{muster::embedding_gradient(model.wide), model.wide},
                                {muster::embedding_gradient(model.deep), model.deep}});
  return loss.item<double>();
}

// The labels and logits of some of the held-out rows.
std::pair<torch::Tensor, torch::Tensor> score(Model& model, const std::string& folder,
                                              std::int64_t first) {
  const torch::NoGradGuard no_grad;
  for (const auto& [labels, numbers, categories] :
       read(folder + "/held-out.tsv").skip(first).take(kScored).batch(kScored)) {
    return {labels, model(numbers, categories)};
  }
  return {torch::empty({0}), torch::empty({0})};
}

}  // namespace

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(batches);
MUSTER_FUNCTION(step);
MUSTER_FUNCTION(score);

namespace {

// The share of (clicked, not clicked) pairs that are in the right order.
double auc(const torch::Tensor& labels, const torch::Tensor& scores) {
  const torch::Tensor sorted = labels.index_select(0, scores.argsort()).to(torch::kDouble);
  const torch::Tensor ranks = torch::arange(1, sorted.numel() + 1).to(torch::kDouble);
  const double clicked = sorted.sum().item<double>();
  const double others = static_cast<double>(sorted.numel()) - clicked;
  return ((ranks * sorted).sum().item<double>() - clicked * (clicked + 1) / 2) / (clicked * others);
}

struct Planted {
  long rows = 0;
  long held_out = 0;
  double best = 0;
};

}  // namespace

int main(int argc, char** argv) {
  muster::init(argc, argv);
  const std::string folder = argc > 1 ? argv[1] : "";
  const int epochs = argc > 2 ? std::atoi(argv[2]) : 2;
  Planted planted;
  std::string line;
  std::ifstream file(folder + "/planted.txt");
  std::getline(file, line);
  if (std::sscanf(line.c_str(), "%ld rows, %ld held out, best AUC %lf", &planted.rows,
                  &planted.held_out, &planted.best) != 3) {
    std::fprintf(stderr, "ctr FOLDER [EPOCHS]: %s/planted.txt is not there; make_log writes it\n",
                 folder.c_str());
    return 2;
  }

  (void)muster::program_object<Model>();  // on the servers before the first closure asks for it
  muster::ClusterCoordinator coordinator;
  const auto data = coordinator.create_per_worker_dataset<batches>(folder).iterator();
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    muster::report("epoch " + std::to_string(epoch));
    std::vector<muster::RemoteValue<double>> losses;
    for (long row = 0; row < planted.rows; row += kBatch) {
      losses.push_back(coordinator.schedule<step>(data));
    }
    double sum = 0;
    for (const double loss : coordinator.fetch(losses)) sum += loss;
    std::printf("epoch %d: loss %.4f\n", epoch, sum / static_cast<double>(losses.size()));
  }

  // Each held-out row once.
  std::vector<muster::RemoteValue<std::pair<torch::Tensor, torch::Tensor>>> scores;
  for (std::int64_t first = 0; first < planted.held_out; first += kScored) {
    scores.push_back(coordinator.schedule<score>(folder, first));
  }
  std::vector<torch::Tensor> labels;
  std::vector<torch::Tensor> logits;
  for (const auto& [some_labels, some_logits] : coordinator.fetch(scores)) {
    labels.push_back(some_labels);
    logits.push_back(some_logits);
  }
  const double reached = auc(torch::cat(labels), torch::cat(logits));
  std::printf("AUC %.4f on %ld rows, of %.4f at best\n", reached,
              static_cast<long>(torch::cat(labels).numel()), planted.best);
  return reached >= kLeastShare * planted.best ? 0 : 1;
}
