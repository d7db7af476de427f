#include "worker/engine/binding.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "common/base/suggest.h"
#include "common/base/words.h"
#include "muster/v1/job_spec.pb.h"
#include "worker/engine/tensors.h"

namespace muster::engine {
namespace {

Combiner CombinerOf(v1::Combiner combiner) {
  switch (combiner) {
    case v1::COMBINER_SUM:
      return Combiner::kSum;
    case v1::COMBINER_MEAN:
      return Combiner::kMean;
    default:
      return Combiner::kNone;
  }
}

void CheckFeature(const EmbeddingInfo& embedding, const std::vector<data::ColumnInfo>& columns,
                  std::vector<std::string>& problems) {
  const data::ColumnInfo* column = data::FindColumn(columns, embedding.feature);
  if (column == nullptr) {
    std::vector<std::string> names;
    for (const data::ColumnInfo& one : columns) names.push_back(one.name);
    problems.push_back(fmt::format(
        "embedding \"{}\": feature \"{}\" is no column of the data{}; columns: {}", embedding.name,
        embedding.feature, DidYouMean(embedding.feature, names), Joined(names)));
    return;
  }
  const bool known = column->dtype != DType::kUnspecified;
  if ((known && column->dtype != DType::kInt64) || column->shape.size() > 2) {
    problems.push_back(fmt::format(
        "embedding \"{}\": feature \"{}\" is {}; ids are int64 [batch] or [batch, length]",
        embedding.name, embedding.feature, Describe(*column)));
  }
}

}  // namespace

std::vector<EmbeddingInfo> ReadEmbeddings(const v1::JobSpec& spec,
                                          const std::vector<data::ColumnInfo>& columns,
                                          std::vector<std::string>& problems) {
  std::vector<EmbeddingInfo> embeddings;
  const std::map<std::string, v1::EmbeddingSpec> sorted(spec.embeddings().begin(),
                                                        spec.embeddings().end());
  for (const auto& [name, declared] : sorted) {
    const EmbeddingInfo embedding{name, declared.feature(), declared.rows(), declared.dim(),
                                  CombinerOf(declared.combiner())};
    if (embedding.rows <= 0 || embedding.dim <= 0) {
      problems.push_back(fmt::format("embedding \"{}\": rows {} and dim {}; both must be above 0",
                                     name, embedding.rows, embedding.dim));
    }
    if (!columns.empty()) CheckFeature(embedding, columns, problems);
    embeddings.push_back(embedding);
  }
  return embeddings;
}

std::vector<BoundArgument> BindArguments(const std::vector<Argument>& arguments,
                                         const std::vector<data::ColumnInfo>& columns,
                                         const std::vector<EmbeddingInfo>& embeddings,
                                         std::vector<std::string>& problems) {
  std::vector<BoundArgument> bound;
  std::vector<bool> used(embeddings.size(), false);
  for (const Argument& argument : arguments) {
    BoundArgument one;
    one.argument = argument;
    const auto embedding = std::ranges::find(embeddings, argument.name, &EmbeddingInfo::name);
    const data::ColumnInfo* column = data::FindColumn(columns, argument.name);
    if (embedding != embeddings.end()) {
      one.kind = BoundArgument::Kind::kEmbedding;
      one.embedding = static_cast<std::size_t>(embedding - embeddings.begin());
      used[one.embedding] = true;
    } else if (column != nullptr) {
      one.column = argument.name;
      if (column->dtype == DType::kString) {
        problems.push_back(fmt::format("forward: column \"{}\" holds strings, which no model reads",
                                       argument.name));
      }
    } else if (argument.default_value) {
      one.kind = BoundArgument::Kind::kDefault;
    } else {
      std::vector<std::string> names, told;
      for (const data::ColumnInfo& there : columns) {
        names.push_back(there.name);
        told.push_back(fmt::format("{} {}", there.name, Describe(there)));
      }
      for (const EmbeddingInfo& there : embeddings) {
        names.push_back(there.name);
        told.push_back(fmt::format("{} (embedding)", there.name));
      }
      problems.push_back(fmt::format(
          "forward: argument \"{}\" is no column of the data and no embedding{}; there are: {}",
          argument.name, DidYouMean(argument.name, names), Joined(told)));
      continue;
    }
    if (one.kind != BoundArgument::Kind::kDefault && !argument.tensor) {
      problems.push_back(
          fmt::format("forward: argument \"{}\" must be a Tensor: remove its type", argument.name));
    }
    bound.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < embeddings.size(); ++i) {
    if (!used[i]) {
      problems.push_back(
          fmt::format("embedding \"{}\" is no argument of forward, so it would never train",
                      embeddings[i].name));
    }
  }
  return bound;
}

}  // namespace muster::engine
