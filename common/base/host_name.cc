#include "common/base/host_name.h"

#include <climits>

#include <unistd.h>

namespace muster {

const std::string& HostName() {
  static const std::string name = [] {
    char text[HOST_NAME_MAX + 1] = {};
    const bool known = ::gethostname(text, sizeof(text) - 1) == 0 && text[0] != '\0';
    return std::string(known ? text : "localhost");
  }();
  return name;
}

}  // namespace muster
