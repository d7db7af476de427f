// Grammar for messages: "1 worker" and "2 workers", "a float32" and "an int64".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

// "1 closure", "2 closures", "3 batches", "0 copies". `plural` is for nouns that follow no rule.
[[nodiscard]] std::string Counted(std::uint64_t count, std::string_view noun,
                                  std::string_view plural = {});

// The verb that goes with so many: Agreeing(n, "runs", "run").
[[nodiscard]] std::string_view Agreeing(std::uint64_t count, std::string_view one,
                                        std::string_view many);

// The noun with "a" or "an" before it, by its first letter ("an int64", "a uint8").
[[nodiscard]] std::string WithArticle(std::string_view noun);

// A sentence for what gRPC says when a call fails below the call itself ("Deadline Exceeded", "last
// error: ... before receiving SETTINGS frame"); any other text as it is.
[[nodiscard]] std::string TransportWords(std::string_view grpc_message);

}  // namespace muster
