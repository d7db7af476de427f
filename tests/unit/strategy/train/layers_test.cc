// libtorch's layers in an arena give what they give outside of it, forward and backward: whatever
// way of allocating each of them has.
#include <functional>

#include "device/arena.h"
#include "device/cpu_allocator.h"
#include "device/placing.h"
#include "strategy/base/torch.h"
#include "strategy/core/default_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "tests/support/catch.h"

namespace muster {
namespace {

namespace nn = torch::nn;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// Outputs, then gradients.
struct Layer {
  std::string name;
  std::function<Tensors()> compute;
};

Tensor leaf(at::IntArrayRef shape, torch::ScalarType type = torch::kFloat) {
  return torch::randn(shape).to(type).set_requires_grad(true);
}

// Backward from the sum of squares of all outputs, to all leaves.
Tensors with_gradients(Tensors outputs, const Tensors& leaves) {
  Tensor total = torch::zeros({}, torch::kDouble);
  for (const Tensor& output : outputs) {
    const Tensor real = output.is_complex() ? torch::view_as_real(output) : output;
    total = total + real.to(torch::kDouble).square().sum();
  }
  total.backward();
  for (const Tensor& one : leaves) {
    outputs.push_back(one.grad().is_sparse() ? one.grad().to_dense() : one.grad());
  }
  return outputs;
}

template <class Module>
Tensors through(Module module, const Tensor& x, torch::ScalarType type = torch::kFloat) {
  module->to(type);
  Tensors leaves = module->parameters();
  leaves.push_back(x);
  return with_gradients({module->forward(x)}, leaves);
}

void add_convolutions(std::vector<Layer>& all) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const std::string of = std::string(" of ") + torch::toString(type);
    all.push_back({"conv1d" + of, [=] {
                     return through(nn::Conv1d(nn::Conv1dOptions(3, 5, 3).padding(1)),
                                    leaf({2, 3, 16}, type), type);
                   }});
    all.push_back({"conv2d" + of, [=] {
                     return through(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1).stride(2)),
                                    leaf({2, 3, 16, 16}, type), type);
                   }});
    all.push_back({"conv3d" + of, [=] {
                     return through(nn::Conv3d(nn::Conv3dOptions(2, 4, 3)),
                                    leaf({2, 2, 8, 8, 8}, type), type);
                   }});
    all.push_back({"depthwise conv2d" + of, [=] {
                     return through(nn::Conv2d(nn::Conv2dOptions(8, 8, 3).groups(8)),
                                    leaf({2, 8, 12, 12}, type), type);
                   }});
    all.push_back({"dilated conv2d" + of, [=] {
                     return through(nn::Conv2d(nn::Conv2dOptions(3, 4, 3).dilation(2)),
                                    leaf({2, 3, 12, 12}, type), type);
                   }});
  }
  all.push_back({"transposed conv1d", [] {
                   return through(nn::ConvTranspose1d(nn::ConvTranspose1dOptions(3, 5, 3)),
                                  leaf({2, 3, 9}));
                 }});
  all.push_back({"transposed conv2d", [] {
                   const auto options = nn::ConvTranspose2dOptions(4, 6, 3).stride(2);
                   return through(nn::ConvTranspose2d(options), leaf({2, 4, 7, 7}));
                 }});
  all.push_back({"conv2d, channels last", [] {
                   const Tensor x = torch::randn({2, 4, 12, 12})
                                        .contiguous(at::MemoryFormat::ChannelsLast)
                                        .set_requires_grad(true);
                   return through(nn::Conv2d(nn::Conv2dOptions(4, 6, 3)), x);
                 }});
}

void add_recurrent(std::vector<Layer>& all) {
  all.push_back({"lstm", [] {
                   nn::LSTM net(nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true));
                   const Tensor x = leaf({4, 3, 5});
                   const auto [y, state] = net->forward(x);
                   Tensors leaves = net->parameters();
                   leaves.push_back(x);
                   return with_gradients({y, std::get<0>(state), std::get<1>(state)}, leaves);
                 }});
  all.push_back({"gru", [] {
                   nn::GRU net(nn::GRUOptions(5, 7).batch_first(true));
                   const Tensor x = leaf({4, 3, 5});
                   const auto [y, state] = net->forward(x);
                   Tensors leaves = net->parameters();
                   leaves.push_back(x);
                   return with_gradients({y, state}, leaves);
                 }});
  all.push_back({"attention", [] {
                   nn::MultiheadAttention net(nn::MultiheadAttentionOptions(8, 2));
                   const Tensor x = leaf({6, 3, 8});
                   const auto [y, weights] = net->forward(x, x, x);
                   return with_gradients({y, weights}, {x, net->in_proj_weight});
                 }});
  all.push_back({"transformer layer", [] {
                   const auto options = nn::TransformerEncoderLayerOptions(8, 2).dropout(0.1);
                   nn::TransformerEncoderLayer net(options);
                   const Tensor x = leaf({6, 3, 8});
                   return with_gradients({net->forward(x)}, {x});
                 }});
}

void add_normalising(std::vector<Layer>& all) {
  all.push_back({"batch norm", [] {
                   nn::BatchNorm2d net(4);
                   Tensors results = through(net, leaf({3, 4, 5, 5}));
                   results.push_back(net->running_mean);
                   results.push_back(net->running_var);
                   net->eval();
                   results.push_back(net->forward(torch::randn({3, 4, 5, 5})).detach());
                   return results;
                 }});
  all.push_back({"batch norm 1d", [] { return through(nn::BatchNorm1d(6), leaf({8, 6})); }});
  all.push_back({"layer norm",
                 [] { return through(nn::LayerNorm(nn::LayerNormOptions({6})), leaf({4, 6})); }});
  all.push_back({"group norm", [] {
                   return through(nn::GroupNorm(nn::GroupNormOptions(2, 6)), leaf({3, 6, 4}));
                 }});
  all.push_back({"instance norm", [] {
                   return through(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(3).affine(true)),
                                  leaf({2, 3, 4, 4}));
                 }});
  all.push_back({"dropout", [] { return through(nn::Dropout(0.4), leaf({40, 40})); }});
}

void add_pooling(std::vector<Layer>& all) {
  const auto pool = [&](const std::string& name, auto make, std::vector<std::int64_t> shape) {
    all.push_back({name, [=] { return through(make(), leaf(shape)); }});
  };
  pool("max pool 1d", [] { return nn::MaxPool1d(2); }, {2, 3, 9});
  pool("max pool 2d", [] { return nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2)); },
       {2, 3, 9, 9});
  pool("max pool 3d", [] { return nn::MaxPool3d(2); }, {1, 2, 6, 6, 6});
  pool("average pool 2d", [] { return nn::AvgPool2d(2); }, {2, 3, 8, 8});
  pool("adaptive pool 2d", [] { return nn::AdaptiveAvgPool2d(3); }, {2, 3, 8, 8});
  pool("upsample",
       [] { return nn::Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2})); },
       {1, 2, 4, 4});
  pool("linear", [] { return nn::Linear(12, 5); }, {7, 12});
}

void add_embeddings(std::vector<Layer>& all) {
  for (const bool sparse : {false, true}) {
    all.push_back({sparse ? "sparse embedding bag" : "embedding bag", [sparse] {
                     const auto options =
                         nn::EmbeddingBagOptions(10, 4).mode(torch::kSum).sparse(sparse);
                     nn::EmbeddingBag net(options);
                     const Tensor rows = torch::tensor({1, 2, 2, 9, 0, 4}, torch::kLong);
                     const Tensor starts = torch::tensor({0, 3}, torch::kLong);
                     return with_gradients({net->forward(rows, starts)}, {net->weight});
                   }});
  }
  all.push_back({"embedding", [] {
                   const nn::Embedding net(10, 4);
                   const Tensor rows = torch::tensor({1, 2, 2, 9}, torch::kLong);
                   return with_gradients({net->weight.index_select(0, rows)}, {net->weight});
                 }});
}

void add_algebra(std::vector<Layer>& all) {
  all.push_back({"fft", [] {
                   const Tensor x = leaf({4, 16});
                   const Tensor spectrum = torch::fft::rfft(x);
                   return with_gradients({spectrum, torch::fft::irfft(spectrum * 2)}, {x});
                 }});
  all.push_back({"linalg", [] {
                   const Tensor x = leaf({5, 5});
                   const Tensor a = x.matmul(x.t()) + 5 * torch::eye(5);
                   return with_gradients({torch::linalg_inv(a), torch::linalg_cholesky(a),
                                          torch::linalg_solve(a, torch::ones({5, 2})),
                                          torch::linalg_svdvals(a), torch::linalg_det(a)},
                                         {x});
                 }});
  all.push_back({"batched products", [] {
                   const Tensor a = leaf({3, 4, 5});
                   const Tensor b = leaf({3, 5, 6});
                   return with_gradients({torch::bmm(a, b), torch::einsum("bij,bjk->ik", {a, b})},
                                         {a, b});
                 }});
  all.push_back({"sorting and choosing", [] {
                   const Tensor x = leaf({6, 9});
                   const auto [sorted, order] = x.sort(1);
                   const auto [top, places] = x.topk(3, 1);
                   return with_gradients({sorted, top, x.cumsum(0), x.masked_select(x > 0)}, {x});
                 }});
}

void add_mkldnn(std::vector<Layer>& all) {
  all.push_back(
      {"to_mkldnn", [] {
         const torch::NoGradGuard no_grad;
         const Tensor x = torch::randn({2, 3, 12, 12}).to_mkldnn();
         const Tensor w = torch::randn({4, 3, 3, 3}).to_mkldnn();
         const Tensor packed = at::mkldnn_reorder_conv2d_weight(w, {1, 1}, {1, 1}, {1, 1});
         const Tensor b = torch::randn({4}).to_mkldnn();
         const Tensor y = at::mkldnn_convolution(x, packed, b, {1, 1}, {1, 1}, {1, 1}, 1).relu();
         return Tensors{y.to_dense(), at::mkldnn_max_pool2d(y, {2, 2}, {2, 2}).to_dense()};
       }});
}

std::vector<Layer> all_layers() {
  std::vector<Layer> all;
  add_convolutions(all);
  add_recurrent(all);
  add_normalising(all);
  add_pooling(all);
  add_embeddings(all);
  add_algebra(all);
  add_mkldnn(all);
  return all;
}

void check_equal(const Tensors& here, const Tensors& plain) {
  REQUIRE(here.size() == plain.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    CAPTURE(i);
    REQUIRE(here[i].scalar_type() == plain[i].scalar_type());
    const bool narrow = here[i].scalar_type() == torch::kBFloat16;
    CHECK(here[i].allclose(plain[i], narrow ? 1e-2 : 1e-5, narrow ? 1e-2 : 1e-6));
  }
}

TEST_CASE("every layer computes in an arena what it computes outside of one, and its gradients",
          "[strategy][unit]") {
  // Not yet installed, perhaps, by the test that ran before.
  device::InstallCpuAllocator();
  OneDeviceStrategy strategy("CPU:2");
  for (const Layer& layer : all_layers()) {
    CAPTURE(layer.name);
    torch::manual_seed(11);
    const Tensors plain = layer.compute();
    torch::manual_seed(11);
    const Tensors here = strategy.run([&] { return layer.compute(); })[0];

    CHECK(device::PlaceOf(plain[0]) == device::Place::Cpu(0));
    CHECK(device::PlaceOf(here[0]) == device::Place::Cpu(2));
    check_equal(here, plain);
  }
}

TEST_CASE("two replicas compute every layer at the same time", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:1", "CPU:2"});
  for (const Layer& layer : all_layers()) {
    CAPTURE(layer.name);
    const auto results = strategy.run([&] { return layer.compute(); });

    for (int r = 0; r < 2; ++r) {
      for (const Tensor& result : results[r]) CHECK(result.isfinite().all().item<bool>());
      CHECK(device::PlaceOf(results[r][0]) == device::Place::Cpu(r + 1));
    }
  }
}

TEST_CASE("packed memory of one arena is freed in another, and outside", "[strategy][unit]") {
  device::InstallCpuAllocator();
  const torch::NoGradGuard no_grad;
  Tensor plain = torch::randn({4, 3, 8, 8}).to_mkldnn();
  Tensor packed;
  const std::size_t before = device::Arena::Of(5).used();
  {
    const device::PlaceScope here(device::Place::Cpu(5));
    packed = torch::randn({4, 3, 8, 8}).to_mkldnn();
    plain.reset();
    CHECK(device::Arena::Of(5).used() > before);
  }
  {
    const device::PlaceScope there(device::Place::Cpu(6));
    packed.reset();
  }

  CHECK(device::Arena::Of(5).used() == before);
}

}  // namespace
}  // namespace muster
