#include "ps/client/program_variable.h"

#include "common/partition/placement.h"
#include "muster/v1/variables.pb.h"
#include "ps/program_wire.h"

namespace muster::ps {

Result<VariableInfo> Describe(const v1::ProgramVariable& variable) {
  VariableInfo info;
  info.id = VariableId(variable.id());
  info.name = variable.name();
  info.dtype = static_cast<DType>(variable.dtype());
  info.shape.assign(variable.shape().begin(), variable.shape().end());
  if (!IsVariableDType(info.dtype)) {
    return InvalidArgument(
        "variable {}: dtype {}; float32, float64, int32, int64, uint8, bool, float16 and bfloat16 "
        "are possible",
        info.name, NameOf(info.dtype));
  }
  MUSTER_TRY_ASSIGN(const std::int64_t elements,
                    partition::CountElements(info.shape, "variable " + info.name));
  if (elements > kMostElements) {
    return InvalidArgument("variable {}: {} elements; at most 2^40", info.name, elements);
  }
  info.rows = info.shape.empty() ? 1 : info.shape[0];
  info.row_bytes = static_cast<std::size_t>(elements / info.rows) * SizeOf(info.dtype);
  for (const v1::ShardPlacement& shard : variable.shards()) {
    info.shards.push_back(
        {.server = shard.ps_index(), .row_offset = shard.row_offset(), .rows = shard.rows()});
  }
  return info;
}

}  // namespace muster::ps
