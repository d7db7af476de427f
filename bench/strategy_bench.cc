// muster-strategy-bench: what the public API costs over plain libtorch, in one process. A program
// of its own because it links libtorch; `muster-bench strategy` executes it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <sched.h>

#include "bench/measure.h"
#include "common/base/mutex.h"
#include "strategy/multi_worker_mirrored/internal/elastic_state.h"
#include "strategy/muster.h"

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Step = std::function<void()>;

constexpr int kPairs = 600;
constexpr int kRun = 20;
constexpr std::chrono::milliseconds kSettle{30};
constexpr int kBatches = 16;

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  explicit MlpImpl(std::int64_t hidden) : hidden_(hidden) { reset(); }
  void reset() override {
    in = register_module("in", torch::nn::Linear(784, hidden_));
    out = register_module("out", torch::nn::Linear(hidden_, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(in(x))); }

  torch::nn::Linear in{nullptr}, out{nullptr};

 private:
  std::int64_t hidden_;
};
TORCH_MODULE(Mlp);

struct Batch {
  torch::Tensor images;  // float [batch, 784]
  torch::Tensor labels;  // int64 [batch]
};

std::vector<Batch> Preload(std::int64_t batch) {
  torch::manual_seed(1);
  std::vector<Batch> batches;
  for (int i = 0; i < kBatches; ++i) {
    batches.push_back({torch::randn({batch, 784}), torch::randint(10, {batch}, torch::kLong)});
  }
  return batches;
}

torch::Tensor Losses(const torch::Tensor& logits, const torch::Tensor& labels) {
  namespace F = torch::nn::functional;
  return F::cross_entropy(logits, labels, F::CrossEntropyFuncOptions().reduction(torch::kNone));
}

// A plain libtorch loop's step.
Step Plain(const std::vector<Batch>& batches, std::int64_t hidden) {
  torch::manual_seed(2);
  Mlp net(hidden);
  auto optimizer = std::make_shared<torch::optim::Adam>(net->parameters(), 1e-3);
  return [&batches, net, optimizer, next = std::size_t{0}]() mutable {
    const Batch& batch = batches[next++ % batches.size()];
    optimizer->zero_grad();
    const torch::Tensor losses = Losses(net->forward(batch.images), batch.labels);
    (losses.sum() / static_cast<double>(losses.size(0))).backward();
    optimizer->step();
  };
}

// What two cores give at best: two plain loops side by side, each over half of every batch, which
// do not speak to each other.
Step TwoPlain(const std::vector<Batch>& batches, std::int64_t hidden) {
  auto halves = std::make_shared<std::array<std::vector<Batch>, 2>>();
  for (const Batch& batch : batches) {
    const auto images = batch.images.tensor_split(2);
    const auto labels = batch.labels.tensor_split(2);
    for (std::size_t i : {0, 1}) (*halves)[i].push_back({images[i], labels[i]});
  }
  return [halves, one = Plain((*halves)[0], hidden), other = Plain((*halves)[1], hidden)] {
    std::thread beside([&] {
      at::set_num_threads(1);
      other();
    });
    one();
    beside.join();
  };
}

// The same step as a user of the API writes it.
Step Under(const std::shared_ptr<Strategy>& strategy, const std::vector<Batch>& batches,
           std::int64_t hidden) {
  torch::manual_seed(2);
  auto net = strategy->distribute(Mlp(hidden));
  auto optimizer = strategy->optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(1e-3));
  const int replicas = strategy->num_replicas_in_sync();
  using Pieces = PerReplica<torch::Tensor>;
  auto pieces = std::make_shared<std::vector<std::pair<Pieces, Pieces>>>();
  for (const Batch& batch : batches) {
    pieces->emplace_back(Pieces(batch.images.tensor_split(replicas)),
                         Pieces(batch.labels.tensor_split(replicas)));
  }
  const std::int64_t global = batches[0].labels.size(0);
  return [strategy, net, optimizer, pieces, global, next = std::size_t{0}]() mutable {
    const auto& [images, labels] = (*pieces)[next++ % pieces->size()];
    strategy->run(
        [&](const torch::Tensor& x, const torch::Tensor& y) {
          optimizer.zero_grad();
          compute_average_loss(Losses(net->forward(x), y), global).backward();
          optimizer.step();
        },
        images, labels);
  };
}

struct Ratio {
  double median = 0;
  double low = 0;  // of the 95 % interval of the median
  double high = 0;
  double ours_us = 0;
  double theirs_us = 0;
};

double Microseconds(const Step& step) {
  const auto start = Clock::now();
  step();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// The times of kRun steps in microseconds, after untimed ones for kSettle.
std::vector<double> TimeRun(const Step& step, int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
  const auto start = Clock::now();
  do {
    step();
  } while (Clock::now() - start < kSettle);
  std::vector<double> times;
  for (int i = 0; i < kRun; ++i) times.push_back(Microseconds(step));
  return times;
}

// ours / theirs, pair by pair, in runs of kRun steps; who goes first alternates. Runs, because
// OpenMP's threads spin for 10 to 20 ms after their work: step by step, the one would be charged
// for what the other left behind. The interval: the order statistics n/2 -+ 1.96 sqrt(n)/2, which
// holds for any distribution.
Ratio Compare(const Step& ours, const Step& theirs, int threads_of_ours = 2,
              int threads_of_theirs = 2) {
  std::vector<double> ratios;
  std::vector<double> a;
  std::vector<double> b;
  for (int run = 0; run < kPairs / kRun; ++run) {
    std::vector<double> one;
    if (run % 2 == 0) one = TimeRun(ours, threads_of_ours);
    const std::vector<double> other = TimeRun(theirs, threads_of_theirs);
    if (run % 2 == 1) one = TimeRun(ours, threads_of_ours);
    for (std::size_t i = 0; i < one.size(); ++i) ratios.push_back(one[i] / other[i]);
    a.insert(a.end(), one.begin(), one.end());
    b.insert(b.end(), other.begin(), other.end());
  }
  std::ranges::sort(ratios);
  const double half = 1.96 * std::sqrt(kPairs) / 2;
  const auto at = [&](double rank) {
    return ratios[static_cast<std::size_t>(std::clamp(rank, 0.0, kPairs - 1.0))];
  };
  return {ratios[kPairs / 2], at(kPairs / 2.0 - half), at(kPairs / 2.0 + half), Median(a),
          Median(b)};
}

// What an empty run with one meeting costs at least: two threads are woken, meet once, and the
// caller waits for both, all by condition variables.
class Handshake {
 public:
  Handshake() {
    for (int r = 0; r < 2; ++r) threads_.emplace_back([this] { Serve(); });
  }
  ~Handshake() {
    {
      const MutexLock lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Once() {
    const MutexLock lock(mutex_);
    ++round_;
    arrived_ = done_ = 0;
    changed_.notify_all();
    while (done_ != 2) changed_.wait(mutex_);
  }

 private:
  void Serve() {
    const MutexLock lock(mutex_);
    for (long seen = 0;;) {
      while (!ends_ && round_ <= seen) changed_.wait(mutex_);
      if (ends_) return;
      seen = round_;
      if (++arrived_ == 2) changed_.notify_all();
      while (arrived_ != 2) changed_.wait(mutex_);
      if (++done_ == 2) changed_.notify_all();
    }
  }

  Mutex mutex_;
  Condition changed_;
  long round_ MUSTER_GUARDED_BY(mutex_) = 0;
  int arrived_ MUSTER_GUARDED_BY(mutex_) = 0;
  int done_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool ends_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

void Print(const char* name, const Ratio& ratio, double limit, bool last = false) {
  std::printf(
      "  \"%s\": {\"ratio\": %.4f, \"interval_95\": [%.4f, %.4f], \"limit\": %.2f, \"ours_us\": "
      "%.1f, \"reference_us\": %.1f}%s\n",
      name, ratio.median, ratio.low, ratio.high, limit, ratio.ours_us, ratio.theirs_us,
      last ? "" : ",");
  std::fflush(stdout);
}

void Run() {
  const std::vector<std::string> one = {"CPU:0"};
  const std::vector<std::string> two = {"CPU:0", "CPU:1"};
  std::printf("{\n  \"benchmark\": \"strategy\", \"pairs\": %d,\n", kPairs);

  const std::vector<Batch> small = Preload(256);
  const Step plain = Plain(small, 256);
  Print("plain_loop_against_itself", Compare(Plain(small, 256), plain), 1.0);
  Print("one_device",
        Compare(Under(std::make_shared<OneDeviceStrategy>("CPU:0"), small, 256), plain), 1.02);
  Print("mirrored_1", Compare(Under(std::make_shared<MirroredStrategy>(one), small, 256), plain),
        1.03);

  const std::vector<Batch> large = Preload(1024);
  Print("mirrored_2_against_mirrored_1_one_thread_each",
        Compare(Under(std::make_shared<MirroredStrategy>(two), large, 1024),
                Under(std::make_shared<MirroredStrategy>(one), large, 1024), 1, 1),
        0.65);
  Print("two_plain_loops_of_half_against_one_one_thread_each",
        Compare(TwoPlain(large, 1024), Plain(large, 1024), 1, 1), 1.0);

  MirroredStrategy pair(two);
  const torch::Tensor number = torch::ones({});
  Handshake handshake;
  Print("empty_run_and_all_reduce",
        Compare([&] { pair.run([&] { replica_context().all_reduce(ReduceOp::kSum, number); }); },
                [&] { handshake.Once(); }),
        3.0);

  constexpr std::int64_t kElements = 25 * 1000 * 1000 / 4;
  const auto values = pair.run([] { return torch::ones({kElements}); });
  const torch::Tensor left = torch::ones({kElements});
  const torch::Tensor right = torch::ones({kElements});
  Print("all_reduce_25_mb",
        Compare(
            [&] {
              pair.run(
                  [](const torch::Tensor& x) {
                    return replica_context().all_reduce(ReduceOp::kSum, x);
                  },
                  values);
            },
            [&] { at::add(left, right); }),
        1.5);

  // What a step of run_elastic() costs beside its work: its state is kept. 25 MB of parameters.
  OneDeviceStrategy single("CPU:0");
  const auto scope = single.scope();
  const auto net = single.distribute(Mlp(7'870));
  Checkpoint state;
  state.track(net);
  internal::ElasticState kept(state.tracked());
  torch::Tensor copy = torch::empty_like(left);
  Print("elastic_keep_25_mb", Compare([&] { kept.Keep(); }, [&] { copy.copy_(right); }), 1.2,
        /*last=*/true);
  std::printf("}\n");
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char**) {
  if (argc != 1) {
    std::fputs("usage: muster-strategy-bench\n", stderr);
    return 2;
  }
  // Two processors, whatever the machine has: one for each of two replicas.
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  cpu_set_t mine;
  sched_getaffinity(0, sizeof mine, &mine);
  for (int cpu = 0, taken = 0; cpu < CPU_SETSIZE && taken < 2; ++cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    CPU_SET(cpu, &allowed);
    ++taken;
  }
  sched_setaffinity(0, sizeof allowed, &allowed);
  muster::bench::Run();
  return muster::bench::Told(0);
}
