// The file of `muster bench allreduce --tune`: what all-reduces cost on a machine's links, for the
// choice of their algorithms. docs/formats/collective-costs.md shows one.
//
// Threading: values and pure functions, but for CostsFrom(), which reads a file.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "collectives/cost_model.h"
#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster::collectives {

// Names such a file to every process that forms groups.
inline constexpr const char* kCostsVariable = "MUSTER_COLLECTIVE_COSTS";

// The file's text; `how` says in one line how it was made.
std::string CostsText(const LinkCosts& costs, std::string_view how);
// `path` is for messages. kInvalidArgument: another version, a line or a figure that is none, one
// that is missing; names the file and the line, what is given and what is allowed.
Result<LinkCosts> ParseCosts(std::string_view text, const std::string& path);

// The costs in the file that the environment names; none where it names none.
//   kFailedPrecondition: it cannot be read. kInvalidArgument: as ParseCosts().
Result<std::optional<LinkCosts>> CostsFrom(const Environment& environment);

// As members tell each other: doubles, in the order of the file.
inline constexpr std::size_t kPackedCostsBytes =
    kLinkKinds * kAlgorithms.size() * 4 * sizeof(double);
std::string PackedCosts(const LinkCosts& costs);
// kInvalidArgument: another length, or a figure that is out of range.
Result<LinkCosts> UnpackedCosts(std::span<const std::byte> packed);

}  // namespace muster::collectives
