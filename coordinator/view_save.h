// One checkpoint of a view on its way. Internal to the View's files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/view.h"

namespace muster::coordinator {

struct View::Save {
  std::uint64_t step = 0;
  ViewId view;
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
std::function<void(Result<Value>)> View::FromFolder(Millis limit, Function then) {
  auto open = std::make_shared<std::function<void(Result<Value>)>>(Guard(std::move(then)));
  // Over views: an answer that comes when this one has ended shows that the folder is there again.
  const std::shared_ptr<bool> silent = lasting_.folder_silent;
  const auto timer =
      world_.scheduler.RunAfter(limit, [open, silent, limit, root = story_.CheckpointRoot()] {
        if (!*open) return;
        *silent = true;
        std::exchange(*open, nullptr)(DeadlineExceeded(
            "the checkpoint folder {} has not answered for {} s", root, limit.count() / 1000));
      });
  return [&scheduler = world_.scheduler, open, silent, timer](Result<Value> result) {
    *silent = false;
    (void)scheduler.Cancel(timer);
    if (auto answer = std::exchange(*open, nullptr)) answer(std::move(result));
  };
}

}  // namespace muster::coordinator
