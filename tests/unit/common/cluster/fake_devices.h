// A cluster that has the devices it is told to have.
#pragma once

#include <string>
#include <vector>

#include "common/cluster/resolver.h"

namespace muster::cluster {

class FakeDevices : public DeviceLister {
 public:
  explicit FakeDevices(std::vector<std::string> names) : names_(std::move(names)) {}

  Result<std::vector<std::string>> ListDevices(const std::string& master) override {
    asked.push_back(master);
    if (fail_next > 0) {
      --fail_next;
      return MakeStatus(fail_with, "no answer");
    }
    return names_;
  }

  std::vector<std::string> asked;
  int fail_next = 0;
  StatusCode fail_with = StatusCode::kDeadlineExceeded;

 private:
  std::vector<std::string> names_;
};

}  // namespace muster::cluster
