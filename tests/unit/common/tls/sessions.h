// What tests of sessions need: contexts from files, and two sessions without sockets between them.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/tls/context.h"
#include "common/tls/key_context.h"
#include "tests/support/catch.h"

namespace muster::tls {

inline std::shared_ptr<Context> ContextOf(const Files& files) {
  auto context = Context::FromFiles(files);
  REQUIRE(context.status() == Ok());
  return *std::move(context);
}

// All bytes that one side has for the other.
inline void Carry(Session& from, Session& to) {
  for (;;) {
    const auto bytes = from.Waiting();
    const auto room = to.Room();
    const std::size_t n = std::min(bytes.size(), room.size());
    if (n == 0) return;
    std::memcpy(room.data(), bytes.data(), n);
    from.Went(n);
    to.Came(n);
  }
}

}  // namespace muster::tls
