// UTF-8: what log lines and Protobuf strings must be. A message with a string that is not UTF-8 is
// refused whole by whoever receives it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster {

// Length of the valid UTF-8 sequence at the start of `text` (not empty); 0 when there is none.
[[nodiscard]] std::size_t Utf8Length(std::string_view text);

// The place of the first byte that is part of no sequence; npos when there is none.
[[nodiscard]] std::size_t FirstBadUtf8(std::string_view text);

// `text` with each byte that is part of no sequence written as "\xff": readers see which it was.
[[nodiscard]] std::string ToValidUtf8(std::string_view text);

// The same of what stands in its first `most` bytes, without a character that is only half there.
[[nodiscard]] std::string Utf8Beginning(std::string_view text, std::size_t most);

}  // namespace muster
