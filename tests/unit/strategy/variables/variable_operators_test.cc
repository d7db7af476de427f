// Variables, and values of replicas, where a program uses them as it would use tensors and lists.
#include <sstream>

#include "tests/support/catch.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

TEST_CASE("a variable is compared, indexed and summed as its tensor is", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, floats(1, 2, 3), kMean);
  const Variable w = on_write(strategy, floats(3, 2, 1), kMean);
  const auto truths = [](const torch::Tensor& tensor) { return list(tensor); };
  using List = std::vector<double>;

  CHECK(truths(v == w) == List{0, 1, 0});
  CHECK(truths(v != 2) == List{1, 0, 1});
  CHECK(truths(v < w) == List{1, 0, 0});
  CHECK(truths(2 <= v) == List{0, 1, 1});
  CHECK(truths(v > floats(0, 2, 2)) == List{1, 0, 1});
  CHECK(truths(floats(1, 1, 1) >= v) == List{1, 0, 0});
  CHECK(number(v[1]) == 2);
  CHECK(number(v[torch::tensor(2)]) == 3);
  CHECK(number(v.sum()) == 6);
  CHECK(number(v.mean()) == 2);
  CHECK(v[2].item<float>() == 3);
  CHECK(on_write(strategy, 4.0, kMean).item<float>() == 4);
}

TEST_CASE("+= and -= are assignments, by the variable's rules", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const Variable sum = on_write(strategy, 1.0, kSum);
  const Variable mean = on_write(strategy, 1.0, kMean);

  strategy.run([&] {
    sum += own(id() + 1);
    mean -= own(id());
  });
  mean += 2;

  CHECK(numbers(sum) == std::vector<double>{4, 4});
  CHECK(numbers(mean) == std::vector<double>{2.5, 2.5});
}

TEST_CASE("a variable is printed by its name and its value", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  const auto text = [](const Variable& variable) {
    std::ostringstream out;
    out << variable;
    return out.str();
  };
  const auto scope = strategy.scope();
  const Variable v = Variable::create("speed", floats(1, 2));
  const Variable each =
      Variable::create("each", 5.0, {.synchronization = kOnRead, .aggregation = kNone});
  const Variable later = Variable::create("later", 5.0, {.initialize = false});

  CHECK(text(v).find("variable speed\n 1\n 2") == 0);
  CHECK(text(each).find("each/replica_1") != std::string::npos);
  CHECK(text(later) == "variable later, not initialised");
  CHECK(text(Variable()) == "no variable");
}

TEST_CASE("values of replicas are gone through in replica order", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(3));
  std::vector<int> seen;
  for (const int one : strategy.run([] { return id() * id(); })) seen.push_back(one);
  for (const int one : Mirrored<int>({7, 7})) seen.push_back(one);
  CHECK(seen == std::vector<int>{0, 1, 4, 7, 7});
}

TEST_CASE("device_of is Muster's in its namespace, though libtorch has one", "[strategy][unit]") {
  const torch::Tensor value = torch::ones({2});
  CHECK(device_of(value) == cpu(0));
}

}  // namespace
}  // namespace muster
