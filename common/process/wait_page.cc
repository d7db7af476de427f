#include "common/process/wait_page.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::process {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free);

// The clock of the host, which all its processes read alike.
std::uint64_t NowNs() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<nanoseconds>(since).count());
}

milliseconds Between(std::uint64_t from_ns, std::uint64_t to_ns) {
  if (to_ns <= from_ns) return milliseconds(0);
  return std::chrono::duration_cast<milliseconds>(
      nanoseconds(static_cast<std::int64_t>(to_ns - from_ns)));
}

template <std::size_t kBytes>
class Text {
 public:
  void Set(std::string_view text) {
    std::array<std::uint64_t, kWords> words{};
    std::memcpy(words.data(), text.data(), std::min(text.size(), kBytes));
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  // Up to the first zero; what is no printable ASCII as '?'.
  std::string Get() const {
    std::array<std::uint64_t, kWords> words{};
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    const auto* const begin = reinterpret_cast<const char*>(words.data());
    std::string text(begin, ::strnlen(begin, kBytes));
    std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return text;
  }

 private:
  static constexpr std::size_t kWords = kBytes / sizeof(std::uint64_t);
  std::array<Word, kWords> words_;
};

// Since when it waits, where nothing is told: a page stays as it is, so that programs and daemons
// of other releases read it.
constexpr std::uint64_t kFinal = UINT64_MAX;
constexpr std::uint64_t kTooLate = UINT64_MAX - 1;

}  // namespace

// A sequence lock: odd while it is written. Zeros, which it begins with, say that nobody waits.
struct WaitPage::Page {
  Word sequence;
  Word generation, operation, since_ns, limit_ms;
  Word told_ns;  // 0: nothing is told
  Text<kMostCall> call;
  Text<kMostAwaited> awaited;

  template <class Change>
  void Write(const Change& change) {
    // A writer that was killed half-way has left it odd.
    const std::uint64_t begun = sequence.load(std::memory_order_relaxed) | 1U;
    sequence.store(begun, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    change();
    sequence.store(begun + 1, std::memory_order_release);
  }
};

Result<std::unique_ptr<WaitPage>> WaitPage::Create() {
  const int descriptor = ::memfd_create("muster-wait-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return FromErrno(errno, "memfd_create");
  // Its size stays: who cut it would end the daemon by its next look.
  const bool sized =
      ::ftruncate(descriptor, sizeof(Page)) == 0 &&
      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  void* const at =
      sized ? ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
            : MAP_FAILED;
  if (at == MAP_FAILED) {
    const Status why = FromErrno(errno, "map a page");
    ::close(descriptor);
    return why;
  }
  return std::unique_ptr<WaitPage>(new WaitPage(descriptor, static_cast<Page*>(at)));
}

std::unique_ptr<WaitPage> WaitPage::ForChild(std::map<std::string, std::string>& environment) {
  Result<std::unique_ptr<WaitPage>> page = Create();
  if (!page.ok()) return nullptr;
  environment[kVariable] = (*page)->path();
  return *std::move(page);
}

Result<std::unique_ptr<WaitPage>> WaitPage::Open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return FromErrno(errno, path);
  struct stat is{};
  const bool sound = ::fstat(descriptor, &is) == 0 && S_ISREG(is.st_mode) &&
                     is.st_size == static_cast<off_t>(sizeof(Page));
  void* const at =
      sound ? ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
            : MAP_FAILED;
  ::close(descriptor);
  if (!sound) return InvalidArgument("{} is no page of {} bytes", path, sizeof(Page));
  if (at == MAP_FAILED) return FromErrno(errno, path);
  return std::unique_ptr<WaitPage>(new WaitPage(-1, static_cast<Page*>(at)));
}

WaitPage::~WaitPage() {
  (void)::munmap(page_, sizeof(Page));
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string WaitPage::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

void WaitPage::Set(const Wait& wait) {
  const std::uint64_t now = NowNs();
  const auto lasts = static_cast<std::uint64_t>(nanoseconds(wait.lasts).count());
  page_->Write([&] {
    const auto put = [](Word& word, std::uint64_t value) {
      word.store(value, std::memory_order_relaxed);
    };
    put(page_->generation, wait.generation.value());
    put(page_->operation, wait.operation);
    put(page_->since_ns, now - std::min(now, lasts));
    put(page_->limit_ms, static_cast<std::uint64_t>(wait.limit.count()));
    put(page_->told_ns, now);
    page_->call.Set(wait.call);
    page_->awaited.Set(wait.awaited);
  });
}

void WaitPage::Clear() {
  page_->Write([&] { page_->told_ns.store(0, std::memory_order_relaxed); });
}

void WaitPage::SetVerdict(Verdict verdict) {
  page_->Write([&] {
    page_->told_ns.store(0, std::memory_order_relaxed);
    page_->since_ns.store(verdict == Verdict::kFinal     ? kFinal
                          : verdict == Verdict::kTooLate ? kTooLate
                                                         : 0,
                          std::memory_order_relaxed);
  });
}

WaitPage::Verdict WaitPage::verdict() const {
  if (page_->told_ns.load(std::memory_order_acquire) != 0) return Verdict::kNone;
  const std::uint64_t since = page_->since_ns.load(std::memory_order_acquire);
  return since == kFinal ? Verdict::kFinal : since == kTooLate ? Verdict::kTooLate : Verdict::kNone;
}

std::optional<Wait> WaitPage::Get() const {
  const std::uint64_t before = page_->sequence.load(std::memory_order_acquire);
  if ((before & 1U) != 0) return std::nullopt;
  const std::uint64_t now = NowNs();
  const auto get = [](const Word& word) { return word.load(std::memory_order_relaxed); };
  const std::uint64_t told = get(page_->told_ns);
  Wait wait{.generation = Generation(get(page_->generation)),
            .operation = get(page_->operation),
            .call = page_->call.Get(),
            .awaited = page_->awaited.Get(),
            .lasts = Between(get(page_->since_ns), now),
            .limit = milliseconds(get(page_->limit_ms) & INT64_MAX)};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (page_->sequence.load(std::memory_order_relaxed) != before) return std::nullopt;
  if (told == 0 || Between(told, now) > kFresh) return std::nullopt;
  return wait;
}

}  // namespace muster::process
