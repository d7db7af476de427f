// Grammar for messages: "1 worker" and "2 workers", "a float32" and "an int64".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace muster {

// "1 closure", "2 closures", "3 batches", "0 copies". `plural` is for nouns that follow no rule.
[[nodiscard]] std::string Counted(std::uint64_t count, std::string_view noun,
                                  std::string_view plural = {});

// The verb that goes with so many: Agreeing(n, "runs", "run").
[[nodiscard]] std::string_view Agreeing(std::uint64_t count, std::string_view one,
                                        std::string_view many);

// The noun with "a" or "an" before it, by its first letter ("an int64", "a uint8").
[[nodiscard]] std::string WithArticle(std::string_view noun);

// 'in single quotes', those in it and backslashes behind a backslash: as Python and fish read it.
[[nodiscard]] std::string Quoted(std::string_view text);

// How many of a list a message names, unless it says otherwise.
inline constexpr std::size_t kMostNamed = 20;

// "a, b, c", and of more than `most` items "a, b and 7 more": what data or a user may make long is
// joined by this, so that no message outgrows its reader. `text` makes of an item what fmt prints.
template <class Items, class Text = std::identity>
[[nodiscard]] std::string Joined(const Items& items, std::size_t most = kMostNamed,
                                 Text text = {}) {
  std::string joined;
  std::size_t named = 0;
  for (const auto& item : items) {
    if (named == most) {
      const auto left = static_cast<std::size_t>(std::size(items)) - most;
      return fmt::format("{} and {} more", joined, left);
    }
    joined += fmt::format("{}{}", named++ == 0 ? "" : ", ", std::invoke(text, item));
  }
  return joined;
}

// A sentence for what gRPC says when a call fails below the call itself ("Deadline Exceeded", "last
// error: ... before receiving SETTINGS frame"); any other text as it is.
[[nodiscard]] std::string TransportWords(std::string_view grpc_message);

// Where gRPC says nothing: its server does not have the call.
inline constexpr std::string_view kNoSuchCall =
    "what answers there does not know this call: it is another daemon than the coordinator, or a "
    "coordinator of another version";

}  // namespace muster
