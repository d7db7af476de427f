// Where a member says that it waits: to its daemon (process::WaitPage), once that has lasted, and
// how often in the log.
//
// Threading: one thread at a time.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/scheduler.h"
#include "common/process/wait_page.h"

namespace muster::collectives {

class WaitSign {
 public:
  // A wait is shown after this time, or after a quarter of its own limit where that is sooner.
  static constexpr Millis kShownAfter{1'000};
  // What lasts is in the log again after this time.
  static constexpr Millis kLogEvery{30'000};

  // Empty: there is no page. Where it cannot be had nothing is shown, and all else goes on.
  explicit WaitSign(const std::string& wait_page) {
    if (wait_page.empty()) return;
    if (auto page = process::WaitPage::Open(wait_page); page.ok()) page_ = *std::move(page);
  }
  ~WaitSign() { Clear(); }
  WaitSign(const WaitSign&) = delete;
  WaitSign& operator=(const WaitSign&) = delete;

  // The wait of now. True: it has lasted long enough to be shown.
  bool Show(const process::Wait& wait) {
    const Millis after =
        wait.limit > Millis(0) ? std::min<Millis>(kShownAfter, wait.limit / 4) : kShownAfter;
    if (wait.lasts < after) {
      Clear();
      return false;
    }
    if (page_ != nullptr) {
      page_->Set(wait);
      shown_ = true;
    }
    return true;
  }
  // What was waited for had ended before.
  void SayTooLate() {
    Clear();
    if (page_ != nullptr) page_->SetVerdict(process::WaitPage::Verdict::kTooLate);
  }
  // There is none.
  void Clear() {
    if (std::exchange(shown_, false)) page_->Clear();
  }
  // Whether one that has lasted so long is to be logged now.
  bool LogsAfter(Millis lasts) {
    if (lasts - logged_ < kLogEvery) return false;
    logged_ = lasts;
    return true;
  }

 private:
  std::unique_ptr<process::WaitPage> page_;
  bool shown_ = false;
  Millis logged_{0};
};

}  // namespace muster::collectives
