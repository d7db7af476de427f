#include "services/executor/batch_reader.h"

#include <atomic>
#include <future>

#include "tests/support/catch.h"

namespace muster::executor {
namespace {

// Batches of one int64 column that holds the closure's number; waits for a permission to read.
class GatedSource final : public data::BatchSource {
 public:
  std::uint64_t examples() const override { return 10; }
  std::uint64_t batches_per_epoch() const override { return 10; }
  const std::vector<data::ColumnInfo>& columns() const override { return columns_; }
  std::uint64_t bad_records() const override { return 0; }
  Result<data::Element> Batch(std::uint64_t closure) override {
    gate.wait();
    ++reads;
    if (closure == 0) return OutOfRange("closure 0");
    auto value = std::make_shared<std::int64_t>(static_cast<std::int64_t>(closure));
    data::Column column{{"n", DType::kInt64, {1}}, value, nullptr};
    column.data = reinterpret_cast<const std::byte*>(value.get());
    return data::Element{{column}};
  }

  std::promise<void> open;
  std::shared_future<void> gate = open.get_future().share();
  std::atomic<int> reads{0};

 private:
  std::vector<data::ColumnInfo> columns_{{"n", DType::kInt64, {-1}}};
};

TEST_CASE("a requested batch is read once, by whoever comes first", "[executor][unit]") {
  auto owned = std::make_unique<GatedSource>();
  GatedSource& source = *owned;
  BatchReader reader(std::move(owned));
  reader.Request(3);
  reader.Request(3);
  reader.Request(4);
  source.open.set_value();

  const auto third = reader.Take(3);
  const auto fourth = reader.Take(4);

  REQUIRE(third.ok());
  CHECK(third->columns[0].as<std::int64_t>()[0] == 3);
  CHECK(fourth->columns[0].as<std::int64_t>()[0] == 4);
  CHECK(source.reads == 2);
}

TEST_CASE("a batch that nobody requested, or one too many, is read when it is taken",
          "[executor][unit]") {
  auto owned = std::make_unique<GatedSource>();
  owned->open.set_value();
  BatchReader reader(std::move(owned));
  for (std::uint64_t closure = 1; closure <= 20; ++closure) reader.Request(closure);

  for (const std::uint64_t closure : {20, 7, 1, 99}) {
    const auto batch = reader.Take(closure);
    REQUIRE(batch.ok());
    CHECK(batch->columns[0].as<std::int64_t>()[0] == static_cast<std::int64_t>(closure));
  }
  CHECK(reader.Take(0).status().code() == StatusCode::kOutOfRange);
}

TEST_CASE("a closure that is assigned again is read again", "[executor][unit]") {
  auto owned = std::make_unique<GatedSource>();
  owned->open.set_value();
  BatchReader reader(std::move(owned));
  reader.Request(1);
  REQUIRE(reader.Take(1).ok());
  reader.Request(1);
  CHECK(reader.Take(1).ok());
}

}  // namespace
}  // namespace muster::executor
