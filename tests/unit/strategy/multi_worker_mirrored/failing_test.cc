// What one worker cannot bring to a call of all: the others hear of it at once.
#include "strategy/train/checkpoint.h"
#include "strategy/train/module.h"
#include "strategy/variables/variable.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"

namespace muster::testing {
namespace {

struct MeasuredImpl : torch::nn::Cloneable<MeasuredImpl> {
  MeasuredImpl() { reset(); }  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall)
  void reset() override {
    weight = register_parameter("weight", torch::ones({2}));
    mean = register_buffer("mean", torch::ones({2}));
  }
  torch::Tensor weight;
  torch::Tensor mean;
};

// `body`'s error on each of two workers of two devices, the second of which has given the first
// copy's `member` another shape.
std::vector<std::string> with_one_reshaped(
    torch::Tensor MeasuredImpl::* member,
    const std::function<void(const DistributedModule<MeasuredImpl>&)>& body) {
  return on_cluster<std::string>(2, 2, [&](MultiWorkerMirroredStrategy& strategy) -> std::string {
    const auto scope = strategy.scope();
    const auto net = strategy.distribute(std::make_shared<MeasuredImpl>());
    if (!strategy.is_chief()) (net.copy(0).get()->*member).set_data(torch::ones({3}));
    const auto error = error_of([&] { body(net); });
    return error ? error->message() : "";
  });
}

TEST_CASE("a variable of which one worker cannot read its part is an error of all who read it",
          "[strategy][unit]") {
  for (const std::string& error : with_one_reshaped(
           &MeasuredImpl::mean, [](const auto& net) { (void)net.variable("mean").value(); })) {
    CAPTURE(error);
    CHECK(error.find("has shape [3] now") != std::string::npos);
  }
}

TEST_CASE("a module that one worker cannot save is an error of all who save it",
          "[strategy][unit]") {
  const TempFolder folder;
  for (const std::string& error : with_one_reshaped(
           &MeasuredImpl::weight, [&](const auto& net) { net.save(folder / "net.pt"); })) {
    CAPTURE(error);
    CHECK(error.find("has shape [3] now") != std::string::npos);
  }
}

TEST_CASE("a checkpoint of which one worker cannot read a value is an error of all who save it",
          "[strategy][unit]") {
  const TempFolder folder;
  const bool parameter = GENERATE(false, true);
  const bool later = GENERATE(false, true);
  const auto member = parameter ? &MeasuredImpl::weight : &MeasuredImpl::mean;
  const auto errors = with_one_reshaped(member, [&](const auto& net) {
    Checkpoint checkpoint;
    checkpoint.track(net);
    if (!later) return checkpoint.save(folder / "saved");
    checkpoint.save_async(folder / "saved");
    checkpoint.wait();
  });
  for (const std::string& error : errors) {
    CAPTURE(parameter, later, error);
    CHECK(error.find("has shape [3] now") != std::string::npos);
  }
}

TEST_CASE("what one worker cannot read of a checkpoint or a file is an error of all and no change",
          "[strategy][unit]") {
  const TempFolder folder;
  using Heard = std::vector<std::string>;
  const auto heard = on_cluster<Heard>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const auto net = strategy.distribute(std::make_shared<MeasuredImpl>());
    const Variable weight = net.variable("weight");
    const auto holds = [&](float value) { return weight.value().equal(torch::full({2}, value)); };
    Checkpoint checkpoint;
    checkpoint.track(net);
    checkpoint.save(folder / "saved");
    net.save(folder / "net.pt");
    weight.assign(torch::full({2}, 5.0F), false);
    const std::string nowhere = folder / "nowhere";
    const bool chief = strategy.is_chief();
    Heard all;
    const auto restored =
        error_of([&] { (void)checkpoint.restore(chief ? folder / "saved" : nowhere); });
    all.push_back(restored && holds(5.0F) ? restored->message() : "");
    const auto loaded = error_of([&] { net.load(chief ? folder / "net.pt" : nowhere); });
    all.push_back(loaded && holds(5.0F) ? loaded->message() : "");
    // The group goes on.
    (void)checkpoint.restore(folder / "saved");
    all.push_back(holds(1.0F) ? "" : "not restored");
    return all;
  });

  for (const Heard& one : heard) {
    CAPTURE(one[0], one[1]);
    for (const std::size_t i : {0U, 1U}) {
      CHECK(one[i].find("worker:1: ") == 0);
      CHECK(one[i].find("nowhere") != std::string::npos);
    }
    CHECK(one[2].empty());
  }
}

// As where a worker's part of the last batch is empty, and its replicas return one constant.
TEST_CASE("that the replicas of one worker have one tensor for a sum is an error of all workers",
          "[strategy][unit]") {
  using Heard = std::pair<std::string, bool>;
  const auto heard = on_cluster<Heard>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    const torch::Tensor nothing = torch::zeros({2});
    const auto values =
        strategy.run([&] { return strategy.is_chief() ? torch::ones({2}) : nothing; });
    const auto error = error_of([&] { (void)strategy.reduce(ReduceOp::kSum, values); });
    const torch::Tensor mean = strategy.reduce(ReduceOp::kMean, values);
    return Heard(error ? error->message() : "", mean.equal(torch::full({2}, 0.5)));
  });

  CAPTURE(heard[0].first, heard[1].first);
  CHECK(heard[0].first.find("holds an undefined tensor") != std::string::npos);
  CHECK(heard[1].first.find("every replica holds this one object") != std::string::npos);
  for (const auto& [error, goes_on] : heard) CHECK(goes_on);
}

}  // namespace
}  // namespace muster::testing
