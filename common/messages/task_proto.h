// Tasks as they travel. Threading: pure functions.
#pragma once

#include <cstdint>

#include "common/base/ids.h"
#include "muster/v1/common.pb.h"

namespace muster {

inline v1::Task ToProto(const TaskId& task) {
  v1::Task proto;
  proto.set_type(task.type);
  proto.set_index(static_cast<std::uint32_t>(task.index));
  return proto;
}

inline TaskId FromProto(const v1::Task& task) {
  return {task.type(), static_cast<int>(task.index())};
}

}  // namespace muster
