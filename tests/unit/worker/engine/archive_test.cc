// Archives of torch.jit.save from torch 1.13 and 2.x (tests/fixtures/torchscript/make.py).
#include <fstream>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/worker/engine/fixture.h"
#include "worker/engine/torch.h"

namespace muster::engine {
namespace {

using test::Bench;
using test::Has;
using test::MakeColumn;

std::string Archive(const std::string& name) {
  return std::string(MUSTER_FIXTURES) + "/torchscript/" + name + ".pt";
}

v1::JobSpec ArchiveJob() {
  v1::JobSpec spec;
  spec.mutable_model()->set_archive("model.pt");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return (output * output).mean()\n");
  spec.set_seed(3);
  return spec;
}

data::Element Batch() { return {{MakeColumn<float>("x", {2, 3}, {0.5, -1, 2, 1, 0.25, -0.5})}}; }

std::string Refusal(const std::string& name, v1::JobSpec spec = ArchiveJob()) {
  // The name in the job file is what messages call it, wherever a worker keeps it.
  spec.mutable_model()->set_archive("/home/somebody/" + name + ".pt");
  auto bench = Bench::Make(spec, Batch(), Archive(name));
  if (!bench.ok()) return Message(bench.status());
  return Message(bench->Train(1, Batch()).status());
}

TEST_CASE("an archive of torch 1.13 or 2.x evaluates as in Python and trains its parameters",
          "[engine][unit]") {
  const std::string name = GENERATE("plain-1.13", "plain-2.15");
  auto made = Bench::Make(ArchiveJob(), Batch(), Archive(name));
  INFO(Message(made.status()));
  REQUIRE(made.ok());
  Bench& bench = *made;

  std::vector<std::string> names;
  for (const ParameterInfo& parameter : bench.model->parameters()) names.push_back(parameter.name);
  CHECK(names == std::vector<std::string>{"again.bias", "again.weight", "back.bias", "hidden.bias",
                                          "hidden.weight", "norm.bias", "norm.weight"});
  // What make.py printed, over two examples.
  CHECK(bench.Evaluate(Batch()).value().loss_sum() == Approx(2 * 7.224745).epsilon(1e-5));

  REQUIRE(bench.Train(4, Batch()).ok());
  const auto gradients = bench.gradients;
  for (const char* parameter : {"again.weight", "hidden.weight", "norm.bias"}) {
    // The same step draws the same dropout, so differences of its loss are the gradient.
    for (const std::size_t at : {std::size_t{0}, std::size_t{3}}) {
      constexpr float kEpsilon = 1e-2f;
      float& value = bench.Value(parameter)[at];
      const float before = value;
      value = before + kEpsilon;
      const double above = bench.Train(4, Batch()).value().loss_sum() / 2;
      value = before - kEpsilon;
      const double below = bench.Train(4, Batch()).value().loss_sum() / 2;
      value = before;
      INFO(parameter << " " << at);
      CHECK(gradients[bench.Index(parameter)][at] ==
            Approx((above - below) / (2 * kEpsilon)).epsilon(2e-2).margin(2e-3));
    }
  }
}

TEST_CASE("a trainable parameter without elements does not stop the others from training",
          "[engine][unit]") {
  const testing::TempFolder folder;
  torch::jit::Module module("Net");
  module.register_parameter("empty", at::zeros({0, 3}).requires_grad_(true), false);
  module.register_parameter("w", at::ones({3}).requires_grad_(true), false);
  module.define("def forward(self, x):\n    return (x * self.w).sum() + self.empty.sum()\n");
  module.save(folder / "net.pt");

  auto made = Bench::Make(ArchiveJob(), Batch(), folder / "net.pt");

  INFO(Message(made.status()));
  REQUIRE(made.ok());
  REQUIRE(made->model->parameters().size() == 1);
  CHECK(made->model->parameters()[0].name == "w");
  CHECK(made->Train(1, Batch()).ok());
  CHECK(made->Gradient("w")[0] != 0);
}

TEST_CASE("a buffer that changes in training is refused by name unless it is the worker's own",
          "[engine][unit]") {
  const std::string name = GENERATE("normed-1.13", "normed-2.15");
  const std::string refused = Refusal(name);
  Has(refused, "step 1: buffer \"bn.");
  Has(refused, "buffers: worker_local");

  v1::JobSpec spec = ArchiveJob();
  spec.mutable_model()->set_buffers(v1::BUFFER_POLICY_WORKER_LOCAL);
  auto bench = Bench::Make(spec, Batch(), Archive(name)).value();
  const double before = bench.Evaluate(Batch()).value().loss_sum();
  CHECK(bench.Train(1, Batch()).ok());
  CHECK(bench.Evaluate(Batch()).value().loss_sum() != before);
}

TEST_CASE("buffers and frozen parameters of an archive are values that travel", "[engine][unit]") {
  auto plain = Bench::Make(ArchiveJob(), Batch(), Archive("plain-1.13")).value();
  const v1::ModelValues constant = plain.model->Values(/*frozen=*/true);
  REQUIRE(constant.buffers().tensors_size() == 1);
  CHECK(constant.buffers().tensors(0).name() == "mask");
  CHECK(constant.buffers().tensors(0).data().size() == 4 * sizeof(float));
  REQUIRE(constant.frozen().tensors_size() == 1);
  CHECK(constant.frozen().tensors(0).name() == "scale");
  CHECK(plain.model->Values(/*frozen=*/false).frozen().tensors_size() == 0);

  v1::JobSpec spec = ArchiveJob();
  spec.mutable_model()->set_buffers(v1::BUFFER_POLICY_WORKER_LOCAL);
  auto first = Bench::Make(spec, Batch(), Archive("normed-1.13")).value();
  auto second = Bench::Make(spec, Batch(), Archive("normed-1.13")).value();
  for (const std::uint64_t step : {1, 2, 3}) REQUIRE(first.Train(step, Batch()).ok());
  const double wanted = first.Evaluate(Batch()).value().loss_sum();
  const double own = second.Evaluate(Batch()).value().loss_sum();
  REQUIRE(own != wanted);
  const v1::TensorSet trained = first.model->Values(false).buffers();
  const std::string before = second.model->Values(false).SerializeAsString();
  CHECK(trained.tensors_size() == 3);

  REQUIRE(second.model->EvaluateWith(trained).ok());
  CHECK(second.Evaluate(Batch()).value().loss_sum() == wanted);
  CHECK(second.model->Values(false).SerializeAsString() == before);
  REQUIRE(second.model->EvaluateWith({}).ok());
  CHECK(second.Evaluate(Batch()).value().loss_sum() == own);
  REQUIRE(second.model->SetBuffers(trained).ok());
  CHECK(second.Evaluate(Batch()).value().loss_sum() == wanted);

  v1::TensorSet odd = trained;
  odd.mutable_tensors(0)->add_shape(7);
  const Status refused = second.model->SetBuffers(odd);
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  Has(Message(refused), "buffer \"bn.");
}

TEST_CASE("a sparse buffer is a constant that neither policy stumbles over", "[engine][unit]") {
  const testing::TempFolder folder;
  torch::jit::Module module("Net");
  module.register_buffer("edges", at::eye(3).to_sparse());
  module.register_parameter("w", at::ones({3}).requires_grad_(true), false);
  module.define("def forward(self, x):\n    return x * self.w\n");
  module.save(folder / "net.pt");
  v1::JobSpec spec = ArchiveJob();
  if (GENERATE(false, true)) spec.mutable_model()->set_buffers(v1::BUFFER_POLICY_WORKER_LOCAL);

  auto made = Bench::Make(spec, Batch(), folder / "net.pt");

  INFO(Message(made.status()));
  REQUIRE(made.ok());
  CHECK(made->Train(1, Batch()).ok());
  CHECK(made->Train(2, Batch()).ok());
  CHECK(made->model->Values(/*frozen=*/true).buffers().tensors().empty());
}

TEST_CASE("a batch that an archive refuses is told in the archive's words", "[engine][unit]") {
  const data::Element one{{MakeColumn<float>("x", {1, 3}, {0.5, -1, 2})}};
  v1::JobSpec spec = ArchiveJob();
  spec.mutable_model()->set_buffers(v1::BUFFER_POLICY_WORKER_LOCAL);
  auto bench = Bench::Make(spec, one, Archive("normed-1.13")).value();

  const Status refused = bench.Train(1, one).status();

  CHECK(refused.code() == StatusCode::kInvalidArgument);
  Has(Message(refused), "ValueError: Expected more than 1 value per channel when training");
}

TEST_CASE("parameters that are not float32 are refused by name", "[engine][unit]") {
  Has(Refusal("float64-1.13"), "parameter \"w\" of the archive float64-1.13.pt is Double");
}

#if TORCH_VERSION_MAJOR < 2
TEST_CASE("an operator that this libtorch lacks is named with version and remedy",
          "[engine][unit]") {
  CHECK(Refusal("attention-2.15") ==
        "archive attention-2.15.pt: uses operator aten::scaled_dot_product_attention, which "
        "libtorch " TORCH_VERSION
        " does not have; use a newer libtorch: configure Muster with -DMUSTER_TORCH=<folder of a "
        "newer torch>");
}
#endif

TEST_CASE("what is no archive is refused with its name", "[engine][unit]") {
  const testing::TempFolder folder;
  std::ifstream whole(Archive("plain-1.13"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(whole)), {});
  std::ofstream(folder / "cut.pt", std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  std::ofstream(folder / "text.pt") << "not an archive";

  const auto open = [&](const std::string& name) {
    v1::JobSpec spec = ArchiveJob();
    spec.mutable_model()->set_archive(name);
    return Model::Create(spec, {folder / name, test::ColumnsOf(Batch())}).status();
  };
  const Status cut = open("cut.pt");
  const Status text = open("text.pt");
  const Status missing = open("none.pt");

  CHECK(cut.code() == StatusCode::kInvalidArgument);
  Has(Message(cut), "archive cut.pt: libtorch ");
  Has(Message(text), "archive text.pt: libtorch ");
  CHECK(missing.code() == StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::engine
