// What a piece of code says in the log.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <unistd.h>

#include "common/telemetry/log.h"

namespace muster::testing {

// What is written to the log while `body` runs.
template <class Body>
std::string log_of(const Body& body) {
  char path[] = "/tmp/muster-log-XXXXXX";
  const int file = mkstemp(path);
  log::Configure({.descriptor = file});
  body();
  log::Configure({});
  close(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path);
  return text.str();
}

}  // namespace muster::testing
