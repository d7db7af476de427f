// An executor of `muster-bench schedule` in a process of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dispatch/functions.h"

#include "bench/self_process.h"
#include "common/base/status.h"
#include "common/net/link.h"
#include "common/net/spin.h"

namespace muster::bench {

inline constexpr const char* kScheduleKey = "bench";
// Does nothing.
inline constexpr std::uint32_t kEmptyFunction = 0;
// Takes arguments of any length.
inline constexpr std::uint32_t kTakeFunction = 1;
// Returns so many bytes as its argument says, a std::uint64_t.
inline constexpr std::uint32_t kGiveFunction = 2;

const dispatch::FunctionTable& ScheduleFunctions();

class SchedulePeer {
 public:
  // Starts this program again as an executor.
  static Result<std::unique_ptr<SchedulePeer>> Start(net::SpinMode spin);

  const std::string& address(net::LinkKind kind) const {
    return kind == net::LinkKind::kTcp ? tcp_ : unix_;
  }
  // Processor time so far.
  double CpuSeconds() const;

 private:
  SchedulePeer() = default;
  std::string unix_;
  std::string tcp_;
  std::unique_ptr<SelfProcess> process_;
};

// main() of the executor: serves until its standard input ends.
int RunScheduleExecutor(int argc, char** argv);

}  // namespace muster::bench
