// Which reader a data spec names. A new format is made known here and in declared_columns.h.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/data/cache.h"
#include "common/data/reader.h"

namespace muster::v1 {
class DataSpec;
}

namespace muster::data {

// Finds, checks and indexes the files of the one reader that `spec` names.
//   Errors: BatchSource::Open()'s.
Result<std::unique_ptr<Reader>> OpenReader(const v1::DataSpec& spec, const Cache& cache);

}  // namespace muster::data
