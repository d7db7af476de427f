// Which workers an elastic job may have now, and where: what the coordinator writes, each worker's
// daemon puts beside the job's folder, and the processes read whenever they look for each other.
//
// A line for each entry, in any order:
//
//   job 7c1f               what the processes prove to each other begins with it
//   least 2                fewer do not train
//   most 4                 more do not train at once; a lost one may live beside its successor
//   places 24              numbers of workers are below this; the same for the whole job
//   worker 3 10.0.0.7:21017
//   ended 1                one of them has come to the end: who has not trained has nothing to do
//
// A place without a worker line is vacant: nobody is there, for certain.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster::cluster {

// The variable that names the file; processes of elastic jobs have it.
inline constexpr const char* kWorkerBookVariable = "MUSTER_ELASTIC_WORKERS";

struct WorkerBook {
  std::string job;
  int least = 1;
  int most = 1;
  int places = 1;
  std::map<int, std::string> addresses;
  bool ended = false;

  bool operator==(const WorkerBook&) const = default;
};

[[nodiscard]] std::string ToText(const WorkerBook& book);
//   kInvalidArgument: a line that is none, a place out of range; names the line.
[[nodiscard]] Result<WorkerBook> ParseWorkerBook(std::string_view text);
// The file is replaced as a whole, so each reading finds one that is whole.
//   kNotFound and its like: the file cannot be read; names it.
[[nodiscard]] Result<WorkerBook> ReadWorkerBook(const std::string& path);

}  // namespace muster::cluster
