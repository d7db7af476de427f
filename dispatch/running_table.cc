#include "dispatch/running_table.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/net/socket.h"

namespace muster::dispatch {
namespace {

// The room that a file needs, not its length alone: where the disk is full the first closure would
// end this process by SIGBUS.
bool Reserve(int fd, std::size_t bytes) {
  const auto length = static_cast<off_t>(bytes);
  if (::ftruncate(fd, length) != 0) return false;
  return ::fallocate(fd, 0, 0, length) == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
}

}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

RunningTable::RunningTable(std::size_t slots, const std::string& file) : size_(slots) {
  const std::size_t bytes = slots * sizeof(Slot);
  if (!file.empty()) {
    const net::Fd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (fd.valid() && Reserve(fd.get(), bytes)) {
      void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
      // Zeros are empty slots.
      if (mapped != MAP_FAILED) slots_ = static_cast<Slot*>(mapped);
    }
    // Else who reads it when this process has ended would take it that nothing ran.
    if (fd.valid() && slots_ == nullptr) (void)::unlink(file.c_str());
  }
  if (slots_ != nullptr) return;
  own_ = std::make_unique<Slot[]>(slots);
  slots_ = own_.get();
}

RunningTable::~RunningTable() {
  if (own_ == nullptr) (void)::munmap(slots_, size_ * sizeof(Slot));
}

std::optional<RunningTable::Left> RunningTable::TakeFrom(const std::string& file) {
  // Nobody waits for who might write into a pipe of this name.
  const net::Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
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
