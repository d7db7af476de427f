#include "common/base/words.h"

#include <fmt/core.h>

namespace muster {
namespace {

bool IsVowel(char c) { return std::string_view("aeioAEIO").find(c) != std::string_view::npos; }

std::string PluralOf(std::string_view noun) {
  for (const std::string_view end : {"s", "x", "ch", "sh"}) {
    if (noun.ends_with(end)) return fmt::format("{}es", noun);
  }
  if (noun.size() > 1 && noun.ends_with('y') && !IsVowel(noun[noun.size() - 2])) {
    return fmt::format("{}ies", noun.substr(0, noun.size() - 1));
  }
  return fmt::format("{}s", noun);
}

}  // namespace

std::string Counted(std::uint64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return fmt::format("{} {}", count, plural.empty() ? PluralOf(noun) : std::string(plural));
}

std::string_view Agreeing(std::uint64_t count, std::string_view one, std::string_view many) {
  return count == 1 ? one : many;
}

// "uint8" is said with a "y" in front: of the vowels, 'u' takes an "a".
std::string WithArticle(std::string_view noun) {
  return fmt::format("{} {}", !noun.empty() && IsVowel(noun.front()) ? "an" : "a", noun);
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

std::string TransportWords(std::string_view grpc_message) {
  // gRPC nests its causes in one text; the first of these that is in it says most.
  struct Words {
    std::string_view theirs;
    std::string_view ours;
  };
  static constexpr Words kWords[] = {
      {"before receiving SETTINGS frame",
       "connections are accepted there, but nobody speaks: the process stands still, or it is "
       "another program"},
      {"Trying to connect an http1.x server",
       "what listens there speaks HTTP/1: an admin port, or another program"},
      {"missing selected ALPN property",
       "what listens there speaks TLS but no gRPC: an admin port, or another program"},
      {"Failed parsing HTTP/2",
       "what listens there speaks no gRPC: a parameter server's data, or another program"},
      {"Connection refused", "nothing listens there"},
      {"No route to host", "there is no route to that host"},
      {"Network is unreachable", "there is no network to that host"},
      {"DNS resolution failed", "the name of that host is not known"},
      {"Connection timed out", "that host does not answer"},
      {"connection attempt timed out", "that host does not answer"},
      {"keepalive watchdog timeout", "the connection went silent"},
      {"Connection reset", "the connection was reset"},
      {"Broken pipe", "the connection was reset"},
      {"Socket closed", "the connection was closed"},
      {"Transport closed", "the connection was closed"},
      {"Endpoint read failed", "the connection was closed"},
      {"RST_STREAM", "the call was broken off there"},
      {"Stream removed", "the connection was closed"},
      {"GOAWAY", "it is shutting down"},
      {"Deadline Exceeded", "no answer came in time"},
  };
  for (const Words& words : kWords) {
    if (grpc_message.find(words.theirs) != std::string_view::npos) return std::string(words.ours);
  }
  return std::string(grpc_message);
}

}  // namespace muster
