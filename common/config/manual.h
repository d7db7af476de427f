// Pages of the manual, as man(7) has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/settings.h"

namespace muster::config {

// Text that stands for itself.
[[nodiscard]] std::string ManualText(std::string_view text);

// The page's title ("muster-ps") and its NAME.
[[nodiscard]] std::string ManualHead(std::string_view name, std::string_view about);

// The page of a program with settings; for --manual.
[[nodiscard]] std::string ManualOf(std::string_view program, std::string_view about,
                                   const std::vector<Setting>& settings);

}  // namespace muster::config
