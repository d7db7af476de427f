#include "common/process/line_gate.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/core.h>

namespace muster::process {

LineGate::LineGate(Options options)
    : options_(options),
      line_credit_(static_cast<double>(options.burst_lines)),
      byte_credit_(static_cast<double>(options.burst_bytes)) {}

// A clock that is put back costs nothing but a pause in the refilling.
void LineGate::Refill(Time now) {
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - refilled_).count());
  refilled_ = now;
  const auto add = [seconds](double& credit, std::size_t rate, std::size_t most) {
    credit = std::min(static_cast<double>(most), credit + seconds * static_cast<double>(rate));
  };
  add(line_credit_, options_.lines_per_second, options_.burst_lines);
  add(byte_credit_, options_.bytes_per_second, options_.burst_bytes);
}

bool LineGate::Add(Time time, std::string text) {
  const MutexLock lock(mutex_);
  Refill(time);
  // Once one waits in the tail, those after it do too: they stay in their order.
  if (tail_.empty() && line_credit_ >= 1 && byte_credit_ >= static_cast<double>(text.size())) {
    line_credit_ -= 1;
    byte_credit_ -= static_cast<double>(text.size());
    lines_.push_back({time, std::move(text)});
  } else {
    tail_bytes_ += text.size();
    tail_.push_back({time, std::move(text)});
    while (tail_.size() > options_.tail_lines ||
           (tail_.size() > 1 && tail_bytes_ > options_.tail_bytes)) {
      tail_bytes_ -= tail_.front().text.size();
      tail_.pop_front();
      ++dropped_;
    }
  }
  return !std::exchange(told_, true);
}

std::vector<LineGate::Line> LineGate::Take() {
  const MutexLock lock(mutex_);
  std::vector<Line> lines = std::exchange(lines_, {});
  if (dropped_ > 0) {
    lines.push_back({tail_.front().time, fmt::format("({} lines dropped: too many at once)",
                                                     std::exchange(dropped_, 0))});
  }
  std::move(tail_.begin(), tail_.end(), std::back_inserter(lines));
  tail_.clear();
  tail_bytes_ = 0;
  if (lines.empty()) told_ = false;
  return lines;
}

}  // namespace muster::process
