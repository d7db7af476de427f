#include "coordinator/step_marks.h"

#include <atomic>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace muster::coordinator {
namespace {

// More than run at once; two jobs that share a place overwrite each other's mark, and see that.
constexpr std::uint64_t kMarks = 4096;

std::uint64_t Load(std::uint64_t& word) { return std::atomic_ref(word).load(); }
void Store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

struct StepMarks::Mark {
  std::uint64_t job_number;  // 0: none
  std::uint64_t view;
  std::uint64_t steps;
};

StepMarks::StepMarks(const std::string& directory) {
  if (directory.empty()) return;
  const int fd = open((directory + "/steps").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  constexpr std::size_t kBytes = kMarks * sizeof(Mark);
  // Reserved, since a store to a page that the disk has no room for would end the process.
  if (posix_fallocate(fd, 0, kBytes) == 0) {
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) marks_ = static_cast<Mark*>(memory);
  }
  close(fd);
}

StepMarks::~StepMarks() {
  if (marks_ != nullptr) munmap(marks_, kMarks * sizeof(Mark));
}

void StepMarks::Set(JobNumber job, ViewId view, std::uint64_t steps) {
  if (marks_ == nullptr) return;
  Mark& mark = marks_[job.value() % kMarks];
  if (Load(mark.job_number) != job.value() || Load(mark.view) != view.value()) {
    // A kill between these stores leaves no mark rather than a wrong one.
    Store(mark.job_number, 0);
    Store(mark.view, view.value());
    Store(mark.steps, steps);
    Store(mark.job_number, job.value());
    return;
  }
  Store(mark.steps, steps);
}

std::optional<std::uint64_t> StepMarks::Get(JobNumber job, ViewId view) const {
  if (marks_ == nullptr) return std::nullopt;
  Mark& mark = marks_[job.value() % kMarks];
  if (Load(mark.job_number) != job.value() || Load(mark.view) != view.value()) return std::nullopt;
  return Load(mark.steps);
}

}  // namespace muster::coordinator
