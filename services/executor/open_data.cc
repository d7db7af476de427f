#include "services/executor/open_data.h"

#include <utility>

#include "common/base/words.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::executor {
namespace {

using DataFiles = google::protobuf::RepeatedPtrField<v1::DataFile>;

Result<std::unique_ptr<BatchReader>> OpenReader(const v1::DataSpec& spec,
                                                data::BatchSource::Options options,
                                                const DataFiles& expected, std::string_view what) {
  for (const v1::DataFile& file : expected) {
    options.expected.push_back({.path = file.path(),
                                .size = file.size(),
                                .mtime_ns = file.mtime_ns(),
                                .records = file.records(),
                                .index_hash = file.index_hash()});
  }
  auto source = data::BatchSource::Open(spec, std::move(options));
  if (!source.ok()) {
    return MakeStatus(source.status().code(), data::InSection(what, Message(source.status())));
  }
  return std::make_unique<BatchReader>(*std::move(source));
}

}  // namespace

Result<std::unique_ptr<BatchReader>> OpenTrainingData(const v1::JobSpec& spec,
                                                      const std::string& cache_directory,
                                                      const v1::DataFiles& expected) {
  return OpenReader(
      spec.data(),
      {.cache_directory = cache_directory, .seed = spec.seed(), .batch_size = spec.batch_size()},
      expected.training(), kTraining);
}

Result<std::unique_ptr<BatchReader>> OpenEvaluationData(const v1::JobSpec& spec,
                                                        const std::string& cache_directory,
                                                        const v1::DataFiles& expected) {
  return OpenReader(InOrder(spec.evaluation().data()),
                    {.cache_directory = cache_directory,
                     .seed = spec.seed(),
                     .batch_size = EvaluationBatch(spec),
                     .shuffle = false},
                    expected.evaluation(), kEvaluation);
}

std::uint32_t EvaluationBatch(const v1::JobSpec& spec) {
  return spec.evaluation().batch_size() != 0 ? spec.evaluation().batch_size() : spec.batch_size();
}

v1::DataSpec InOrder(v1::DataSpec spec) {
  spec.set_shuffle(false);
  spec.set_drop_remainder(false);
  return spec;
}

}  // namespace muster::executor
