// Short words for tests of pipelines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/iterator.h"
#include "common/data/pipeline/pipeline.h"
#include "common/data/pipeline/rewrite.h"
#include "tests/support/catch.h"

namespace muster::data::testing {

using Numbers = std::vector<std::int64_t>;
using Batches = std::vector<Numbers>;

inline Pipeline Range(std::int64_t n) { return Pipeline::Range(n); }

inline std::int64_t Number(const Element& element) {
  return *element.columns.at(0).as<std::int64_t>();
}

inline Numbers RowsOf(const Element& element) {
  const Column& column = element.columns.at(0);
  return {column.as<std::int64_t>(), column.as<std::int64_t>() + column.elements()};
}

inline Element VectorOf(Numbers values) {
  const auto size = static_cast<std::int64_t>(values.size());
  return {.columns = {MakeColumn<std::int64_t>(kValueColumn, {size}, std::move(values))}};
}

inline std::unique_ptr<Iterator> Open(const Pipeline& pipeline, Iterator::Options options = {}) {
  auto iterator = Iterator::Make(pipeline, std::move(options));
  INFO(ToString(iterator.status()));
  REQUIRE(iterator.ok());
  return *std::move(iterator);
}

// The next element's numbers; nothing at the end.
inline std::optional<Numbers> NextOf(Iterator& iterator) {
  const Item item = iterator.Next();
  INFO(ToString(item.status()));
  REQUIRE(item.ok());
  if (!*item) return std::nullopt;
  return RowsOf(**item);
}

// What is left of an iterator: at most `limit` elements.
inline Batches Rest(Iterator& iterator, std::size_t limit = 100'000) {
  Batches rest;
  while (rest.size() < limit) {
    std::optional<Numbers> next = NextOf(iterator);
    if (!next) break;
    rest.push_back(*std::move(next));
  }
  return rest;
}

inline Batches All(const Pipeline& pipeline, Iterator::Options options = {}) {
  return Rest(*Open(pipeline, std::move(options)));
}

// The same for elements of one number each.
inline Numbers Flat(const Batches& batches) {
  Numbers flat;
  for (const Numbers& batch : batches) flat.insert(flat.end(), batch.begin(), batch.end());
  return flat;
}
inline Numbers AllNumbers(const Pipeline& pipeline, Iterator::Options options = {}) {
  return Flat(All(pipeline, std::move(options)));
}

// The error that a pipeline ends with, or cannot be opened for; OK when it has none.
inline Status ErrorOf(const Pipeline& pipeline) {
  auto iterator = Iterator::Make(pipeline);
  if (!iterator.ok()) return iterator.status();
  while (true) {
    const Item item = (*iterator)->Next();
    if (!item.ok() || !*item) return item.status();
  }
}

inline Pipeline::MapOptions Parallel(int threads) {
  Pipeline::MapOptions options;
  options.parallel = threads;
  return options;
}
inline Pipeline::ShuffleOptions Seeded(std::uint64_t seed, bool reshuffle = true) {
  return {.seed = seed, .reshuffle_each_iteration = reshuffle};
}

inline MapFunction Times(std::int64_t factor) {
  return [factor](const Element& element, const std::stop_token&) -> Result<Element> {
    return Scalar<std::int64_t>(Number(element) * factor);
  };
}

// 10 * n, 10 * n + 1, ... : the records of "file" n.
inline ExpandFunction TenOf() {
  return [](const Element& element) -> Result<Pipeline> {
    return Pipeline::Range(10 * Number(element), 10 * Number(element) + 10);
  };
}
// The same, when the elements are names: "3" has the records 30 to 39.
inline ExpandFunction ReadFile(std::int64_t records = 10) {
  return [records](const Element& element) -> Result<Pipeline> {
    const std::int64_t file = std::stoll(*element.columns.at(0).as<std::string>());
    return Pipeline::Range(records * file, records * file + records);
  };
}
inline Pipeline Files(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return Pipeline::FileNames(std::move(names));
}

inline Numbers Sequence(std::int64_t begin, std::int64_t end, std::int64_t step = 1) {
  Numbers numbers;
  for (std::int64_t n = begin; n < end; n += step) numbers.push_back(n);
  return numbers;
}

inline bool Mentions(const Status& status, std::string_view part) {
  if (Message(status).find(part) != std::string::npos) return true;
  UNSCOPED_INFO("\"" << Message(status) << "\" does not contain \"" << part << '"');
  return false;
}

}  // namespace muster::data::testing
