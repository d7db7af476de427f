// Keeps the figures of model jobs: all of them in event files for TensorBoard, and a few hundred of
// each curve in memory for the page.
//
// A file belongs to one coordinator process and one view of a job. It begins with a mark of the
// first step that follows (SessionLog START), from which on TensorBoard forgets what earlier files
// say; so a job that went back to a checkpoint has no step twice, and none that did not count.
//
// A disk that is full or does not answer costs points, never the job: at most kMostWaiting pieces
// wait for one job's folder.
//
// Threading: the coordinator's strand. Lifetime: what Options names outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"
#include "coordinator/figures.h"
#include "coordinator/offload.h"

namespace muster::coordinator {

// Points of equal distance, as they come; the distance doubles whenever there are too many.
class Curve {
 public:
  static constexpr std::size_t kMost = 512;
  using Point = std::pair<std::uint64_t, double>;

  void Add(std::uint64_t step, double value);
  // Forgets what is above `step`.
  void CutAfter(std::uint64_t step);
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
  // One of so many that come is kept; the newest stands last in any case.
  std::uint64_t stride_ = 1;
  std::uint64_t since_kept_ = 0;
  bool last_is_extra_ = false;
};

class JobFigures final : public Figures {
 public:
  static constexpr int kMostWaiting = 64;
  // Jobs whose curves are kept in memory: all that run, of the ended ones the newest.
  static constexpr std::size_t kMostJobs = 64;

  using Curves = std::map<std::string, Curve>;

  JobFigures(LaneOffload& disks, const Clock& clock) : disks_(disks), clock_(clock) {}

  void GoOn(const std::string& job_id, const std::string& folder, std::uint64_t step) override;
  void Add(const std::string& job_id, const std::string& folder,
           const std::vector<Figure>& figures) override;
  void End(const std::string& job_id) override;

  // Since this coordinator began; null: none.
  const Curves* Find(const std::string& job_id) const;

 private:
  struct File;
  struct One {
    std::map<std::string, std::uint64_t> last;  // step, by tag
    Curves curves;
    // Touched by the lane alone, once made.
    std::shared_ptr<File> file;
    // Pieces that wait; shared with those that come back.
    std::shared_ptr<int> waiting = std::make_shared<int>(0);
    bool told = false;
    bool ended = false;
  };
  One& Of(const std::string& job_id);
  void OnDisk(const std::string& job_id, const One& one, LaneOffload::Function work);

  LaneOffload& disks_;
  const Clock& clock_;
  std::map<std::string, One> jobs_;
  std::deque<std::string> order_;  // the oldest first
};

}  // namespace muster::coordinator
