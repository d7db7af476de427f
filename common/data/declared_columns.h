// What a data spec says by itself.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"

namespace muster::v1 {
class DataSpec;
}

namespace muster::data {

// What can be said of the columns without opening a file: sizes that only files know are -1; of an
// IDX column only the name is known (dtype kUnspecified, shape [-1]).
//   kInvalidArgument: none or several readers, a bad delimiter, a column without a place...
Result<std::vector<ColumnInfo>> DeclaredColumns(const v1::DataSpec& spec);

}  // namespace muster::data
