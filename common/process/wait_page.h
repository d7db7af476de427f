// What a process waits for, for the daemon that started it: a page of memory that both have mapped.
// The process writes, the daemon looks at it whenever it likes; neither waits for the other, and
// nothing is left of it when the daemon ends. When the process has ended, it tells what is to be
// made of that.
//
// The daemon makes it and tells the process its path (kVariable). What the process, which may be
// anybody's code, writes there is bounded and made printable by who reads it.
//
// Threading: Set() and Clear() by one thread at a time; Get() from any, also of other processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace muster::process {

// A collective call that has not ended yet.
struct Wait {
  // The group's, and the call's number in it.
  Generation generation = {};
  std::uint64_t operation = 0;
  // "all_reduce SUM of float32[3]"
  std::string call;
  // "worker:1 (which has not begun it)"
  std::string awaited;
  std::chrono::milliseconds lasts{0};
  // When it ends with an error; 0: never.
  std::chrono::milliseconds limit{0};
  bool operator==(const Wait&) const = default;
};

class WaitPage {
 public:
  // The variable of the environment that tells a process the path of its page.
  static constexpr const char* kVariable = "MUSTER_WAIT_PAGE";
  // Texts are cut at these lengths, in bytes.
  static constexpr std::size_t kMostCall = 256;
  static constexpr std::size_t kMostAwaited = 512;
  // Who waits says so again within this time: what is older is of one that stands still itself.
  static constexpr std::chrono::seconds kFresh{2};

  // By the daemon.
  static Result<std::unique_ptr<WaitPage>> Create();
  // The same for a child with that environment; null where there is none to be had.
  static std::unique_ptr<WaitPage> ForChild(std::map<std::string, std::string>& environment);
  // By the process. kInvalidArgument: no page is there; and what open(2) says.
  static Result<std::unique_ptr<WaitPage>> Open(const std::string& path);
  ~WaitPage();
  WaitPage(const WaitPage&) = delete;
  WaitPage& operator=(const WaitPage&) = delete;

  // Where other processes of this user open a page that was created here.
  std::string path() const;

  void Set(const Wait& wait);
  void Clear();
  enum class Verdict {
    kNone,
    // It is not what its job needs: another process in its place would end as it does.
    kFinal,
    // What it was to take part in had ended before: it has nothing to do, and is nobody's failure.
    kTooLate,
  };
  // Nothing is waited for any more.
  void SetVerdict(Verdict verdict);
  // For when the process has ended.
  Verdict verdict() const;
  // Nothing: it does not wait, or is in the midst of saying so.
  std::optional<Wait> Get() const;

 private:
  struct Page;
  WaitPage(int descriptor, Page* page) : descriptor_(descriptor), page_(page) {}

  const int descriptor_;  // -1: it was opened
  Page* const page_;
};

}  // namespace muster::process
