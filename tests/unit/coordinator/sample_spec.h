// A job of one variable on parameter servers, over two IDX files that nobody opens.
#pragma once

#include <string>

#include "muster/v1/job_spec.pb.h"

namespace muster::coordinator::testing {

inline v1::JobSpec SampleSpec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  v1::ParameterSpec& w = (*spec.mutable_model()->mutable_parameters())["w"];
  w.add_shape(4);
  w.add_shape(2);
  spec.mutable_model()->set_forward("def forward(self, x):\n    return x @ self.w\n");
  v1::IdxData& idx = *spec.mutable_data()->mutable_idx();
  (*idx.mutable_columns())["x"].add_files("/data/x.idx");
  (*idx.mutable_columns())["y"].add_files("/data/y.idx");
  spec.mutable_loss()->set_kind(v1::LOSS_KIND_MSE);
  spec.mutable_loss()->set_label("y");
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.mutable_optimizer()->set_learning_rate(0.1);
  spec.set_batch_size(10);
  spec.set_steps(100);
  return spec;
}

}  // namespace muster::coordinator::testing
