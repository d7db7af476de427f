#include "coordinator/logs.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace muster::coordinator {

Logs::Tails& Logs::NewestOf(const std::string& job) {
  Newest& newest = newest_[job];
  newest.used = ++uses_;
  if (newest_.size() > most_jobs_) {
    newest_.erase(
        std::ranges::min_element(newest_, {}, [](const auto& entry) { return entry.second.used; }));
  }
  return newest.tasks;
}

void Logs::Append(const std::string& job, const std::string& task,
                  const google::protobuf::RepeatedPtrField<v1::LogLine>& lines,
                  std::int64_t came_us) {
  std::deque<std::string>& newest = NewestOf(job)[task];
  std::size_t bytes = 0;
  for (const v1::LogLine& line : lines) {
    newest.push_back(store_.Cut(line.text()));
    if (newest.size() > LogStore::kNewest) newest.pop_front();
    bytes += line.ByteSizeLong();
  }
  if (waiting_ + bytes > kMostWaiting) {
    lost_[job] += static_cast<std::uint64_t>(lines.size());
    return;
  }
  waiting_ += bytes;
  const auto lost = lost_.extract(job);
  offload_.Run(
      [this, job, task, lines, came_us, lost = lost.empty() ? 0 : lost.mapped()] {
        if (lost > 0) store_.NoteLost(job, lost);
        // Lines that the disk refuses are lost, which a later line says.
        (void)store_.Append(job, task, lines, came_us);
      },
      [this, bytes] { waiting_ -= bytes; });
}

void Logs::Read(const std::string& job, const LogStore::Query& query,
                std::function<void(Result<LogStore::Page>)> then) {
  auto page = std::make_shared<Result<LogStore::Page>>(LogStore::Page());
  offload_.Run([this, job, query, page] { *page = store_.Read(job, query); },
               [page, then = std::move(then)] { then(std::move(*page)); });
}

std::vector<std::string> Logs::Last(const std::string& job, const std::string& task) const {
  const auto tails = newest_.find(job);
  if (tails == newest_.end()) return {};
  const auto lines = tails->second.tasks.find(task);
  if (lines == tails->second.tasks.end()) return {};
  return {lines->second.begin(), lines->second.end()};
}

bool Logs::Knows(const std::string& job, const std::string& task) const {
  const auto tails = newest_.find(job);
  return tails != newest_.end() && tails->second.tasks.contains(task);
}

void Logs::Recall(const std::string& job) {
  auto found = std::make_shared<Tails>();
  offload_.Run([this, job, found] { *found = store_.Newest(job); },
               [this, job, found] {
                 Tails& tails = NewestOf(job);
                 for (auto& [task, lines] : *found) tails.try_emplace(task, std::move(lines));
               });
}

void Logs::Forget(const std::string& job) {
  newest_.erase(job);
  lost_.erase(job);
  offload_.Run([this, job] { store_.Forget(job); }, [] {});
}

}  // namespace muster::coordinator
