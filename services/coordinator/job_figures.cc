#include "services/coordinator/job_figures.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/rate_limit.h"
#include "common/telemetry/event_file.h"
#include "common/telemetry/log.h"

namespace muster::coordinator {

void Curve::Add(std::uint64_t step, double value) {
  if (last_is_extra_) points_.pop_back();
  points_.emplace_back(step, value);
  last_is_extra_ = ++since_kept_ < stride_;
  if (!last_is_extra_) since_kept_ = 0;
  if (points_.size() < kMost) return;
  static_assert(kMost % 2 == 0, "the newest is not among those that stay");
  const Point newest = points_.back();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size(); i += 2) points_[kept++] = points_[i];
  points_.resize(kept);
  points_.push_back(newest);
  last_is_extra_ = true;
  since_kept_ = stride_;
  stride_ *= 2;
}

void Curve::CutAfter(std::uint64_t step) {
  std::erase_if(points_, [step](const Point& point) { return point.first > step; });
  since_kept_ = 0;
  last_is_extra_ = false;
}

// Touched by the lane of its job alone.
struct JobFigures::File {
  // Nothing is thrown away in the dark, and nothing told twice a second.
  void Complain(const Status& why) {
    if (!complaints.Ask()) return;
    log::Warning("{}: figures of the job are lost to TensorBoard: {}", folder, Message(why));
  }
  Status Write(const std::vector<Figure>& figures, std::chrono::system_clock::time_point time) {
    if (events == nullptr) {
      MUSTER_TRY_ASSIGN(events, telemetry::EventFile::Create(folder));
    }
    if (begin) {
      MUSTER_TRY(events->Begin(static_cast<std::int64_t>(*begin), time));
    }
    for (const Figure& figure : figures) {
      MUSTER_TRY(events->Scalar(figure.tag, static_cast<std::int64_t>(figure.step),
                                static_cast<float>(figure.value), time));
    }
    MUSTER_TRY(events->Flush());
    // Not before it is there: the file after one that could not be written begins with it, too.
    begin.reset();
    return Ok();
  }

  std::string folder;
  std::unique_ptr<telemetry::EventFile> events;
  // The first step of which the files speak that follow; said when there is something to say of it.
  std::optional<std::uint64_t> begin;
  RateLimit complaints{Millis(60'000)};
};

JobFigures::One& JobFigures::Of(const std::string& job_id) {
  const auto [found, made] = jobs_.try_emplace(job_id);
  if (made) {
    found->second.file = std::make_shared<File>();
    order_.push_back(job_id);
    while (order_.size() > kMostJobs) {
      const auto ended = std::ranges::find_if(
          order_, [this](const std::string& id) { return jobs_.at(id).ended; });
      if (ended == order_.end()) break;
      jobs_.erase(*ended);
      order_.erase(ended);
    }
  }
  return found->second;
}

void JobFigures::OnDisk(const std::string& job_id, const One& one, LaneOffload::Function work) {
  ++*one.waiting;
  disks_.Run("figures of " + job_id, std::move(work), [waiting = one.waiting] { --*waiting; });
}

void JobFigures::GoOn(const std::string& job_id, const std::string& folder, std::uint64_t step) {
  One& one = Of(job_id);
  one.ended = false;
  for (auto& [tag, last] : one.last) last = std::min(last, step);
  for (auto& [tag, curve] : one.curves) curve.CutAfter(step);
  OnDisk(job_id, one, [file = one.file, folder, step] {
    file->events.reset();
    file->folder = folder;
    file->begin = step + 1;
  });
}

void JobFigures::Add(const std::string& job_id, const std::string& folder,
                     const std::vector<Figure>& figures) {
  One& one = Of(job_id);
  std::vector<Figure> fresh;
  for (const Figure& figure : figures) {
    const auto [last, first] = one.last.try_emplace(figure.tag, figure.step);
    if (!first && figure.step <= last->second) continue;
    last->second = figure.step;
    one.curves[figure.tag].Add(figure.step, figure.value);
    fresh.push_back(figure);
  }
  if (fresh.empty()) return;
  if (*one.waiting >= kMostWaiting) {
    if (!std::exchange(one.told, true)) {
      log::With({{"job", job_id}})
          .Warning("{} does not answer: figures are lost to TensorBoard until it does", folder);
    }
    return;
  }
  one.told = false;
  OnDisk(job_id, one, [file = one.file, folder, fresh = std::move(fresh), time = clock_.WallNow()] {
    file->folder = folder;
    if (const Status written = file->Write(fresh, time); !written.ok()) {
      file->Complain(written);
      // The next one begins a file of its own.
      file->events.reset();
    }
  });
}

void JobFigures::End(const std::string& job_id) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  found->second.ended = true;
  OnDisk(job_id, found->second, [file = found->second.file] { file->events.reset(); });
}

const JobFigures::Curves* JobFigures::Find(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? nullptr : &found->second.curves;
}

}  // namespace muster::coordinator
