// A task by its name, as TaskId::ToString() writes it and people give it: "worker:1".
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/number_in.h"

namespace muster {

// Nothing: no type stands before the first colon, or what follows it is no number from 0 to the
// largest int.
inline std::optional<TaskId> TaskIn(std::string_view name) {
  const std::size_t colon = name.find(':');
  if (colon == 0 || colon == std::string_view::npos) return std::nullopt;
  // Unsigned, so that "-0" is no number.
  const auto index = NumberIn<std::uint32_t>(name.substr(colon + 1));
  if (!index || *index > std::numeric_limits<int>::max()) return std::nullopt;
  return TaskId{.type = std::string(name.substr(0, colon)), .index = static_cast<int>(*index)};
}

}  // namespace muster
