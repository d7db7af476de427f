// The seven scatter operations.
#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

using List = std::vector<double>;

// What replica r sends in the rows below: values [r, r + 1] at [r, r + 1].
IndexedSlices two_rows(torch::ScalarType type) {
  const torch::Tensor values = torch::tensor({id(), id() + 1}, torch::kInt).to(type);
  return rows(values, ints(id(), id() + 1));
}

void CheckComponents(const Variable& v, const List& expected) {
  for (const Variable& component : v.components()) CHECK(list(component) == expected);
}

TEST_CASE("scatter_sub with MEAN subtracts the mean of the rows", "[spec][VAR-14]") {
  for (const auto type : {torch::kFloat, torch::kInt}) {
    MirroredStrategy strategy(cpus(2));
    const Variable v = on_write(strategy, torch::zeros({3}, type), kMean);
    strategy.run([&] { v.scatter_sub(two_rows(type)); });
    CheckComponents(v, {0, -1, -1});
  }
}

TEST_CASE("scatter_add with SUM adds all rows", "[spec][VAR-15]") {
  MirroredStrategy mirrored(cpus(2));
  CentralStorageStrategy central(cpus(2));
  for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &central}) {
    for (const auto type : {torch::kInt, torch::kLong, torch::kBFloat16}) {
      const Variable v = on_write(*strategy, torch::zeros({3}, type), kSum);
      const auto read = strategy->run([&] { return v.scatter_add(two_rows(type)); });
      CheckComponents(v, {0, 2, 2});
      CHECK(list(read[1]) == List{0, 2, 2});
    }
  }
}

TEST_CASE("scatter_div with SUM divides integers toward zero", "[spec][VAR-16]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, torch::tensor({1, 6, 1}, torch::kInt), kSum);
  strategy.run([&] { v.scatter_div(row(id() + 2, id())); });
  CheckComponents(v, {0, 2, 1});
  CHECK(v.dtype() == torch::kInt);
  CHECK(code_of([&] { v.scatter_div(row(0, 1)); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("a MEAN of narrow numbers has room for what is added first", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable bytes = on_write(strategy, torch::zeros({3}, torch::kChar), kMean);
  strategy.run([&] { bytes.scatter_add(rows(torch::full({1}, 100, torch::kChar), ints(1))); });
  CHECK(list(bytes.value()) == std::vector<double>{0, 100, 0});
  const Variable half = on_write(strategy, torch::zeros({1}, torch::kHalf), kMean);
  strategy.run([&] { half.assign(torch::full({1}, 40'000.0, torch::kHalf)); });
  CHECK(list(half.value()) == std::vector<double>{40'000});
}

TEST_CASE("scatter_mul with MEAN multiplies by the mean", "[spec][VAR-17]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, floats(2, 1, 1), kMean);
  strategy.run([&] { v.scatter_mul(row(id() + 2.0, id())); });
  CheckComponents(v, {2, 1.5, 1});
}

TEST_CASE("min, max and update cannot be summed or averaged", "[spec][VAR-18]") {
  MirroredStrategy strategy(cpus(2));
  for (const auto& [aggregation, name] :
       std::vector<std::pair<VariableAggregation, std::string>>{{kSum, "SUM"}, {kMean, "MEAN"}}) {
    const Variable v = on_write(strategy, floats(0, 2, 0), aggregation);
    const auto refused = [&](const std::string& op, const std::function<void()>& call) {
      const auto error = error_of([&] { strategy.run(call); });
      CHECK(code_of(call) == ErrorCode::kUnimplemented);
      return error && error->code() == ErrorCode::kUnimplemented &&
             error->message().find(op) != std::string::npos &&
             error->message().find(name) != std::string::npos;
    };
    CHECK(refused("scatter_min", [&] { v.scatter_min(row(1.0, 1)); }));
    CHECK(refused("scatter_max", [&] { v.scatter_max(row(1.0, 0)); }));
    CHECK(refused("scatter_update", [&] { v.scatter_update(row(3.0, 1)); }));
    CheckComponents(v, {0, 2, 0});
  }
}

TEST_CASE("min, max and update take the first replica's rows", "[spec][VAR-19]") {
  MirroredStrategy strategy(cpus(2));
  const Variable low = on_write(strategy, floats(0, 2, 0), kFirst);
  const Variable high = on_write(strategy, floats(0, 0, 0), kFirst);
  const Variable set = on_write(strategy, floats(0, 0, 0), kFirst);

  strategy.run([&] {
    low.scatter_min(row(1.0 - 5 * id(), 1 - id()));
    high.scatter_max(row(1.0 + 5 * id(), id()));
    set.scatter_update(row(3.0 + id(), 1 + id()));
  });

  CheckComponents(low, {0, 1, 0});
  CheckComponents(high, {1, 0, 0});
  CheckComponents(set, {0, 3, 0});
}

TEST_CASE("all seven scatter operations of a replica's own component", "[spec][VAR-20]") {
  for (const int n : {1, 2}) {
    MirroredStrategy strategy(cpus(n));
    OneDeviceStrategy one("CPU:1");
    for (Strategy* s : std::vector<Strategy*>{&strategy, &one}) {
      const Variable v = on_write(*s, floats(4), kNone);
      const auto seen = s->run([&] {
        List values;
        const auto note = [&](const torch::Tensor& value) { values.push_back(number(value)); };
        note(v.scatter_sub(row(2.0, 0)));
        note(v.scatter_add(row(2.0, 0)));
        note(v.scatter_max(row(2.0, 0)));
        note(v.scatter_min(row(2.0, 0)));
        note(v.scatter_mul(row(2.0, 0)));
        note(v.scatter_div(row(2.0, 0)));
        note(v.scatter_update(row(2.0, 0)));
        return values;
      });
      for (const List& values : seen.values()) CHECK(values == List{2, 4, 4, 2, 4, 2, 2});
    }
  }
}

TEST_CASE("a scatter across replicas reaches every component", "[spec][VAR-21]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, floats(1, 1, 1), kNone);
  CHECK(list(v.scatter_add(row(2.0, 0))) == List{3, 1, 1});
  CheckComponents(v, {3, 1, 1});
  const Variable w = on_write(strategy, floats(1, 1, 1), kFirst);
  const auto scope = strategy.scope();
  CHECK(list(w.scatter_min(row(2.0, 0))) == List{1, 1, 1});
  CheckComponents(w, {1, 1, 1});
}

TEST_CASE("rows of matrices, indices that come twice, no rows at all", "[strategy][unit]") {
  for (const int n : {1, 2, 3}) {
    MirroredStrategy strategy(cpus(n));
    const Variable v = on_write(strategy, torch::zeros({4, 2}), kSum);
    // Each replica sends row r twice and row 3 once.
    strategy.run([&] {
      v.scatter_add(rows(torch::ones({3, 2}), torch::tensor({id(), id(), 3}, torch::kInt)));
    });
    for (int r = 0; r < n && r < 3; ++r) CHECK(list(v.value()[r]) == List{2, 2});
    CHECK(list(v.value()[3]) == List{static_cast<double>(n), static_cast<double>(n)});
    strategy.run(
        [&] { v.scatter_add(rows(torch::ones({0, 2}), torch::zeros({0}, torch::kLong))); });
    CHECK(list(v.value()[3]) == List{static_cast<double>(n), static_cast<double>(n)});
  }
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, floats(1, 64, 1), kNone);
  v.scatter_div(rows(floats(2, 4, 2), ints(1, 1, 1)));
  CheckComponents(v, {1, 4, 1});
  v.scatter_update(rows(floats(7, 8), ints(2, 2)));  // in order: the last one stays
  CheckComponents(v, {1, 4, 8});
  v.scatter_mul(rows(torch::scalar_tensor(3.0), ints(0, 2)));
  CheckComponents(v, {3, 4, 24});
}

TEST_CASE("factors of one row are applied one after the other, none is lost in a sum",
          "[strategy][unit]") {
  for (const int n : {1, 2}) {
    MirroredStrategy strategy(cpus(n));
    const Variable product = on_write(strategy, floats(1, 1), kSum);
    const Variable quotient = on_write(strategy, floats(64 * 64, 1), kSum);
    const Variable mean = on_write(strategy, floats(1, 1), kMean);
    strategy.run([&] {
      product.scatter_mul(rows(floats(2, 3, 5), ints(0, 0, 1)));
      quotient.scatter_div(rows(floats(2, 4), ints(0, 0)));
      mean.scatter_mul(rows(floats(2.0 * n, 3.0 * n), ints(0, 0)));
    });
    const double times = n == 1 ? 1 : 6;
    CheckComponents(product, {6 * times, n == 1 ? 5.0 : 25.0});
    CheckComponents(quotient, {n == 1 ? 512.0 : 64.0, 1});
    CheckComponents(mean, {6 * times, 1});
  }
}

TEST_CASE("rows that do not fit are refused and change nothing", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, torch::zeros({3, 2}), kNone);
  const Variable scalar = on_write(strategy, 1.0, kNone);
  const auto refused = [&](const std::string& text, const Variable& to, const IndexedSlices& s) {
    return throws(ErrorCode::kInvalidArgument, text, [&] { to.scatter_add(s); });
  };

  CHECK(refused("scatter index 3 at position 1 is not in [0, 3)", v,
                rows(torch::ones({2, 2}), ints(0, 3))));
  CHECK(refused("is not in [0, 3)", v, rows(torch::ones({1, 2}), ints(-1))));
  CHECK(
      refused("need values of shape [2, 2], not [2, 3]", v, rows(torch::ones({2, 3}), ints(0, 1))));
  CHECK(refused("int32 or int64", v, rows(torch::ones({1, 2}), floats(1))));
  CHECK(refused("is a scalar", scalar, row(1.0, 0)));
  CHECK(refused("no values", v, {}));
  CheckComponents(v, List(6, 0));
  (v * 3).sum().backward();
  CHECK(refused("is not in [0, 3)", v, rows(torch::ones({1, 2}), ints(3))));
  REQUIRE(v.value().grad().defined());
  CHECK(list(v.value().grad()) == List(6, 3));
}

TEST_CASE("a division by zero changes nothing, whichever of several of a row it is",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto narrow = [](std::vector<int> numbers) { return torch::tensor(numbers, torch::kInt); };
  const Variable v = on_write(strategy, narrow({1, 64, 1}), kNone);

  CHECK(throws(ErrorCode::kInvalidArgument, "scatter_div of variable v: division by zero",
               [&] { v.scatter_div(rows(narrow({2, 4, 0}), ints(0, 1, 1))); }));
  CheckComponents(v, {1, 64, 1});
  v.scatter_div(rows(narrow({2, 4, -3}), ints(0, 1, 1)));
  CheckComponents(v, {0, -5, 1});
  // It wraps around, where the processor's own division would end the program.
  const int least = std::numeric_limits<int>::min();
  const Variable low = on_write(strategy, narrow({least, 7}), kNone);
  low.scatter_div(rows(narrow({-1, -1}), ints(0, 1)));
  CheckComponents(low, {static_cast<double>(least), -7});
  const Variable infinite = on_write(strategy, floats(1, -1), kNone);
  infinite.scatter_div(row(0.0, 0));
  CHECK(std::isinf(list(infinite)[0]));
}

TEST_CASE("rows of a value that nobody holds are changed in place, what was read stays",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const Scope scope = strategy.scope();
  const Variable table = Variable::create("table", torch::zeros({4, 2}));
  const IndexedSlices ones{torch::ones({1, 2}), torch::tensor({1}, torch::kLong)};
  const void* const before = table.component(1).value().data_ptr();
  table.scatter_add(ones, /*read_value=*/false);
  CHECK(table.component(1).value().data_ptr() == before);
  CHECK(table.component(1).value()[1][0].item<float>() == 1);

  const torch::Tensor read = table.component(1).value();
  const torch::Tensor row = table.component(0).value()[1];
  table.scatter_add(ones, /*read_value=*/false);
  CHECK(read[1][0].item<float>() == 1);
  CHECK(row[0].item<float>() == 1);
  CHECK(table.component(1).value()[1][0].item<float>() == 2);
  CHECK(table.component(0).value()[1][0].item<float>() == 2);
}

TEST_CASE("the same rows of all replicas cannot be summed", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, floats(1, 1), kSum);
  const IndexedSlices same = row(2.0, 0);
  CHECK(throws(ErrorCode::kInvalidArgument, "cannot be reduced with the given reduce op SUM",
               [&] { strategy.run([&] { v.scatter_add(same); }); }));
}

}  // namespace
}  // namespace muster
