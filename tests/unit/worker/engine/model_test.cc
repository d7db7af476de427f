#include "worker/engine/model.h"

#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "tests/unit/worker/engine/fixture.h"
#include "worker/engine/torch.h"

namespace muster::engine {
namespace {

using test::AddParameter;
using test::Bench;
using test::MakeColumn;

constexpr const char* kMlp = R"(def forward(self, image):
    x = image.reshape([-1, 4]).to(torch.float32) / 255.0
    h = torch.relu(torch.addmm(self.b1, x, self.w1))
    return torch.addmm(self.b2, h, self.w2)
)";

v1::JobSpec Mlp() {
  v1::JobSpec spec;
  AddParameter(spec, "w1", {4, 5});
  AddParameter(spec, "b1", {5});
  AddParameter(spec, "w2", {5, 3});
  AddParameter(spec, "b2", {3});
  spec.mutable_model()->set_forward(kMlp);
  spec.mutable_loss()->set_kind(v1::LOSS_KIND_SOFTMAX_CROSS_ENTROPY);
  spec.mutable_loss()->set_label("label");
  spec.add_metrics(v1::METRIC_ACCURACY);
  spec.set_seed(7);
  return spec;
}

data::Element MlpBatch() {
  std::vector<std::uint8_t> pixels;
  for (int i = 0; i < 3 * 4; ++i) pixels.push_back(static_cast<std::uint8_t>(i * 21));
  return {{MakeColumn<std::uint8_t>("image", {3, 2, 2}, pixels),
           MakeColumn<std::uint8_t>("label", {3}, {0, 2, 1})}};
}

void Fill(std::vector<float>& values, float scale) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * std::sin(static_cast<float>(i) * 1.7f + scale);
  }
}

// The status of making a model, or of its first step.
Status Outcome(const v1::JobSpec& spec, const data::Element& batch) {
  auto bench = Bench::Make(spec, batch);
  if (!bench.ok()) return bench.status();
  for (auto& value : bench->values) Fill(value, 0.5f);
  return bench->Train(1, batch).status();
}

bool Says(const Status& status, const std::string& part) {
  INFO(Message(status));
  const bool found = Message(status).find(part) != std::string::npos;
  CHECK(found);
  return found;
}

TEST_CASE("loss, gradients and accuracy of a forward in source equal eager libtorch's",
          "[engine][unit]") {
  auto bench = Bench::Make(Mlp(), MlpBatch()).value();
  for (auto& value : bench.values) Fill(value, 0.5f);

  const auto sums = bench.Train(1, MlpBatch()).value();

  std::vector<at::Tensor> p;
  for (const char* name : {"w1", "b1", "w2", "b2"}) {
    const auto& info = bench.model->parameters()[bench.Index(name)];
    p.push_back(at::from_blob(bench.Value(name).data(), info.shape).clone().requires_grad_(true));
  }
  std::vector<float> pixels;
  for (int i = 0; i < 12; ++i) pixels.push_back(static_cast<float>(i * 21));
  const at::Tensor x = at::from_blob(pixels.data(), {3, 4}) / 255.0;
  const std::vector<std::int64_t> labels{0, 2, 1};
  const at::Tensor out = at::addmm(p[3], at::relu(at::addmm(p[1], x, p[0])), p[2]);
  const at::Tensor label = at::tensor(labels);
  const at::Tensor loss = at::cross_entropy_loss(out, label);
  loss.backward();
  CHECK(sums.examples() == 3);
  CHECK(sums.loss_sum() == Approx(3 * loss.item<double>()));
  CHECK(sums.correct() ==
        static_cast<std::uint64_t>((out.argmax(1) == label).sum().item<std::int64_t>()));
  for (int i = 0; i < 4; ++i) {
    const char* name = std::vector{"w1", "b1", "w2", "b2"}[static_cast<std::size_t>(i)];
    const auto& gradient = bench.Gradient(name);
    const at::Tensor ours = at::tensor(gradient).reshape(p[static_cast<std::size_t>(i)].sizes());
    INFO(name);
    CHECK(at::allclose(ours, p[static_cast<std::size_t>(i)].grad(), 1e-6, 1e-7));
  }
}

TEST_CASE("parameters are read where they live, so a new value counts in the next step",
          "[engine][unit]") {
  auto bench = Bench::Make(Mlp(), MlpBatch()).value();
  for (auto& value : bench.values) Fill(value, 0.5f);
  const double first = bench.Train(1, MlpBatch()).value().loss_sum();
  for (int step = 2; step < 30; ++step) {
    for (std::size_t i = 0; i < bench.values.size(); ++i) {
      for (std::size_t k = 0; k < bench.values[i].size(); ++k) {
        bench.values[i][k] -= 0.5f * bench.gradients[i][k];
      }
    }
    REQUIRE(bench.Train(static_cast<std::uint64_t>(step), MlpBatch()).ok());
  }

  CHECK(bench.Train(30, MlpBatch()).value().loss_sum() < first);
}

TEST_CASE("a step that runs again draws the same random numbers, another step others",
          "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward(R"(def forward(self, image):
    x = torch.dropout(image.reshape([-1, 4]).to(torch.float32), 0.5, self.training)
    h = torch.relu(torch.addmm(self.b1, x, self.w1))
    return torch.addmm(self.b2, h, self.w2)
)");
  auto bench = Bench::Make(spec, MlpBatch()).value();
  for (auto& value : bench.values) Fill(value, 0.1f);

  const double once = bench.Train(5, MlpBatch()).value().loss_sum();
  const double other = bench.Train(6, MlpBatch()).value().loss_sum();
  const double again = bench.Train(5, MlpBatch()).value().loss_sum();
  const double evaluated = bench.Evaluate(MlpBatch()).value().loss_sum();

  CHECK(once == again);
  CHECK(once != other);
  CHECK(evaluated == bench.Evaluate(MlpBatch()).value().loss_sum());
}

TEST_CASE("a forward that writes into an argument does not change the batch", "[engine][unit]") {
  v1::JobSpec spec;
  AddParameter(spec, "w", {2});
  spec.mutable_model()->set_forward(
      "def forward(self, x):\n    x.mul_(2.0)\n    return x * self.w\n");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return output.sum()\n");
  const data::Element batch{{MakeColumn<float>("x", {1, 2}, {3, 4})}};
  auto bench = Bench::Make(spec, batch).value();

  REQUIRE(bench.Train(1, batch).ok());

  CHECK(bench.Gradient("w") == std::vector<float>{6, 8});
  CHECK(batch.columns[0].as<float>()[0] == 3);
}

TEST_CASE("a forward with a syntax error names line and column", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward("def forward(self, image):\n    x = image +\n    return x\n");

  const Status status = Outcome(spec, MlpBatch());

  CHECK(status.code() == StatusCode::kInvalidArgument);
  Says(status, "forward, line 2, column 16: ");
}

TEST_CASE("a misspelled statement names line and column, in forward and in loss",
          "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward("def forward(self, image):\n    x = image\n    retrn x\n");
  const Status status = Outcome(spec, MlpBatch());
  CHECK(status.code() == StatusCode::kInvalidArgument);
  Says(status, "forward, line 3, column 11: invalid syntax");
  Says(status, "did you mean \"return\"?");
  CHECK(Message(status).find("PyTorch") == std::string::npos);

  spec = Mlp();
  spec.mutable_loss()->Clear();
  spec.mutable_loss()->set_function("def loss(output):\n    output mean = 3\n    return output\n");
  Says(Outcome(spec, MlpBatch()), "loss function, line 2, column 12: invalid syntax");
}

TEST_CASE("a parameter without a shape is a scalar", "[engine][unit]") {
  v1::JobSpec spec;
  AddParameter(spec, "w", {});
  spec.mutable_model()->set_forward("def forward(self, x):\n    return x * self.w\n");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return output.sum()\n");
  const data::Element batch{{MakeColumn<float>("x", {2}, {3, 4})}};
  auto made = Bench::Make(spec, batch);
  INFO(Message(made.status()));
  REQUIRE(made.ok());
  made->values[0] = {0.5f};
  REQUIRE(made->model->Bind(0, made->values[0].data(), made->gradients[0].data()).ok());

  CHECK(made->Train(1, batch).value().loss_sum() == Approx(2 * 3.5));
  CHECK(made->model->parameters()[0].shape.empty());
  CHECK(made->Gradient("w") == std::vector<float>{7});
}

TEST_CASE("a forward that calls what is not there names line and column", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward(
      "def forward(self, image):\n    y = image + 1\n    return torch.rellu(y)\n");

  const Status status = Outcome(spec, MlpBatch());

  Says(status, "forward, line 3, column 12: Unknown builtin op: aten::rellu");
}

TEST_CASE("a shape error at step 1 carries step, line and column", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward(
      "def forward(self, image):\n"
      "    x = image.reshape([-1, 2]).to(torch.float32)\n"
      "    return torch.matmul(x, self.w1) + self.b1 + self.w2.sum() + self.b2.sum()\n");

  const Status status = Outcome(spec, MlpBatch());

  CHECK(status.code() == StatusCode::kInvalidArgument);
  Says(status, "step 1: forward, line 3, column 12: " + test::NoProduct());
}

TEST_CASE("raise in forward becomes an error with its text", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward(std::string(kMlp).replace(
      0, 25,
      "def forward(self, image):\n    if image.size(0) > 2:\n        raise ValueError('no')"));

  Says(Outcome(spec, MlpBatch()), "line 3, column 9: ValueError: no");
}

TEST_CASE("arguments that are nowhere are answered with what there is", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward(std::string(kMlp).replace(18, 5, "imgae"));
  Says(Outcome(spec, MlpBatch()), "undefined value image");

  spec.mutable_model()->set_forward(
      "def forward(self, imgae):\n    return imgae.float() * self.w1.sum() * self.w2.sum() * "
      "self.b1.sum() * self.b2.sum()\n");
  const Status status = Outcome(spec, MlpBatch());
  Says(status, "forward: argument \"imgae\" is no column");
  Says(status, "did you mean \"image\"?");
  Says(status, "image uint8 [batch, 2, 2]");
}

TEST_CASE("every problem is reported at once", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  AddParameter(spec, "spare", {2});
  spec.mutable_loss()->set_label("lable");
  spec.add_metrics(v1::METRIC_AUC);

  const Status status = Outcome(spec, MlpBatch());

  Says(status, "parameter \"spare\": forward never reads self.spare");
  Says(status, "loss.label \"lable\" is no column of the data; did you mean \"label\"?");
  Says(status, "metric auc");
}

TEST_CASE("a loss that is not finite names the step and the parameter", "[engine][unit]") {
  v1::JobSpec spec;
  AddParameter(spec, "fine", {2});
  AddParameter(spec, "scale", {2});
  spec.mutable_model()->set_forward(
      "def forward(self, x):\n    return torch.log(x * self.scale) + self.fine\n");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return output.mean()\n");
  const data::Element batch{{MakeColumn<float>("x", {1, 2}, {1, 2})}};
  auto bench = Bench::Make(spec, batch).value();

  bench.Value("scale") = {-1, 1};
  const Status nan = bench.Train(17, batch).status();
  bench.Value("scale") = {0, 1};
  const Status infinite = bench.Train(18, batch).status();
  bench.Value("scale") = {std::numeric_limits<float>::quiet_NaN(), 1};
  const Status diverged = bench.Train(19, batch).status();

  CHECK(nan.code() == StatusCode::kInvalidArgument);
  Says(nan, "step 17: the loss is nan");
  Says(infinite, "step 18: the loss is -inf, the gradient of parameter \"scale\" is not finite");
  Says(diverged, "the value of parameter \"scale\" is not finite");
}

TEST_CASE("a gradient that is not finite under a finite loss is found too", "[engine][unit]") {
  v1::JobSpec spec;
  AddParameter(spec, "w", {2});
  spec.mutable_model()->set_forward("def forward(self, x):\n    return torch.sqrt(self.w * x)\n");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return output.sum()\n");
  const data::Element batch{{MakeColumn<float>("x", {1, 2}, {1, 2})}};
  auto bench = Bench::Make(spec, batch).value();
  bench.Value("w") = {0, 1};

  const Status status = bench.Train(3, batch).status();

  Says(status, "step 3: the loss is 1.414");
  Says(status, "the gradient of parameter \"w\" is not finite");
}

TEST_CASE("a loss that no parameter reaches has nothing to train", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  spec.mutable_model()->set_forward(
      std::string(kMlp).replace(std::string(kMlp).find("return "), 7,
                                "return self.w1.detach().sum() * self.b2.detach() + 0 * "));

  const Status status = Outcome(spec, MlpBatch());

  CHECK(status.ok());  // addmm still follows the parameters
  spec.mutable_model()->set_forward(
      "def forward(self, image):\n    s = self.w1.sum() + self.b1.sum() + self.w2.sum()\n    "
      "return "
      "(image.reshape([-1, 4])[:, :3].to(torch.float32) + self.b2 + s).detach()\n");
  Says(Outcome(spec, MlpBatch()), "the loss depends on no parameter");
}

TEST_CASE("parameter names that self cannot have are refused", "[engine][unit]") {
  v1::JobSpec spec = Mlp();
  AddParameter(spec, "layer.weight", {2});

  Says(Outcome(spec, MlpBatch()), "parameter \"layer.weight\": forward reads it as self.");
}

TEST_CASE("functions beside forward, torch.nn.functional and math are there", "[engine][unit]") {
  v1::JobSpec spec;
  AddParameter(spec, "w", {2});
  spec.mutable_model()->set_forward(
      "def twice(self, x: Tensor) -> Tensor:\n    return x * math.sqrt(4.0)\n\n"
      "def forward(self, x):\n    return torch.nn.functional.relu(self.twice(x)) * self.w\n");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return output.sum()\n");
  const data::Element batch{{MakeColumn<float>("x", {1, 2}, {1, -2})}};
  auto bench = Bench::Make(spec, batch).value();

  REQUIRE(bench.Train(1, batch).ok());

  CHECK(bench.Gradient("w") == std::vector<float>{2, 0});
}

}  // namespace
}  // namespace muster::engine
