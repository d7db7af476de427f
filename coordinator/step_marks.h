// How many steps of each running job are done, kept where a kill of this process does not reach: in
// pages of a file that the kernel keeps. The journal learns it twice a second; a new coordinator
// says with it how many steps were truly lost.
//
// Without a file (no directory, a full disk) nothing is kept, and the journal's number stands.
// Threading: one strand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/ids.h"

namespace muster::coordinator {

class StepMarks {
 public:
  // <directory>/steps, made if missing; an empty directory: keep nothing.
  explicit StepMarks(const std::string& directory);
  ~StepMarks();
  StepMarks(const StepMarks&) = delete;
  StepMarks& operator=(const StepMarks&) = delete;

  // Costs a few stores to memory.
  void Set(JobNumber job, ViewId view, std::uint64_t steps);
  // What was set last for this job, if that was in this view.
  std::optional<std::uint64_t> Get(JobNumber job, ViewId view) const;

 private:
  struct Mark;
  Mark* marks_ = nullptr;
};

}  // namespace muster::coordinator
