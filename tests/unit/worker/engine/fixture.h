// A model with memory of its own, and batches from plain vectors.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/element.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "worker/engine/model.h"

namespace muster::engine::test {

template <class T>
constexpr DType TypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::kUint8;
}

template <class T>
data::Column MakeColumn(std::string name, std::vector<std::int64_t> shape, std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  data::Column column;
  column.info = {std::move(name), TypeOf<T>(), std::move(shape)};
  column.data = reinterpret_cast<const std::byte*>(owner->data());
  column.owner = owner;
  return column;
}

// The columns of `batch` with the first dimension free.
inline std::vector<data::ColumnInfo> ColumnsOf(const data::Element& batch) {
  std::vector<data::ColumnInfo> columns;
  for (const data::Column& column : batch.columns) {
    columns.push_back(column.info);
    columns.back().shape[0] = -1;
  }
  return columns;
}

// A model whose parameters live in vectors, and one table of rows for each embedding.
struct Bench {
  std::unique_ptr<Model> model;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<float>> tables;

  static Result<Bench> Make(const v1::JobSpec& spec, const data::Element& batch,
                            const std::string& archive = "") {
    Bench bench;
    MUSTER_TRY_ASSIGN(bench.model, Model::Create(spec, {archive, ColumnsOf(batch)}));
    for (std::size_t i = 0; i < bench.model->parameters().size(); ++i) {
      const auto initial = bench.model->InitialValue(i);
      const auto n = static_cast<std::size_t>(bench.model->parameters()[i].elements);
      bench.values.emplace_back(n);
      std::copy(initial.begin(), initial.end(), bench.values.back().begin());
      bench.gradients.emplace_back(n, -99.0f);
      MUSTER_TRY(bench.model->Bind(i, bench.values[i].data(), bench.gradients[i].data()));
    }
    for (const EmbeddingInfo& info : bench.model->embeddings()) {
      bench.tables.emplace_back(static_cast<std::size_t>(info.rows * info.dim));
    }
    return bench;
  }

  std::size_t Index(const std::string& name) const {
    for (std::size_t i = 0; i < model->parameters().size(); ++i) {
      if (model->parameters()[i].name == name) return i;
    }
    return 999;
  }
  std::vector<float>& Value(const std::string& name) { return values.at(Index(name)); }
  std::vector<float>& Gradient(const std::string& name) { return gradients.at(Index(name)); }

  // Rows pulled for the last batch, and their gradients.
  std::vector<Lookup> lookups;
  std::vector<std::vector<float>> rows, row_gradients;

  Status Pull(const data::Element& batch) {
    MUSTER_TRY_ASSIGN(lookups, model->FindRows(batch));
    rows.assign(lookups.size(), {});
    row_gradients.assign(lookups.size(), {});
    for (std::size_t i = 0; i < lookups.size(); ++i) {
      const auto dim = static_cast<std::size_t>(model->embeddings()[i].dim);
      for (const std::int64_t id : lookups[i].ids) {
        const float* row = tables[i].data() + static_cast<std::size_t>(id) * dim;
        rows[i].insert(rows[i].end(), row, row + dim);
      }
      row_gradients[i].assign(rows[i].size(), -99.0f);
      lookups[i].rows = rows[i];
      lookups[i].row_gradients = row_gradients[i];
    }
    return Ok();
  }
  Result<v1::MetricSums> Train(std::uint64_t step, const data::Element& batch) {
    MUSTER_TRY(Pull(batch));
    return model->TrainStep(step, {}, batch, lookups);
  }
  Result<v1::MetricSums> Evaluate(const data::Element& batch) {
    MUSTER_TRY(Pull(batch));
    return model->Evaluate("evaluation batch 1", batch, lookups);
  }
};

inline void AddParameter(v1::JobSpec& spec, const std::string& name,
                         const std::vector<std::int64_t>& shape) {
  auto& parameter = (*spec.mutable_model()->mutable_parameters())[name];
  for (const std::int64_t size : shape) parameter.add_shape(size);
}

// libtorch's words for matrices that cannot be multiplied; newer ones (2.15) name the operator.
inline std::string NoProduct() {
  const bool old = std::string_view(MUSTER_TORCH_VERSION).starts_with("1.");
  return std::string(old ? "" : "mm: ") + "mat1 and mat2 shapes cannot be multiplied";
}

// CHECKs that `part` is in `text`, and shows the text.
inline bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace muster::engine::test
