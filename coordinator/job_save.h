// One checkpoint of a job on its way. Internal to the Job's files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/job.h"

namespace muster::coordinator {

struct Job::Save {
  std::uint64_t step = 0;
  std::uint64_t view = 0;
  TimePoint began;
  std::string directory;
  // Files of the archive's values.
  std::vector<v1::SaveReport> values;
  std::size_t left = 0;
  // Not all who hold variables were there to be asked.
  bool away = false;
  // Tries that all were there for.
  int tries = 0;
  Status first;
  v1::CheckpointManifest manifest;
  // Who waits for it: the driver that asked, and one that has taken its place.
  std::vector<Then<v1::SaveCheckpointReply>> waiting;
};

template <class Value, class Function>
std::function<void(Result<Value>)> Job::FromFolder(Millis limit, Function then) {
  auto open = std::make_shared<std::function<void(Result<Value>)>>(Guard(std::move(then)));
  const auto timer =
      world_.scheduler.RunAfter(limit, [this, weak = std::weak_ptr<Job*>(self_), open, limit] {
        if (weak.expired() || !*open) return;
        folder_silent_ = true;
        std::exchange(
            *open, nullptr)(DeadlineExceeded("the checkpoint folder {} has not answered for {} s",
                                             CheckpointRoot(), limit.count() / 1000));
      });
  return [this, weak = std::weak_ptr<Job*>(self_), open, timer](Result<Value> result) {
    if (weak.expired()) return;
    folder_silent_ = false;
    (void)world_.scheduler.Cancel(timer);
    if (auto answer = std::exchange(*open, nullptr)) answer(std::move(result));
  };
}

}  // namespace muster::coordinator
