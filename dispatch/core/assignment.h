// What a worker is given, and what it says of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dispatch/core/bookmark.h"
#include "dispatch/core/closure_error.h"

#include "common/base/ids.h"
#include "common/base/kept_bytes.h"

namespace muster::dispatch {

// Nobody waits for the value: it need not be sent.
inline constexpr std::uint32_t kFlagNoValue = 1;
// A build: behind its arguments is the value's bookmark (bookmark.h).
inline constexpr std::uint32_t kFlagBookmark = 2;

// How a closure may be executed.
struct ClosureTerms {
  // How long one execution may take; 0: as long as it likes. At most 2^32 - 1 ms.
  std::chrono::milliseconds run_limit{0};
  // A second time beside the first, if that takes long (ClosureDispatcher::Options::second_runs).
  bool repeatable = false;
};

struct Assignment {
  ClosureId closure;
  Attempt attempt;
  std::uint32_t function = 0;
  std::uint32_t flags = 0;
  std::uint32_t run_limit_ms = 0;
  // Valid during the call that hands it over, unless they are kept.
  KeptBytes arguments;
};

struct ClosureResult {
  ClosureId closure;
  Attempt attempt;
  // How long the function ran; zero: not measured.
  std::chrono::nanoseconds run{0};
  KeptBytes value = {};
  // Null: it has succeeded.
  const ClosureError* error = nullptr;
  // What it leaves for the next builds of per-worker values here.
  std::span<const Bookmark> bookmarks = {};
};

}  // namespace muster::dispatch
