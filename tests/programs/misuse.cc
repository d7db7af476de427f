// A program that does what programs should not: its first argument says what. It prints what comes
// of that, and then "again 7": other closures run as before.
//
//   unavailable FILE   a function throws UNAVAILABLE, uncaught; a byte in FILE for each time
//   segfault           a function that ends by SIGSEGV each time
//   results            a result of 100 MB, one over the limit, and arguments over it
//   killed             a function that is killed -9 each time, as by a machine without memory
//   greedy GROUP       a function that takes memory until the kernel ends it, in the control group
//                      whose list of processes that is
//   endless            a function that never ends, under a deadline
//   dataset            a dataset's function that throws on worker 1 alone
//   lost FILE          values of lost workers: prints "made", and "over" when FILE is there
//   partitioner        partitioners that answer nonsense; the last one's error is not caught
//   checkpoint DIR     a checkpoint of another model is restored
//   lend FILE          writes into FILE which variable its own is, and prints its value at a stop
//   borrow FILE        a closure that writes to that one
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "strategy/muster.h"

namespace {

struct Model {
  muster::ParameterServerStrategy strategy;
  muster::Variable counter;
  Model() {
    const auto scope = strategy.scope();
    counter = muster::Variable::create("counter", torch::zeros({4}));
  }
};
std::unique_ptr<Model> make_model() { return std::make_unique<Model>(); }

std::int64_t same(std::int64_t x) { return x; }
void unavailable(const std::string& file) {
  std::ofstream(file, std::ios::app) << '.' << std::flush;
  muster::raise(muster::ErrorCode::kUnavailable, "the user's own server is away");
}
torch::Tensor ones(std::int64_t bytes) { return torch::ones({bytes}, torch::kUInt8); }
std::int64_t size_of(const torch::Tensor& bytes) { return bytes.numel(); }
void segfaults() {
  std::fprintf(stderr, "about to read address 0\n");
  (void)std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would end it in another way
  (void)std::raise(SIGSEGV);
}
void is_killed() {
  (void)::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}
void is_greedy(const std::string& group) {
  std::ofstream(group) << ::getpid() << std::flush;
  std::vector<std::string> held;
  for (int i = 0; i < 128; ++i) held.emplace_back(std::size_t{16} << 20, 'x');
  muster::raise(muster::ErrorCode::kInternal, "2 GiB were there");
}
void loops() {
  for (volatile bool on = true; on;) ::usleep(1'000);
}
int own_pid() { return ::getpid(); }
muster::Dataset<torch::Tensor> lacking() {
  if (muster::worker_index() == 1) {
    muster::raise(muster::ErrorCode::kNotFound, "no such file on this host");
  }
  return muster::dataset::range(1'000'000);
}
void take(muster::WorkerIterator<torch::Tensor>& data) {
  (void)data.get_next();
  ::usleep(1'000);
}
void add_one(Model& model) { model.counter += 1; }
// `bytes`: as the job that it is of has written it.
void add_to(const std::string& bytes) {
  muster::ByteReader from(std::as_bytes(std::span(bytes)));
  const auto variable = muster::Codec<muster::Variable>::read(from);
  variable.assign_add(torch::ones({4}), /*read_value=*/false);
}

}  // namespace

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(same);
MUSTER_FUNCTION(unavailable);
MUSTER_FUNCTION(ones);
MUSTER_FUNCTION(size_of);
MUSTER_FUNCTION(segfaults);
MUSTER_FUNCTION(is_killed);
MUSTER_FUNCTION(is_greedy);
MUSTER_FUNCTION(loops);
MUSTER_FUNCTION(own_pid);
MUSTER_FUNCTION(lacking);
MUSTER_FUNCTION(take);
MUSTER_FUNCTION(add_one);
MUSTER_FUNCTION(add_to);

namespace {

using Coordinator = muster::ClusterCoordinator;

void tell(const char* what, const muster::Error& error) {
  std::printf("%s: %s: %s\n", what, to_string(error.code()).c_str(), error.message().c_str());
}

// What `call` throws, which it has to.
template <class Call>
void caught(const char* what, const Call& call) {
  try {
    call();
    std::printf("%s: nothing was thrown\n", what);
  } catch (const muster::Error& error) {
    tell(what, error);
  }
}

bool is_there(const std::string& file) { return std::ifstream(file).good(); }

void results(Coordinator& coordinator) {
  constexpr std::int64_t kMost = std::int64_t{128} << 20;
  const torch::Tensor all = coordinator.schedule<ones>(100'000'000).fetch();
  std::printf("%ld bytes, %ld of them 1\n", static_cast<long>(all.numel()),
              static_cast<long>(all.count_nonzero().item<std::int64_t>()));
  const auto large = coordinator.schedule<ones>(kMost);
  caught("a result over the limit", [&] { coordinator.join(); });
  caught("its value", [&] { (void)large.fetch(); });
  caught("arguments over the limit", [&] { coordinator.schedule<size_of>(ones(kMost)); });
}

void dataset(Coordinator& coordinator) {
  const auto data = coordinator.create_per_worker_dataset<lacking>().iterator();
  try {
    // Until worker 1 has one of them.
    for (;;) {
      for (int i = 0; i < 20; ++i) coordinator.schedule<take>(data);
      coordinator.join();
    }
  } catch (const muster::ClosureInputError& error) {
    tell(error.details().task.c_str(), error);
  }
}

void lost(Coordinator& coordinator, const std::string& file) {
  const auto value = coordinator.schedule<ones>(10);
  const auto fetched = coordinator.schedule<ones>(20);
  const auto sum = [](const torch::Tensor& all) {
    return static_cast<long>(all.sum().item<int64_t>());
  };
  (void)fetched.fetch();
  const auto pids = coordinator.create_per_worker_resource<own_pid>();
  pids.wait();
  coordinator.join();
  std::printf("made\n");
  for (bool aborted = false; !aborted; ::usleep(1'000)) {
    try {
      (void)pids.fetch();
    } catch (const muster::ClosureAbortedError& error) {
      aborted = true;
      tell("the worker's value", error);
    }
  }
  std::printf("a result of before: %ld\n", sum(value.fetch()));
  std::printf("fetched before: %ld, as a tensor %ld and %ld\n", sum(fetched.fetch()),
              sum(fetched.get()), sum(value.get()));
  while (!is_there(file)) ::usleep(1'000);
  std::printf("over\n");
}

void partitioners(const std::vector<std::vector<std::int64_t>>& answers) {
  for (const auto& answer : answers) {
    muster::ParameterServerStrategy strategy(
        [answer](const std::vector<std::int64_t>&, auto) { return answer; });
    const auto scope = strategy.scope();
    (void)muster::Variable::create("cut", torch::zeros({4, 2}));
  }
}

void checkpoint(Coordinator& coordinator, const std::string& folder) {
  Model& model = muster::program_object<Model>();
  {
    const auto scope = model.strategy.scope();
    muster::Checkpoint({{"counter", muster::Variable::create("other", torch::zeros({4, 3}))}})
        .save(folder + "/other");
  }
  coordinator.schedule<add_one>();
  coordinator.join();
  muster::Checkpoint mine({{"counter", model.counter}});
  caught("another model's", [&] { mine.restore(folder + "/other"); });
  caught("none", [&] { mine.restore(folder + "/absent"); });
  coordinator.schedule<add_one>();
  coordinator.join();
  std::printf("counter %.0f\n", model.counter.value()[3].item<double>());
}

void lend(const std::string& file) {
  const Model& model = muster::program_object<Model>();
  muster::Bytes bytes;
  muster::Codec<muster::Variable>::write(model.counter, bytes);
  {
    std::ofstream out(file + ".new", std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }
  (void)std::rename((file + ".new").c_str(), file.c_str());
  std::printf("lent\n");
  while (!muster::stop_requested().stop_requested()) ::usleep(5'000);
  std::printf("counter %.0f\n", model.counter.value().sum().item<double>());
}

void borrow(Coordinator& coordinator, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  coordinator.schedule<add_to>(std::string(std::istreambuf_iterator<char>(in), {}));
  caught("another job's", [&] { coordinator.join(); });
}

}  // namespace

int main(int argc, char** argv) {
  muster::init(argc, argv);
  const std::string what = argc > 1 ? argv[1] : "";
  const std::string path = argc > 2 ? argv[2] : "";
  (void)muster::program_object<Model>();
  Coordinator coordinator;
  if (what == "unavailable") {
    coordinator.schedule<unavailable>(path);
    coordinator.join();
  } else if (what == "results") {
    results(coordinator);
  } else if (what == "segfault") {
    coordinator.schedule<segfaults>();
    caught("segfault", [&] { coordinator.join(); });
  } else if (what == "killed") {
    coordinator.schedule<is_killed>();
    caught("killed", [&] { coordinator.join(); });
  } else if (what == "greedy") {
    coordinator.schedule<is_greedy>(path);
    caught("greedy", [&] { coordinator.join(); });
  } else if (what == "endless") {
    coordinator.within(std::chrono::milliseconds(200)).schedule<loops>();
    caught("endless", [&] { coordinator.join(); });
  } else if (what == "dataset") {
    dataset(coordinator);
  } else if (what == "lost") {
    lost(coordinator, path);
  } else if (what == "partitioner") {
    for (const std::vector<std::int64_t>& wrong :
         {std::vector<std::int64_t>{}, {0, 1}, {-1, 1}, {2, 2}, {2}}) {
      caught("nonsense", [&] { partitioners({wrong}); });
    }
    std::printf("again %ld\n", static_cast<long>(coordinator.schedule<same>(7).fetch()));
    partitioners({{2, 2}});
  } else if (what == "checkpoint") {
    checkpoint(coordinator, path);
  } else if (what == "lend") {
    lend(path);
  } else if (what == "borrow") {
    borrow(coordinator, path);
  } else {
    std::fprintf(stderr, "misuse: what is \"%s\"?\n", what.c_str());
    return 2;
  }
  std::printf("again %ld\n", static_cast<long>(coordinator.schedule<same>(7).fetch()));
  return 0;
}
