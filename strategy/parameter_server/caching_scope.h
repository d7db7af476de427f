// Reads that come from parameter servers once, outside closures.
//
//   const muster::CachingScope cached;
//   while (...) use(model.w.value());  // fetched the first time
//
// While it lives, each variable on parameter servers that its thread reads is fetched once, when it
// is read first; later reads see that value, whoever has assigned another one meanwhile. What is
// assigned goes to the servers at once, and the next scope sees it. Rows that are gathered,
// embedding lookups, ON_READ variables, read_var() and what a checkpoint saves are fetched each
// time. In a closure it changes nothing: that reads a snapshot anyway, until it writes the
// variable.
//
// Threading: for the thread that makes it, which destroys it.
#pragma once

#include <memory>

namespace muster {

namespace internal {
class CachedReads;
}

class CachingScope {
 public:
  // INVALID_ARGUMENT: this thread is in one.
  CachingScope();
  ~CachingScope();
  CachingScope(const CachingScope&) = delete;
  CachingScope& operator=(const CachingScope&) = delete;

 private:
  const std::unique_ptr<internal::CachedReads> reads_;
};

}  // namespace muster
