#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

#include <ATen/Parallel.h>

#include "tests/support/catch.h"
#include "tests/unit/strategy/input/input_support.h"

namespace muster {

struct Example {
  torch::Tensor image;
  torch::Tensor label;
};
template <>
struct NestFields<Example> {
  static auto tie(auto& value) { return std::tie(value.image, value.label); }
};

namespace {

using namespace std::chrono_literals;
using testing::all;
using testing::code_of;
using testing::cpus;
using testing::numbers;
using testing::Numbers;
using testing::on_workers;
using testing::sequence;
using testing::Steps;
using testing::throws;

Numbers flat(const Dataset<>& dataset) {
  Numbers list;
  for (const torch::Tensor& element : dataset) {
    const Numbers one = numbers(element);
    list.insert(list.end(), one.begin(), one.end());
  }
  return list;
}

TEST_CASE("elements are what the program says they are", "[input][unit]") {
  using Nest =
      std::tuple<std::int64_t, std::map<std::string, std::vector<torch::Tensor>>, std::string>;
  const auto nested = dataset::range(3).map([](const torch::Tensor& n) {
    return Nest{n.item<std::int64_t>() + 1, {{"a", {n, n * 2}}, {"b", {n * 3}}}, "text"};
  });
  const auto examples =
      dataset::from_tensor_slices(Example{torch::rand({4, 2, 2}), torch::arange(4)}).batch(3);

  const auto values = all(nested);
  REQUIRE(values.size() == 3);
  CHECK(std::get<0>(values[2]) == 3);
  CHECK(std::get<1>(values[2]).at("a").at(1).item<int>() == 4);
  CHECK(std::get<1>(values[2]).at("b").at(0).item<int>() == 6);
  CHECK(std::get<2>(values[0]) == "text");
  const auto batches = all(examples);
  REQUIRE(batches.size() == 2);
  CHECK(batches[0].image.sizes().vec() == std::vector<std::int64_t>{3, 2, 2});
  CHECK(numbers(batches[1].label) == Numbers{3});
}

TEST_CASE("a map's key that is called like the column of a lone leaf keeps its name",
          "[input][unit]") {
  using Record = std::map<std::string, torch::Tensor>;
  const auto keys = [](const Record& record) {
    std::vector<std::string> names;
    for (const auto& [key, tensor] : record) {
      names.push_back(key + std::to_string(numbers(tensor)[0]));
    }
    return names;
  };
  const std::vector<std::vector<std::string>> all_keys{{"value"}, {"a", "value", "z"}};
  for (const std::vector<std::string>& names : all_keys) {
    const auto records = dataset::range(3).map([names](const torch::Tensor& n) {
      Record record;
      for (const std::string& name : names) record.emplace(name, n);
      return record;
    });
    const auto expected = [&](int n) {
      std::vector<std::string> texts;
      for (const std::string& name : names) texts.push_back(name + std::to_string(n));
      return texts;
    };

    CHECK(keys(all(records).at(1)) == expected(1));
    CHECK(keys(std::get<1>(all(records.enumerate()).at(2))) == expected(2));
    CHECK(std::get<0>(all(records.enumerate()).at(2)) == 2);
    const auto twice = all(dataset::zip(dataset::range(3), records.enumerate())).at(1);
    CHECK(keys(std::get<1>(std::get<1>(twice))) == expected(1));
    const auto windows = all(records.window({.size = 2}));
    REQUIRE(windows.size() == 2);
    REQUIRE(windows[0].size() == 2);
    CHECK(keys(windows[0][1]) == expected(1));
    CHECK(keys(windows[1].at(0)) == expected(2));
  }
}

TEST_CASE("a nest that its columns could not tell is refused", "[input][unit]") {
  using Lists = std::vector<torch::Tensor>;
  const torch::Tensor one = torch::ones({2});
  const auto of = [](const auto& element) {
    return all(dataset::from_elements<std::decay_t<decltype(element)>>({element})).at(0);
  };

  CHECK(throws(ErrorCode::kInvalidArgument, "'0' of an element has no tensors",
               [&] { of(std::vector<Lists>{{}, {one}}); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "key 'a/b' of an element",
               [&] { of(std::map<std::string, Lists>{{"a/b", {one}}, {"a/c", {one}}}); }));
  // Leaves may be called so, and what has a place of its own may be empty.
  CHECK(of(std::map<std::string, torch::Tensor>{{"a/b", one}, {"a/c", one}}).count("a/c") == 1);
  CHECK(std::get<0>(of(std::tuple{Lists{}, Lists{one}})).empty());
  CHECK(of(std::vector<Lists>{{one}, {one, one}}).at(1).size() == 2);
}

TEST_CASE("a dataset of numbers says that it has no batches of them", "[input][unit]") {
  const auto counts =
      dataset::range(3).map([](const torch::Tensor& n) { return n.item<std::int64_t>(); });
  CHECK(all(counts) == std::vector<std::int64_t>{0, 1, 2});
  CHECK(throws(ErrorCode::kInvalidArgument, "column value int64 [2] has 2 values",
               [&] { (void)counts.batch(2).iterator().next(); }));
  MirroredStrategy strategy(cpus(2));
  auto steps = distribute_datasets_from_function(strategy, [&](const InputContext&) {
                 return counts;
               }).iterator();
  CHECK(steps.get_next().values() == std::vector<std::int64_t>{0, 1});
  CHECK(throws(ErrorCode::kInvalidArgument, "for which nothing is left",
               [&] { (void)steps.get_next(); }));
}

TEST_CASE("every type of tensor goes through", "[input][unit]") {
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kInt, torch::kLong, torch::kByte, torch::kBool,
        torch::kHalf, torch::kBFloat16, torch::kChar, torch::kShort}) {
    const torch::Tensor rows = torch::arange(6).reshape({3, 2}).to(type);
    const auto batches = all(dataset::from_tensor_slices(rows).batch(2));
    REQUIRE(batches.size() == 2);
    CHECK(batches[0].scalar_type() == type);
    CHECK(torch::equal(torch::cat({batches[0], batches[1]}), rows));
  }
  const auto negatives = dataset::range(3).map([](const torch::Tensor& n) {
    const torch::Tensor real = n.to(torch::kDouble);
    return torch::imag(torch::conj(torch::complex(real, real)));
  });
  CHECK(flat(negatives) == Numbers{0, -1, -2});
  CHECK(code_of([] { dataset::from_tensors(torch::zeros({2}, torch::kComplexFloat)); }) ==
        ErrorCode::kInvalidArgument);
  CHECK(code_of([] { dataset::from_tensor_slices(torch::zeros({})); }) ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("what is done to a batch does not reach the source", "[input][unit]") {
  const torch::Tensor rows = torch::zeros({4, 2});
  for (torch::Tensor batch : dataset::from_tensor_slices(rows).batch(2)) batch.add_(1);

  CHECK(rows.sum().item<float>() == 0);
}

TEST_CASE("the steps of a typed dataset", "[input][unit]") {
  const auto even = [](const torch::Tensor& n) { return n.item<int>() % 2 == 0; };
  const auto twice = [](const torch::Tensor& n) { return torch::stack({n, n}); };

  CHECK(flat(dataset::range(6).filter(even)) == Numbers{0, 2, 4});
  CHECK(flat(dataset::range(3).map(twice, 2)) == Numbers{0, 0, 1, 1, 2, 2});
  CHECK(flat(dataset::range(3).flat_map([](const torch::Tensor& n) {
          return dataset::range(n.item<std::int64_t>());
        })) == Numbers{0, 0, 1});
  CHECK(flat(dataset::range(3).interleave(
            [](const torch::Tensor& n) { return dataset::from_tensors(n).repeat(2); }, 2)) ==
        Numbers{0, 1, 0, 1, 2, 2});
  CHECK(flat(dataset::range(2).repeat(2).concatenate(dataset::range(5).skip(3)).take(5)) ==
        Numbers{0, 1, 0, 1, 3});
  CHECK(flat(dataset::range(9).shard(4, 1).cache().prefetch(1)) == Numbers{1, 5});
  CHECK(dataset::range(9).batch(2).cardinality() == 5);
  CHECK(dataset::range(9).repeat().cardinality() == kInfiniteCardinality);
  CHECK(dataset::range(9).batch(2).element_spec() ==
        std::vector<TensorSpec>{{.name = "value", .dtype = torch::kLong, .shape = {-1}}});
  CHECK_FALSE(dataset::range(9).map(twice).element_spec().has_value());
  CHECK(all(dataset::file_names({"a", "b"}).map([](const std::string& s) { return s + "!"; })) ==
        std::vector<std::string>{"a!", "b!"});
}

TEST_CASE("each iteration has an order of its own, one that does not reshuffle the same",
          "[spec][INP-22]") {
  const auto reshuffled = dataset::range(100).shuffle(100);
  const auto fixed = dataset::range(100).shuffle(100, std::nullopt, false);

  CHECK(flat(reshuffled) != flat(reshuffled));
  CHECK(flat(fixed) == flat(fixed));
}

TEST_CASE("a cached shuffle keeps its order", "[spec][INP-21]") {
  const auto cached = dataset::range(100).shuffle(100).cache();
  const Numbers first = flat(cached);

  CHECK(first != sequence(0, 100));
  CHECK(flat(cached) == first);
}

TEST_CASE("errors of functions are thrown where their element is asked for", "[input][unit]") {
  const auto fails = [](auto error) {
    return dataset::range(5).map([error](const torch::Tensor& n) {
      if (n.item<int>() == 2) throw error;
      return n;
    });
  };
  auto ours = fails(Error(ErrorCode::kNotFound, "no such thing")).iterator();
  auto theirs = fails(std::runtime_error("broken")).iterator();
  auto torchs = dataset::range(5)
                    .map([](const torch::Tensor& n) {
                      return torch::ones({2, 3}).matmul(torch::ones({2, 3})) + n;
                    })
                    .iterator();

  CHECK(ours.next()->item<int>() == 0);
  CHECK(ours.next()->item<int>() == 1);
  CHECK(throws(ErrorCode::kNotFound, "no such thing", [&] { ours.next(); }));
  CHECK(throws(ErrorCode::kNotFound, "no such thing", [&] { ours.next(); }));
  (void)theirs.next();
  (void)theirs.next();
  CHECK(throws(ErrorCode::kUnknown, "broken", [&] { theirs.next(); }));
  CHECK(throws(ErrorCode::kUnknown, "mat1 and mat2", [&] { torchs.next(); }));
  CHECK(code_of([] { dataset::range(3).batch(0); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([] { dataset::list_files({"/nowhere/*.csv"}); }) == ErrorCode::kNotFound);
}

TEST_CASE("functions run without gradients, on one thread each", "[input][unit]") {
  const torch::Tensor weight = torch::ones({2}, torch::requires_grad());
  std::atomic<int> wrong = 0;
  const auto mapped = dataset::range(8).map(
      [&](const torch::Tensor& n) {
        const torch::Tensor product = weight * n;
        if (product.requires_grad() || at::get_num_threads() != 1) ++wrong;
        return product;
      },
      2);

  CHECK(flat(mapped).size() == 16);
  CHECK(wrong == 0);
  CHECK(at::get_num_threads() >= 1);
}

TEST_CASE("a deadline passes, the element does not", "[input][unit]") {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  auto iterator = dataset::range(2)
                      .map([&](const torch::Tensor& n) {
                        std::unique_lock lock(mutex);
                        changed.wait(lock, [&] { return open; });
                        return n;
                      })
                      .iterator();
  const auto soon = [] { return std::chrono::steady_clock::now() + 2ms; };

  CHECK(code_of([&] { iterator.next(soon()); }) == ErrorCode::kDeadlineExceeded);
  CHECK(code_of([&] { iterator.next(soon()); }) == ErrorCode::kDeadlineExceeded);
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();
  CHECK(iterator.next()->item<int>() == 0);
  CHECK(iterator.next()->item<int>() == 1);
}

TEST_CASE("an iterator that is dropped ends a function that waits", "[input][unit]") {
  std::mutex mutex;
  std::condition_variable changed;
  bool waiting = false;
  auto iterator = dataset::range(9)
                      .map(
                          [&](const torch::Tensor& n, const std::stop_token& stop) {
                            {
                              const std::lock_guard lock(mutex);
                              waiting = true;
                            }
                            changed.notify_all();
                            (void)dataset::wait_for(stop, 1h);
                            return n;
                          },
                          3)
                      .prefetch(2)
                      .iterator();
  CHECK(code_of([&] { iterator.next(std::chrono::steady_clock::now() + 1ms); }) ==
        ErrorCode::kDeadlineExceeded);
  {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, 30s, [&] { return waiting; }));
  }

  const auto start = std::chrono::steady_clock::now();
  {
    const auto dropped = std::move(iterator);
  }

  CHECK(std::chrono::steady_clock::now() - start < 1s);
}

TEST_CASE("a parallel map works ahead of the step, in order", "[input][unit]") {
  constexpr int kCalls = 4;
  std::mutex mutex;
  std::condition_variable changed;
  int begun = 0;
  int inside = 0;
  int most = 0;
  OneDeviceStrategy strategy("CPU:1");
  const auto data = dataset::range(100).map(
      [&](const torch::Tensor& n) {
        std::unique_lock lock(mutex);
        ++begun;
        most = std::max(most, ++inside);
        changed.notify_all();
        // Each one of the first calls waits for the others: one at a time would never end.
        changed.wait_for(lock, 30s, [&] { return most >= kCalls; });
        --inside;
        return n * 2;
      },
      kCalls);

  auto iterator = experimental_distribute_dataset(strategy, data.prefetch(2)).iterator();
  CHECK(numbers(iterator.get_next()[0]) == Numbers{0});
  {
    // The step takes its time; the input goes on: with 5 ms steps and 8 ms a call, 4 at a time, the
    // next element is always there.
    std::unique_lock lock(mutex);
    CHECK(changed.wait_for(lock, 30s, [&] { return begun >= 1 + kCalls; }));
    CHECK(most == kCalls);
  }
  for (int n = 1; n < 100; ++n) CHECK(numbers(iterator.get_next()[0]) == Numbers{2 * n});
}

TEST_CASE("a saved position gives the rest, in another program too", "[input][unit]") {
  const auto make = [] {
    return dataset::range(20)
        .shuffle(20)
        .interleave([](const torch::Tensor& n) { return dataset::from_tensors(n).repeat(3); }, 4)
        .map([](const torch::Tensor& n) { return n * 10; }, 3)
        .batch(4);
  };
  auto iterator = make().iterator();
  for (int i = 0; i < 6; ++i) (void)iterator.next();
  const std::string position = iterator.save_position();
  auto restored = make().iterator(position);

  int count = 0;
  while (const auto expected = iterator.next()) {
    const auto got = restored.next();
    REQUIRE(got.has_value());
    CHECK(numbers(*got) == numbers(*expected));
    ++count;
  }
  CHECK(count == 9);
  CHECK_FALSE(restored.next().has_value());
  CHECK(code_of([&] { make().take(3).iterator(position); }) == ErrorCode::kFailedPrecondition);
  CHECK(code_of([&] { make().iterator("nonsense"); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("the passes after a restored one are those that would have followed", "[input][unit]") {
  const auto make = [] { return dataset::range(50).shuffle(50, 3); };
  const auto whole = make();
  std::vector<Numbers> passes;
  for (int pass = 0; pass < 4; ++pass) passes.push_back(flat(whole));
  REQUIRE(passes[3] != passes[1]);
  const auto stopped = make();
  (void)flat(stopped);
  (void)flat(stopped);
  auto third = stopped.iterator();
  CHECK(third.next()->item<int>() == passes[2][0]);
  const std::string position = third.save_position();

  const auto elsewhere = make();
  for (const Dataset<>& dataset : {elsewhere, stopped}) {
    CHECK(dataset.iterator(position).next()->item<int>() == passes[2][1]);
    CHECK(flat(dataset) == passes[3]);
  }
  // An early position does not lead back to passes that have been.
  CHECK(elsewhere.iterator(make().iterator().save_position()).next()->item<int>() == passes[0][0]);
  CHECK(flat(elsewhere) != passes[1]);

  OneDeviceStrategy strategy("CPU:1");
  const auto first_of = [](const DistributedDataset<torch::Tensor>& data) {
    return data.iterator().get_next()[0].item<int>();
  };
  const auto before = experimental_distribute_dataset(strategy, make());
  (void)first_of(before);
  (void)first_of(before);
  const std::string place = before.iterator().save_position();
  const auto after = experimental_distribute_dataset(strategy, make());
  CHECK(after.iterator(place).get_next()[0].item<int>() == passes[2][0]);
  CHECK(first_of(after) == passes[3][0]);
}

TEST_CASE("a saved position of a distributed iterator, at every step", "[input][unit]") {
  MirroredStrategy strategy(cpus(2));
  const InputOptions per_replica{.experimental_replication_mode =
                                     InputReplicationMode::kPerReplica};
  const auto check = [](const std::function<DistributedDataset<torch::Tensor>()>& make) {
    auto iterator = make().iterator();
    std::vector<std::string> positions;
    Steps steps;
    while (true) {
      positions.push_back(iterator.save_position());
      const auto step = iterator.next();
      if (!step) break;
      steps.push_back(testing::step_of(*step));
    }
    REQUIRE(steps.size() > 2);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      auto restored = make().iterator(positions[i]);
      CHECK(testing::rest_of(restored) ==
            Steps(steps.begin() + static_cast<std::ptrdiff_t>(i), steps.end()));
    }
  };
  const auto data = [] { return dataset::range(23).shuffle(10).batch(5).repeat(2); };

  check([&] { return experimental_distribute_dataset(strategy, data()); });
  check([&] {
    return distribute_datasets_from_function(strategy, [&](const InputContext&) { return data(); });
  });
  check([&] {
    return distribute_datasets_from_function(
        strategy,
        [&](const InputContext& context) { return data().take(4 + context.input_pipeline_id()); },
        per_replica);
  });
  CHECK(code_of([&] {
          experimental_distribute_dataset(strategy, data()).iterator(std::string("x"));
        }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("a worker that fails, leaves or does not come is named to the others", "[input][unit]") {
  const auto reading = [](const std::function<void(int, DistributedIterator<torch::Tensor>&)>& body,
                          std::chrono::milliseconds patience) {
    std::vector<std::string> errors(2);
    on_workers<int>(2, 1, [&](Strategy& strategy, InputWorkers workers) {
      workers.patience = patience;
      const auto data = distribute_datasets_from_function(
          strategy,
          [](const InputContext& context) {
            return dataset::range(10).map([context](const torch::Tensor& n) {
              if (n.item<int>() == 3 && context.input_pipeline_id() == 1) {
                throw Error(ErrorCode::kDataLoss, "a bad record");
              }
              return n;
            });
          },
          {}, workers);
      auto iterator = data.iterator();
      const auto error = testing::error_of([&] { body(workers.index, iterator); });
      errors[static_cast<std::size_t>(workers.index)] = error ? error->what() : "";
      return 0;
    });
    return errors;
  };

  const auto failed = reading(
      [](int, auto& iterator) {
        while (iterator.next()) {
        }
      },
      60s);
  CHECK(failed[0].find("DATA_LOSS: worker 1: ") == 0);
  CHECK(failed[0].find("a bad record") != std::string::npos);
  CHECK(failed[1].find("a bad record") != std::string::npos);
  const auto left = reading(
      [](int worker, auto& iterator) {
        for (int i = 0; i < (worker == 1 ? 1 : 3); ++i) (void)iterator.next();
      },
      60s);
  CHECK(left[0].find("UNAVAILABLE") == 0);
  CHECK(left[0].find("worker 1") != std::string::npos);
  std::mutex mutex;
  std::condition_variable changed;
  bool late = false;
  const auto missing = reading(
      [&](int worker, auto& iterator) {
        std::unique_lock lock(mutex);
        if (worker == 1) {
          changed.wait(lock, [&] { return late; });
          return;
        }
        lock.unlock();
        const auto error = testing::error_of([&] { iterator.next(); });
        lock.lock();
        late = true;
        changed.notify_all();
        if (error) throw Error(*error);
      },
      20ms);
  CHECK(missing[0].find("DEADLINE_EXCEEDED") == 0);
  CHECK(missing[0].find("1 of 2 workers not here yet: worker 1") != std::string::npos);
}

TEST_CASE("several workers with finite data need a link", "[input][unit]") {
  MirroredStrategy strategy(cpus(1));
  InputWorkers workers;
  workers.count = 2;

  CHECK(throws(ErrorCode::kInvalidArgument, "link", [&] {
    experimental_distribute_dataset(strategy, dataset::range(9).batch(2), {}, workers);
  }));
  CHECK(code_of([&] {
          experimental_distribute_dataset(strategy, dataset::range(9).repeat().batch(2), {},
                                          workers);
        }) == ErrorCode::kOk);
}

}  // namespace
}  // namespace muster
