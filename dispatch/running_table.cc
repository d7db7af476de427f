#include "dispatch/running_table.h"

#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/net/socket.h"

namespace muster::dispatch {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

RunningTable::RunningTable(std::size_t slots, const std::string& file) : size_(slots) {
  const std::size_t bytes = slots * sizeof(Slot);
  if (!file.empty()) {
    const net::Fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
      // Zeros are empty slots.
      if (mapped != MAP_FAILED) slots_ = static_cast<Slot*>(mapped);
    }
  }
  if (slots_ != nullptr) return;
  own_ = std::make_unique<Slot[]>(slots);
  slots_ = own_.get();
}

RunningTable::~RunningTable() {
  if (own_ == nullptr) (void)::munmap(slots_, size_ * sizeof(Slot));
}

std::optional<RunningTable::Left> RunningTable::TakeFrom(const std::string& file) {
  const net::Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return std::nullopt;
  (void)::unlink(file.c_str());
  Left left;
  // The process that wrote it may have been anybody's code: no more than executors have.
  constexpr std::size_t kMostSlots = 4096;
  for (std::size_t i = 0; i < kMostSlots; ++i) {
    std::uint64_t words[sizeof(Slot) / sizeof(std::uint64_t)];
    if (::read(fd.get(), words, sizeof(words)) != static_cast<ssize_t>(sizeof(words))) break;
    left.ended += words[2];
    if (words[0] == 0) continue;
    left.running.push_back({.closure = ClosureId(words[0]), .attempt = Attempt(words[1])});
  }
  return left;
}

}  // namespace muster::dispatch
