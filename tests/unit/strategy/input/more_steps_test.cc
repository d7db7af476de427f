// unbatch, padded_batch, enumerate, take_while, window, sample_from_datasets.
#include <algorithm>
#include <limits>

#include "tests/support/catch.h"
#include "tests/unit/strategy/input/input_support.h"

namespace muster::testing {
namespace {

using Lists = std::vector<Numbers>;

template <class T>
Lists lists(const Dataset<T>& dataset) {
  Lists result;
  for (const auto& element : dataset) {
    if constexpr (std::is_same_v<T, torch::Tensor>) {
      result.push_back(numbers(element));
    } else {
      Numbers& one = result.emplace_back();
      for (const torch::Tensor& part : element) one.push_back(part.template item<std::int64_t>());
    }
  }
  return result;
}

TEST_CASE("unbatch gives the rows of each element", "[input][unit]") {
  const auto batches = dataset::from_tensor_slices(
                           std::tuple{torch::arange(10), torch::arange(10) * torch::tensor(2)})
                           .batch(4);
  const auto rows = all(batches.unbatch());
  REQUIRE(rows.size() == 10);
  CHECK(std::get<1>(rows[9]).item<std::int64_t>() == 18);
  CHECK(std::get<0>(rows[9]).dim() == 0);
  CHECK(lists(dataset::range(5).batch(2).unbatch().batch(5)) == Lists{{0, 1, 2, 3, 4}});
}

TEST_CASE("enumerate counts from where it is told", "[input][unit]") {
  const auto counted = all(dataset::range(10, 13).enumerate(5));
  REQUIRE(counted.size() == 3);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto& [place, value] = counted[static_cast<std::size_t>(i)];
    CHECK(place == 5 + i);
    CHECK(value.item<std::int64_t>() == 10 + i);
  }
  CHECK(dataset::range(10).enumerate().cardinality() == 10);
}

TEST_CASE("take_while ends before the first element that fails", "[input][unit]") {
  const auto small = dataset::range(100).take_while(
      [](const torch::Tensor& n) { return n.item<std::int64_t>() % 7 < 4; });
  CHECK(lists(small.batch(10)) == Lists{{0, 1, 2, 3}});
  CHECK(lists(dataset::range(3).take_while([](const torch::Tensor&) { return true; }).batch(9)) ==
        Lists{{0, 1, 2}});
  auto failing = dataset::range(3)
                     .take_while([](const torch::Tensor&) -> bool {
                       throw Error(ErrorCode::kDataLoss, "bad element");
                     })
                     .iterator();
  CHECK(throws(ErrorCode::kDataLoss, "bad element", [&] { (void)failing.next(); }));
  // On the thread of a prefetch nobody else would catch it.
  auto odd = dataset::range(3)
                 .take_while([](const torch::Tensor& n) -> bool {
                   if (n.item<int>() == 1) throw 42;  // NOLINT
                   return true;
                 })
                 .prefetch(1)
                 .iterator();
  CHECK(odd.next()->item<int>() == 0);
  CHECK(throws(ErrorCode::kUnknown, "no std::exception", [&] { (void)odd.next(); }));
}

TEST_CASE("window gives lists of elements, by size, shift and stride", "[input][unit]") {
  const auto numbers_to_7 = dataset::range(7);
  CHECK(lists(numbers_to_7.window({.size = 3})) == Lists{{0, 1, 2}, {3, 4, 5}, {6}});
  CHECK(lists(numbers_to_7.window({.size = 3, .drop_remainder = true})) ==
        Lists{{0, 1, 2}, {3, 4, 5}});
  CHECK(lists(numbers_to_7.window({.size = 3, .shift = 2, .drop_remainder = true})) ==
        Lists{{0, 1, 2}, {2, 3, 4}, {4, 5, 6}});
  CHECK(lists(numbers_to_7.window({.size = 3, .shift = 1, .stride = 2, .drop_remainder = true})) ==
        Lists{{0, 2, 4}, {1, 3, 5}, {2, 4, 6}});
  CHECK(lists(numbers_to_7.window({.size = 2, .shift = 3})) == Lists{{0, 1}, {3, 4}, {6}});
  CHECK(
      throws(kInvalid, "window(): size is 0", [] { (void)dataset::range(3).window({.size = 0}); }));
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(lists(numbers_to_7.window({.size = kMost})).size() == 1);
  CHECK(throws(kInvalid, "reaches over more elements",
               [&] { (void)numbers_to_7.window({.size = kMost, .shift = 1, .stride = 2}); }));
  // Elements of several leaves, more than ten of them.
  const auto pairs =
      dataset::range(24).map([](const torch::Tensor& n) { return std::tuple{n, n * 10}; });
  const auto windows = all(pairs.window({.size = 12}));
  REQUIRE(windows.size() == 2);
  REQUIRE(windows[1].size() == 12);
  CHECK(std::get<1>(windows[1][11]).item<std::int64_t>() == 230);
}

TEST_CASE("padded_batch fills up what is shorter", "[input][unit]") {
  const auto ragged = dataset::range(1, 5).map([](const torch::Tensor& n) {
    return torch::full({n.item<std::int64_t>()}, n.item<std::int64_t>(), torch::kLong);
  });
  CHECK(lists(ragged.padded_batch(3, {.padding = -1})) ==
        Lists{{1, -1, -1, 2, 2, -1, 3, 3, 3}, {4, 4, 4, 4}});
  CHECK(lists(ragged.padded_batch(3, {.drop_remainder = true, .shapes = {{4}}})) ==
        Lists{{1, 0, 0, 0, 2, 2, 0, 0, 3, 3, 3, 0}});
  const auto next = [](const Dataset<>& data) { (void)data.iterator().next(); };
  CHECK(throws(kInvalid, "more than the 2 that it is padded to",
               [&] { next(ragged.padded_batch(4, {.shapes = {{2}}})); }));
  CHECK(throws(kInvalid, "ranks must be equal", [&] {
    next(dataset::range(2)
             .map([](const torch::Tensor& n) {
               return n.item<std::int64_t>() == 0 ? torch::zeros({2}) : torch::zeros({2, 2});
             })
             .padded_batch(2));
  }));
  CHECK(throws(kInvalid, "names and types must be equal", [&] {
    next(dataset::range(2)
             .map([](const torch::Tensor& n) {
               return n.item<std::int64_t>() == 0 ? torch::ones({1}, torch::kLong)
                                                  : torch::full({1}, 0.5);
             })
             .padded_batch(2));
  }));
  CHECK(throws(kInvalid, "the batch size is 0", [&] { (void)ragged.padded_batch(0); }));
}

TEST_CASE("samples come from all datasets by weight, each in its order", "[input][unit]") {
  const std::vector<Dataset<>> sources{dataset::range(0, 3000), dataset::range(10'000, 11'000)};
  const auto mixed = dataset::sample_from_datasets(sources, {0.75, 0.25}, /*seed=*/3);

  const Numbers once = lists(mixed.batch(4000)).at(0);
  const Numbers again = lists(mixed.batch(4000)).at(0);

  CHECK(once == again);
  Numbers first, second;
  for (const std::int64_t one : once) (one < 10'000 ? first : second).push_back(one);
  CHECK(first.size() == 3000);
  CHECK(second.size() == 1000);
  CHECK(std::is_sorted(first.begin(), first.end()));
  CHECK(std::is_sorted(second.begin(), second.end()));
  const auto early = std::count_if(once.begin(), once.begin() + 1000,
                                   [](std::int64_t one) { return one < 10'000; });
  CHECK(early > 680);
  CHECK(early < 820);
  const auto stopped =
      all(dataset::sample_from_datasets(sources, {0.0, 1.0}, 3, /*stop_on_empty_dataset=*/true));
  CHECK(stopped.size() == 1000);
  CHECK(throws(kInvalid, "3 weights for 2 datasets",
               [&] { (void)dataset::sample_from_datasets(sources, {1, 1, 1}); }));
  CHECK(throws(kInvalid, "1 weight for 2 datasets",
               [&] { (void)dataset::sample_from_datasets(sources, {1}); }));
  CHECK(
      throws(kInvalid, "not all 0", [&] { (void)dataset::sample_from_datasets(sources, {0, 0}); }));
}

TEST_CASE("windows and padded batches end where a prefetch below them has ended", "[input][unit]") {
  const auto ahead = dataset::range(10).prefetch(2);
  CHECK(lists(ahead.padded_batch(4)).size() == 3);
  CHECK(lists(ahead.window({.size = 3})) == Lists{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9}});
  CHECK(lists(ahead.window({.size = 3, .shift = 1})).size() == 10);
  CHECK(lists(ahead.window({.size = 2, .shift = 4})) == Lists{{0, 1}, {4, 5}, {8, 9}});
  // A function of the user's, which has said that there is no more, is not called again.
  int ended = 0;
  const auto counted = dataset::from_generator([&ended] {
    return [&ended, n = std::int64_t{0}]() mutable -> std::optional<torch::Tensor> {
      if (n < 3) return torch::tensor(n++);
      ++ended;
      return std::nullopt;
    };
  });
  CHECK(lists(counted.padded_batch(2)).size() == 2);
  CHECK(ended == 1);
}

TEST_CASE("an iterator does not go to an element before the first", "[input][unit]") {
  auto iterator = dataset::from_tensor_slices(torch::arange(4)).iterator();
  CHECK(throws(kInvalid, "element -1 of a dataset", [&] { iterator.seek(-1); }));
  CHECK(iterator.next()->item<int>() == 0);
}

// Two files of two rows of different length; a row of file f begins with 10 f.
Dataset<> rows_of_two_files() {
  return dataset::file_names({"0", "1"}).flat_map([](const std::string& name) {
    const std::int64_t first = name == "0" ? 0 : 10;
    return dataset::range(2).map([first](const torch::Tensor& row) {
      const auto n = row.item<std::int64_t>();
      return torch::arange(first, first + 1 + n);
    });
  });
}

TEST_CASE("padded_batch and window are sharded by file, take_while by data", "[input][unit]") {
  const auto of_workers = [](const auto& dataset) {
    using Element = std::decay_t<decltype(*dataset.begin())>;
    return testing::on_workers<std::vector<Element>>(
        2, 1, [&](Strategy& strategy, const InputWorkers& workers) {
          std::vector<Element> taken;
          for (const auto& step :
               experimental_distribute_dataset(strategy, dataset, {}, workers, /*split=*/false)) {
            taken.push_back(step[0]);
          }
          return taken;
        });
  };
  const Dataset<> rows =
      rows_of_two_files().with_options({.auto_shard_policy = data::AutoShardPolicy::kFile});

  const auto batches = of_workers(rows.padded_batch(2));
  REQUIRE(batches[1].size() == 1);
  CHECK(numbers(batches[0][0]) == Numbers{0, 0, 0, 1});
  CHECK(numbers(batches[1][0]) == Numbers{10, 0, 10, 11});
  const auto windows = of_workers(rows.window({.size = 2}));
  REQUIRE(windows[1].size() == 1);
  CHECK(numbers(windows[1][0][1]) == Numbers{10, 11});

  const auto begin =
      rows.take_while([](const torch::Tensor& row) { return row[0].item<int>() < 10; });
  CHECK(throws(ErrorCode::kNotFound, "not possible through custom(take_while)",
               [&] { (void)of_workers(begin); }));
  // Both workers find the same end.
  const auto taken =
      of_workers(begin.with_options({.auto_shard_policy = data::AutoShardPolicy::kData}));
  CHECK(taken[0].size() == 1);
  CHECK(numbers(taken[1].at(0)) == Numbers{0, 1});
}

TEST_CASE("a position of these steps goes on where it was", "[input][unit]") {
  const auto build = [] {
    const std::vector<Dataset<>> sources{dataset::range(20).batch(5).unbatch(), dataset::range(9)};
    return dataset::sample_from_datasets(sources, {1, 1}, /*seed=*/5)
        .window({.size = 4, .shift = 3})
        .map([](const std::vector<torch::Tensor>& window) { return torch::stack(window); })
        .padded_batch(2);
  };
  const auto data = build();
  auto iterator = data.iterator();
  (void)iterator.next();
  (void)iterator.next();
  const std::string position = iterator.save_position();
  Lists expected, seen;
  while (const auto one = iterator.next()) expected.push_back(numbers(*one));

  auto restored = build().iterator(position);
  while (const auto one = restored.next()) seen.push_back(numbers(*one));

  CHECK(expected.size() > 1);
  CHECK(seen == expected);
}

TEST_CASE("a position among samples of shuffled datasets goes on with what was left",
          "[input][unit]") {
  const auto sampled = [](std::optional<std::uint64_t> seed) {
    const std::vector<Dataset<>> sources{dataset::range(40).shuffle(40),
                                         dataset::range(100, 120).shuffle(20)};
    return dataset::sample_from_datasets(sources, {2, 1}, seed);
  };
  for (const auto seed : {std::optional<std::uint64_t>(5), std::optional<std::uint64_t>()}) {
    CAPTURE(seed.has_value());
    const auto data = sampled(seed);
    (void)all(data);  // another pass, in which the shuffles draw anew
    auto iterator = data.iterator();
    for (int i = 0; i < 25; ++i) (void)iterator.next();
    const std::string position = iterator.save_position();
    Numbers expected, seen;
    while (const auto one = iterator.next()) expected.push_back(one->item<std::int64_t>());

    auto restored = sampled(seed).iterator(position);
    while (const auto one = restored.next()) seen.push_back(one->item<std::int64_t>());

    CHECK(expected.size() == 35);
    CHECK(seen == expected);
  }
}

TEST_CASE("a sample whose dataset waits ends with its iterator", "[input][unit]") {
  const auto waiting =
      dataset::range(10).map([](const torch::Tensor& n, const std::stop_token& stop) {
        if (n.item<int>() > 0) (void)dataset::wait_for(stop, std::chrono::hours(1));
        return n;
      });
  const std::vector<Dataset<>> sources{waiting};
  auto iterator = dataset::sample_from_datasets(sources, {1}).prefetch(4).iterator();
  CHECK(iterator.next()->item<int>() == 0);
}

TEST_CASE("fewer files than workers are worth a warning", "[input][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto records = dataset::file_names({"a", "b"}).flat_map([](const std::string&) {
    return dataset::range(4);
  });
  const auto warnings_of = [&](int workers) {
    return experimental_distribute_dataset(
               strategy, records.batch(8), {},
               {.count = workers, .index = 0, .link = InputLink::in_memory(workers)})
        .warnings();
  };
  CHECK(warnings_of(2).empty());
  REQUIRE(warnings_of(3).size() == 1);
  CHECK(warnings_of(3)[0].find("2 files for 3 workers, so 1 of them has nothing to read") !=
        std::string::npos);
}

TEST_CASE("workers that share out an order without a seed are warned", "[input][unit]") {
  MirroredStrategy strategy(cpus(1));
  const auto warnings_of = [&](const Dataset<>& dataset, int workers) {
    return experimental_distribute_dataset(
               strategy,
               dataset.batch(4).with_options({.auto_shard_policy = AutoShardPolicy::kData}), {},
               {.count = workers, .index = 0, .link = InputLink::in_memory(workers)})
        .warnings();
  };

  REQUIRE(warnings_of(dataset::range(64).shuffle(64), 2).size() == 1);
  CHECK(warnings_of(dataset::range(64).shuffle(64), 2)[0].find(
            "over 2 workers: shuffle(64) has no seed") != std::string::npos);
  CHECK(warnings_of(dataset::range(64).shuffle(64, 1), 2).empty());
  CHECK(warnings_of(dataset::range(64).shuffle(64), 1).empty());
}

}  // namespace
}  // namespace muster::testing
