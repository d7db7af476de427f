#include "common/messages/status_proto.h"

#include "common/base/utf8.h"

namespace muster {

void SetStatus(const Status& status, v1::StatusProto& proto) {
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(ToValidUtf8(Message(status)));
}

Status FromProto(const v1::StatusProto& proto) {
  constexpr int kMost = static_cast<int>(StatusCode::kUnauthenticated);
  const bool known = proto.code() >= 0 && proto.code() <= kMost;
  return MakeStatus(known ? static_cast<StatusCode>(proto.code()) : StatusCode::kUnknown,
                    proto.message());
}

}  // namespace muster
