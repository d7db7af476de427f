// A job with nothing wrong, for tests to break one thing of.
#pragma once

#include <string>

namespace muster::config::testing {

inline const std::string kGoodJob = R"(name: digits
model:
  parameters:
    w: {shape: [784, 10]}
    b: {shape: [10], initializer: zeros}
  forward: |
    def forward(self, image):
        return torch.addmm(self.b, image, self.w)
data:
  idx:
    columns:
      image: train-images.gz
      label: [train-labels.gz]
loss: {kind: softmax_cross_entropy, label: label}
metrics: [loss, accuracy]
optimizer: {kind: adam, learning_rate: 0.001}
batch_size: 128
epochs: 5
)";

// kGoodJob with the first `from` replaced.
inline std::string GoodJobBut(const std::string& from, const std::string& to) {
  std::string text = kGoodJob;
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace muster::config::testing
