// Whether this process was asked to end: by its scheduler, by `muster` when a host is drained, by a
// person.
#pragma once

#include <cstdint>

namespace muster::internal {

// While one lives SIGTERM does not end the process. Threading: any thread.
class TerminationNotice {
 public:
  TerminationNotice();
  ~TerminationNotice();
  TerminationNotice(const TerminationNotice&) = delete;
  TerminationNotice& operator=(const TerminationNotice&) = delete;

  // Whether SIGTERM has come since this object was made.
  bool came() const;

 private:
  const std::uint64_t before_;
};

}  // namespace muster::internal
