// A program with variables on parameter servers, as a user writes one: what it is told to do is its
// first argument.
//
//   count N          N closures, each adds 1 to a variable; prints "scheduled N", then "counted S"
//   rounds FILE      100 such closures, again and again until the file is there; prints "rounds
//                    begin", then "rounds exact" or what was counted
//   million FOLDER N N closures, each adds 1 to a variable and its future is dropped; of each
//                    thousand 50 take from a new pass over per-worker data, and 50 have a result
//                    that is held for a while. After a fifth of them prints "a fifth" and goes on
//                    when FOLDER/fifth is there, after all "all" and FOLDER/all; then prints
//                    "million exact" or what was counted
//   train N          N closures, each one step of a small model; prints "error E"
//   optimize N       N closures, each one update by an optimizer on the servers and another of a
//   row;
//                    prints "scheduled N", then "optimized S R"
//   steps N [WHAT]   N closures in synchronous steps of 4, each a gradient whose bits show what it
//   read;
//                    prints "scheduled N", then "bits B..."
//   lookup           closures that look rows up and write their gradient; prints "table S"
//   anew             closures write and read a variable that is dropped and made again between
//   them;
//                    prints "anew V..."
//   modules N        a closure that makes N modules and optimizers one after another and drops
//   them;
//                    prints "modules S R": the sums of their values and of their learning rates
//   outside          run() outside of closures; prints "ran V"
//   reduced          reduce() outside of closures; prints "reduced V"
//   differ           executors make the variable with another shape; prints what is thrown
//   refused          closures until a worker is refused; prints why
//   options          executors make the optimizer with other options; prints what is thrown
//   built DIR N      N closures that take from per-worker data, whose function adds a byte to
//   DIR/builds
//                    and waits for DIR/gate; prints "built exact" or what was counted
//   valued DIR N     the same with a per-worker value
//   gated DIR N      N closures that add 1 to a variable: each adds a byte to DIR/begun, waits for
//                    DIR/write, writes, adds one to DIR/written and waits for DIR/end; prints
//                    "built exact" or what was counted
//   samples FILE     passes that all workers share over the same examples, each of which a closure
//                    counts, again and again until the file is there; prints "samples begin", then
//                    "samples exact" or what was counted
//   hold FILE        holds 64 MB on servers and as much on each worker until the file is there;
//                    prints "holds"
//   watch FILE       reads a variable and looks who is there until FILE is; prints "away T..." or
//                    "all there" at each change, and "unread" when a read fails; at the end "of "
//                    and the tasks that it has seen
//   evaluated DIR N  saves a checkpoint after each of N closures that add 1 to a variable; the
//                    evaluator reports the square of what each has
//   lost FILE        closures until a server is lost; writes FILE when it has begun, prints "lost
//   T"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "strategy/muster.h"

namespace {

constexpr std::int64_t kSamples = 400;
constexpr std::int64_t kSamplesPerClosure = 4;

// One in each process: the driver's variables are on the servers, executors find them there.
struct Model {
  // MODEL_DEVICES in the environment: two replicas.
  muster::ParameterServerStrategy strategy{muster::fixed_shards_partitioner(2),
                                           std::getenv("MODEL_DEVICES") == nullptr
                                               ? std::vector<std::string>()
                                               : std::vector<std::string>{"CPU:0", "CPU:1"}};
  muster::Variable counter;
  muster::Variable w;
  muster::Variable table;
  muster::Variable samples;
  muster::ServerOptimizer optimizer;

  explicit Model(std::int64_t features = 3, double momentum = 0) {
    const auto scope = strategy.scope();
    counter = muster::Variable::create("counter", 0);
    w = muster::Variable::create("w", torch::zeros({features, 1}));
    table = muster::Variable::create("table", torch::ones({10, 2}));
    samples = muster::Variable::create("samples", torch::zeros({kSamples}));
    optimizer = muster::ServerOptimizer(torch::optim::SGDOptions(1).momentum(momentum), {w, table});
  }
};
std::unique_ptr<Model> make_model() { return std::make_unique<Model>(); }

void count(Model& model) { model.counter += 1; }
muster::Dataset<torch::Tensor> numbers() { return muster::dataset::range(1'000'000); }
void count_in_pass(Model& model, muster::WorkerIterator<torch::Tensor>& data) {
  (void)data.get_next();
  model.counter += 1;
}
torch::Tensor count_and_tell(Model& model) {
  model.counter += 1;
  return torch::ones({64});
}
// Long enough to be killed in.
void count_slowly(Model& model) {
  model.counter += 1;
  ::usleep(5'000);
}
void add_byte(const std::string& file) { std::ofstream(file, std::ios::app) << '.' << std::flush; }
void wait_for(const std::string& file) {
  while (!std::ifstream(file).good()) ::usleep(5'000);
}
muster::Dataset<torch::Tensor> gated_data(const std::string& folder) {
  add_byte(folder + "/builds");
  wait_for(folder + "/gate");
  return muster::dataset::range(1'000'000);
}
void count_next(Model& model, muster::WorkerIterator<torch::Tensor>& data) {
  (void)data.get_next();
  count_slowly(model);
}
std::int64_t gated_value(const std::string& folder) {
  (void)gated_data(folder);
  return 1;
}
void count_with(Model& model, const std::int64_t& value) {
  model.counter += value;
  ::usleep(5'000);
}
// None that travels: of those a worker has the bytes, too.
struct Ballast {
  torch::Tensor values = torch::ones({16'000'000});
};
Ballast ballast() { return {}; }
void count_behind_gates(Model& model, const std::string& folder) {
  add_byte(folder + "/begun");
  wait_for(folder + "/write");
  model.counter += 1;
  model.strategy.flush();
  add_byte(folder + "/written");
  wait_for(folder + "/end");
}
muster::Dataset<torch::Tensor> samples() {
  return muster::dataset::range(kSamples).batch(kSamplesPerClosure);
}
// Long enough to be stopped in, before it has written and after.
void count_samples(Model& model, muster::WorkerIterator<torch::Tensor>& data) {
  // In another order, in which each closure has some on both shards.
  const torch::Tensor ids = torch::remainder(data.get_next() * 199, kSamples);
  ::usleep(3'000);
  model.samples.scatter_add({.values = torch::ones({ids.numel()}), .indices = ids},
                            /*read_value=*/false);
  ::usleep(3'000);
}
double step(Model& model, const torch::Tensor& x, const torch::Tensor& y) {
  const muster::Variable& w = model.w;
  const torch::Tensor loss = (torch::mm(x, w) - y).pow(2).mean();
  loss.backward();
  w.assign_sub(w.value().grad() * 0.1, /*read_value=*/false);
  return loss.item<double>();
}
void subtract_gradient(Model& model, const torch::Tensor& ids) {
  const muster::Variable& table = model.table;
  muster::embedding_lookup(table, ids).sum().backward();
  table.scatter_sub(muster::embedding_gradient(table), /*read_value=*/false);
}
// Long enough to be killed in.
void optimize(Model& model, double rate) {
  const muster::Variable& w = model.w;
  const muster::Variable& table = model.table;
  w.value().sum().backward();
  muster::embedding_lookup(table, torch::tensor({7}, torch::kLong)).sum().backward();
  model.optimizer.apply_gradients(
      {{w.value().grad(), w}, {muster::embedding_gradient(table), table}}, rate);
  ::usleep(5'000);
}
// Sums of these in another order, or of other values, have other bits. Long enough to be killed in.
void ordered(Model& model, int batch) {
  const torch::Tensor x = torch::sin(torch::arange(3, torch::kFloat) * batch).view({3, 1});
  const torch::Tensor gradient =
      torch::cos(model.w.value().detach() + x) * std::pow(10.0, batch % 5 - 6);
  model.optimizer.apply_gradients({{gradient, model.w}});
  ::usleep(5'000);
}
// Each process finds it by its name.
double add_to_passing(Model& model, double value) {
  static const muster::Variable passing = [&] {
    const auto scope = model.strategy.scope();
    return muster::Variable::create("passing", 0.0);
  }();
  passing.assign_add(value, /*read_value=*/false);
  return passing.item<double>();
}
// What is made takes the place of what was dropped, and is another one all the same.
std::pair<double, double> use_dropped_modules(Model& model, int n) {
  std::pair<double, double> sums;
  for (int i = 0; i < n; ++i) {
    const auto net =
        model.strategy.distribute(torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)));
    const auto sgd =
        model.strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.25));
    sums.first += net->weight.sum().item<double>();
    sums.second += sgd.learning_rate();
    sgd.set_learning_rate(0.5);
  }
  return sums;
}
void optimize_with_momentum() {
  static Model other(3, 0.9);
  other.optimizer.apply_gradients({{torch::ones({3, 1}), other.w}});
}
double sum_of_another_shape() {
  static Model other(5);
  return other.w.value().sum().item<double>();
}

}  // namespace

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(count);
MUSTER_FUNCTION(numbers);
MUSTER_FUNCTION(count_in_pass);
MUSTER_FUNCTION(count_and_tell);
MUSTER_FUNCTION(count_slowly);
MUSTER_FUNCTION(gated_data);
MUSTER_FUNCTION(count_next);
MUSTER_FUNCTION(gated_value);
MUSTER_FUNCTION(count_with);
MUSTER_FUNCTION(ballast);
MUSTER_FUNCTION(count_behind_gates);
MUSTER_FUNCTION(samples);
MUSTER_FUNCTION(count_samples);
MUSTER_FUNCTION(step);
MUSTER_FUNCTION(subtract_gradient);
MUSTER_FUNCTION(optimize);
MUSTER_FUNCTION(ordered);
MUSTER_FUNCTION(add_to_passing);
MUSTER_FUNCTION(use_dropped_modules);
MUSTER_FUNCTION(optimize_with_momentum);
MUSTER_FUNCTION(sum_of_another_shape);

namespace {

int count_all(muster::ClusterCoordinator& coordinator, int n) {
  for (int i = 0; i < n; ++i) coordinator.schedule<count_slowly>();
  std::printf("scheduled %d\n", n);
  coordinator.join();
  std::printf("counted %d\n", muster::program_object<Model>().counter.item<int>());
  return 0;
}

int rounds(muster::ClusterCoordinator& coordinator, const std::string& file) {
  int scheduled = 0;
  while (!std::ifstream(file).good()) {
    for (int i = 0; i < 100; ++i) coordinator.schedule<count_slowly>();
    if (scheduled == 0) std::printf("rounds begin\n");
    scheduled += 100;
    coordinator.join();
  }
  const int counted = muster::program_object<Model>().counter.item<int>();
  if (counted == scheduled) {
    std::printf("rounds exact\n");
  } else {
    std::printf("rounds: %d of %d\n", counted, scheduled);
  }
  return 0;
}

// Whoever looks at it while it waits sees it with nothing under way and no result held.
int million(muster::ClusterCoordinator& coordinator, const std::string& folder, int n) {
  const auto data = coordinator.create_per_worker_dataset<numbers>();
  auto pass = data.iterator();
  std::vector<muster::RemoteValue<torch::Tensor>> held;
  int scheduled = 0;
  const auto schedule_one = [&] {
    const int place = scheduled++ % 1'000;
    if (place == 0) pass = data.iterator();
    if (place < 50) {
      (void)coordinator.schedule<count_in_pass>(pass);
    } else if (place < 100) {
      held.push_back(coordinator.schedule<count_and_tell>());
    } else {
      (void)coordinator.schedule<count>();
    }
  };
  const auto end_all = [&] {
    coordinator.join();
    if (!held.empty() && held.back().fetch().numel() != 64) {
      muster::raise(muster::ErrorCode::kInternal, "a result that was held is another one");
    }
    held.clear();
  };
  const auto go_to = [&](int total) {
    while (scheduled < total) {
      schedule_one();
      if (scheduled % 10'000 == 0) end_all();
    }
    end_all();
  };
  const auto await = [&](const std::string& file) {
    while (!std::ifstream(folder + "/" + file).good()) ::usleep(5'000);
  };
  go_to(n / 5);
  std::printf("a fifth\n");
  await("fifth");
  go_to(n);
  std::printf("all\n");
  await("all");
  const int counted = muster::program_object<Model>().counter.item<int>();
  if (counted == n) {
    std::printf("million exact\n");
  } else {
    std::printf("million: %d of %d\n", counted, n);
  }
  return 0;
}

// `function` takes what each worker has built, or what all are given.
template <auto& function>
int count_on(muster::ClusterCoordinator& coordinator, const auto& own, int n) {
  for (int i = 0; i < n; ++i) coordinator.schedule<function>(own);
  coordinator.join();
  const int counted = muster::program_object<Model>().counter.item<int>();
  std::printf("built %s\n", counted == n ? "exact" : std::to_string(counted).c_str());
  return 0;
}

int built(muster::ClusterCoordinator& coordinator, const std::string& folder, int n) {
  return count_on<count_next>(
      coordinator, coordinator.create_per_worker_dataset<gated_data>(folder).iterator(), n);
}

int valued(muster::ClusterCoordinator& coordinator, const std::string& folder, int n) {
  return count_on<count_with>(coordinator,
                              coordinator.create_per_worker_resource<gated_value>(folder), n);
}

int gated(muster::ClusterCoordinator& coordinator, const std::string& folder, int n) {
  return count_on<count_behind_gates>(coordinator, folder, n);
}

int passes(muster::ClusterCoordinator& coordinator, const std::string& file) {
  const auto data = coordinator.create_per_worker_dataset<samples>();
  int begun = 0;
  while (!std::ifstream(file).good()) {
    const auto pass = data.iterator({.input = muster::InputGuarantee::kExactlyOnce});
    for (std::int64_t i = 0; i < kSamples; i += kSamplesPerClosure) {
      coordinator.schedule<count_samples>(pass);
    }
    if (++begun == 1) std::printf("samples begin\n");
    coordinator.join();
  }
  const torch::Tensor counted = muster::program_object<Model>().samples.value().detach();
  if (torch::equal(counted, torch::full({kSamples}, static_cast<float>(begun)))) {
    std::printf("samples exact\n");
  } else {
    std::printf("samples: %.0f to %.0f times in %d passes\n", counted.min().item<double>(),
                counted.max().item<double>(), begun);
  }
  return 0;
}

int hold(muster::ClusterCoordinator& coordinator, const std::string& file) {
  const auto scope = muster::program_object<Model>().strategy.scope();
  const muster::Variable there = muster::Variable::create("ballast", Ballast().values);
  const auto on_workers = coordinator.create_per_worker_resource<ballast>();
  std::printf("holds\n");
  while (!std::ifstream(file).good()) ::usleep(5'000);
  return 0;
}

int watch(const muster::ClusterCoordinator& coordinator, const std::string& file) {
  std::string last;
  while (!std::ifstream(file).good()) {
    std::string away;
    for (const muster::TaskHealth& state : coordinator.task_states()) {
      if (!state.error || state.error->code() != muster::ErrorCode::kUnavailable) continue;
      if (state.error->message().find(state.task) != std::string::npos) away += " " + state.task;
    }
    const std::string now = away.empty() ? "all there" : "away" + away;
    if (now != last) std::printf("%s\n", now.c_str());
    last = now;
    try {
      (void)muster::program_object<Model>().counter.item<int>();
    } catch (const muster::PsUnavailable&) {
      std::printf("unread\n");
    }
    ::usleep(2'000);
  }
  std::printf("of");
  for (const muster::TaskHealth& state : coordinator.task_states()) {
    std::printf(" %s", state.task.c_str());
  }
  std::printf("\n");
  return 0;
}

int train(muster::ClusterCoordinator& coordinator, int n) {
  torch::manual_seed(1);
  const torch::Tensor truth = torch::tensor({{1.0F}, {-2.0F}, {3.0F}});
  for (int i = 0; i < n; ++i) {
    const torch::Tensor x = torch::randn({16, 3});
    coordinator.schedule<step>(x, torch::mm(x, truth));
  }
  coordinator.join();
  const double error =
      (muster::program_object<Model>().w.value() - truth).abs().max().item<double>();
  std::printf("error %s\n", error < 0.05 ? "small" : std::to_string(error).c_str());
  return 0;
}

int look_up(muster::ClusterCoordinator& coordinator) {
  for (std::int64_t id = 0; id < 10; ++id) {
    coordinator.schedule<subtract_gradient>(torch::tensor({id}, torch::kLong));
  }
  coordinator.join();
  std::printf("table %.0f\n",
              muster::program_object<Model>().table.value().abs().sum().item<double>());
  return 0;
}

// Half of the updates at twice the rate: 1.5 for each.
int optimize_all(muster::ClusterCoordinator& coordinator, int n) {
  for (int i = 0; i < n; ++i) coordinator.schedule<optimize>(i % 2 == 0 ? 1.0 : 2.0);
  std::printf("scheduled %d\n", n);
  coordinator.join();
  const Model& model = muster::program_object<Model>();
  std::printf("optimized %.1f %.1f\n", -model.w.value()[0].item<double>(),
              1 - model.table.value()[7][0].item<double>());
  return 0;
}

int steps(muster::ClusterCoordinator& coordinator, int n) {
  const muster::ParameterServerStrategy synchronous(
      {.consistency = muster::Consistency::synchronous(), .gradients_per_step = 4});
  for (int batch = 1; batch <= n; ++batch) coordinator.schedule_step<ordered>(batch);
  std::printf("scheduled %d\n", n);
  coordinator.join();
  const torch::Tensor w = muster::program_object<Model>().w.value().detach();
  std::printf("bits");
  for (int row = 0; row < 3; ++row) std::printf(" %a", w[row].item<double>());
  std::printf("\n");
  return 0;
}

// Enough of them that both executors have used each.
int make_anew(muster::ClusterCoordinator& coordinator) {
  const auto scope = muster::program_object<Model>().strategy.scope();
  std::string sums;
  for (int round = 0; round < 3; ++round) {
    const muster::Variable passing = muster::Variable::create("passing", 0.0);
    for (int i = 0; i < 20; ++i) coordinator.schedule<add_to_passing>(1.0);
    coordinator.join();
    sums += " " + std::to_string(passing.item<int>());
  }
  std::printf("anew%s\n", sums.c_str());
  return 0;
}

int drop_modules(muster::ClusterCoordinator& coordinator, int n) {
  const auto net = muster::program_object<Model>().strategy.distribute(
      torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)));
  net.variable("weight").assign(torch::ones({4, 3}));
  const auto [values, rates] = coordinator.schedule<use_dropped_modules>(n).fetch();
  std::printf("modules %.0f %.2f\n", values, rates);
  return 0;
}

int run_outside() {
  auto& strategy = muster::program_object<Model>().strategy;
  double sum = 0;
  for (int i = 0; i < 2; ++i) {
    sum += strategy.reduce(muster::ReduceOp::kSum, strategy.run([] { return 3.0; })).item<double>();
  }
  std::printf("ran %.0f\n", sum);
  return 0;
}

int reduce_outside() {
  auto& strategy = muster::program_object<Model>().strategy;
  std::printf("reduced %.0f\n", strategy.reduce(muster::ReduceOp::kMean, 3.0).item<double>());
  return 0;
}

template <auto& function>
int differ(muster::ClusterCoordinator& coordinator) {
  coordinator.schedule<function>();
  try {
    coordinator.join();
  } catch (const muster::Error& error) {
    std::printf("caught %s\n", error.what());
  }
  return 0;
}

// Until a worker is refused.
int until_refused(muster::ClusterCoordinator& coordinator) {
  try {
    for (;;) {
      coordinator.schedule<count>();
      coordinator.join();
    }
  } catch (const muster::Error& error) {
    std::printf("refused %s\n", error.what());
  }
  return 0;
}

int until_lost(muster::ClusterCoordinator& coordinator, const std::string& file) {
  try {
    for (int i = 0;; ++i) {
      coordinator.schedule<count>();
      if (i == 100) {
        coordinator.join();
        std::ofstream(file) << "begun\n";
        std::printf("begun\n");
      }
    }
  } catch (const muster::PsUnavailable& error) {
    std::printf("lost %s after %u retries\n", error.details().task.c_str(),
                error.details().retries);
  }
  return 0;
}

}  // namespace

namespace {

int save_often(muster::ClusterCoordinator& coordinator, const std::string& folder, int n) {
  muster::Checkpoint checkpoint({{"counter", muster::program_object<Model>().counter}});
  const muster::CheckpointManager manager(checkpoint, folder, n);
  for (int step = 1; step <= n; ++step) {
    coordinator.schedule<count>();
    coordinator.join();
    manager.save(static_cast<std::uint64_t>(step));
  }
  return 0;
}

int evaluate(const std::string& folder) {
  const muster::Variable counter = muster::Variable::create("counter", 0);
  muster::Checkpoint checkpoint({{"counter", counter}});
  const muster::CheckpointManager manager(checkpoint, folder, 100);
  muster::evaluate_checkpoints([&] { return manager.checkpoints(); },
                               [&](const std::string& path) {
                                 checkpoint.restore(path);
                                 const int value = counter.item<int>();
                                 return muster::Evaluation{{"square", value * value}};
                               });
  std::printf("evaluated all\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  muster::init(argc, argv);
  if (muster::is_evaluator()) return evaluate(argv[2]);
  // On the servers before the first closure asks for them.
  (void)muster::program_object<Model>();
  muster::ClusterCoordinator coordinator;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "count") return count_all(coordinator, std::atoi(argv[2]));
  if (what == "rounds") return rounds(coordinator, argv[2]);
  if (what == "million") return million(coordinator, argv[2], std::atoi(argv[3]));
  if (what == "evaluated") return save_often(coordinator, argv[2], std::atoi(argv[3]));
  if (what == "hold") return hold(coordinator, argv[2]);
  if (what == "watch") return watch(coordinator, argv[2]);
  if (what == "built") return built(coordinator, argv[2], std::atoi(argv[3]));
  if (what == "valued") return valued(coordinator, argv[2], std::atoi(argv[3]));
  if (what == "gated") return gated(coordinator, argv[2], std::atoi(argv[3]));
  if (what == "samples") return passes(coordinator, argv[2]);
  if (what == "train") return train(coordinator, std::atoi(argv[2]));
  if (what == "steps") return steps(coordinator, std::atoi(argv[2]));
  if (what == "lookup") return look_up(coordinator);
  if (what == "optimize") return optimize_all(coordinator, std::atoi(argv[2]));
  if (what == "outside") return run_outside();
  if (what == "reduced") return reduce_outside();
  if (what == "modules") return drop_modules(coordinator, std::atoi(argv[2]));
  if (what == "anew") return make_anew(coordinator);
  if (what == "differ") return differ<sum_of_another_shape>(coordinator);
  if (what == "options") return differ<optimize_with_momentum>(coordinator);
  if (what == "refused") return until_refused(coordinator);
  if (what == "lost") return until_lost(coordinator, argv[2]);
  std::fprintf(stderr, "servers: what is \"%s\"?\n", what.c_str());
  return 2;
}
