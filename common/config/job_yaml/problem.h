// One thing that is wrong with a job, said so that its author can mend it.
#pragma once

#include <string>
#include <vector>

namespace muster::config {

struct Problem {
  // The field, dotted: optimizer.learning_rate. Empty: the whole job.
  std::string path;
  // What was given against what is allowed; no path, no position.
  std::string message;
  // The fields of which one is missing, where `path` is none of them or not the only one: whoever
  // has read them wrongly knows that this is no news.
  std::vector<std::string> lacks = {};
};

using Problems = std::vector<Problem>;

}  // namespace muster::config
