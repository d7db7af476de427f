#include "common/rpc/names.h"

#include <cstdlib>

namespace muster::rpc {

// One in brackets begins as no scheme does.
std::string TargetOf(const std::string& address) {
  return address.starts_with('[') ? address : "dns:///" + address;
}

void UseSystemResolver() { (void)::setenv("GRPC_DNS_RESOLVER", "native", 0); }

}  // namespace muster::rpc
