#include "common/rpc/names.h"

#include <cstdlib>

namespace muster::rpc {

void UseSystemResolver() { (void)::setenv("GRPC_DNS_RESOLVER", "native", 0); }

}  // namespace muster::rpc
