#include "common/rpc/transfer.h"

#include <string>

#include "common/base/byte_count.h"

namespace muster::rpc {

Status Transfer::Explain(const Status& ended) const {
  const std::string whole = total_bytes_ == 0 ? "" : " of " + ByteCount(total_bytes_);
  const std::string far = ByteCount(bytes_) + whole;
  if (!ended.ok() && call_.ended()) {
    return Unavailable("nothing moved for {} s, after {}",
                       static_cast<double>(limit_.count()) / 1000, far);
  }
  if (ended.code() == StatusCode::kUnavailable && bytes_ > 0) {
    return Unavailable("{} (after {})", Message(ended), far);
  }
  return ended;
}

}  // namespace muster::rpc
