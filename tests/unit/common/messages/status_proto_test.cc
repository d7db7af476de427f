#include "common/messages/status_proto.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("a status comes back from its message as it was", "[messages][unit]") {
  v1::StatusProto proto;
  SetStatus(DataLoss("shard {} is damaged", 3), proto);
  CHECK(FromProto(proto) == DataLoss("shard 3 is damaged"));

  SetStatus(Ok(), proto);
  CHECK(FromProto(proto).ok());
}

TEST_CASE("a message that is not UTF-8 does not make what carries it unreadable",
          "[messages][unit]") {
  v1::StatusProto sent;
  SetStatus(InvalidArgument("column \"{}\"", "\xff\xfe"), sent);

  v1::StatusProto received;
  REQUIRE(received.ParseFromString(sent.SerializeAsString()));
  CHECK(FromProto(received).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a code that no status has is UNKNOWN", "[messages][unit]") {
  v1::StatusProto proto;
  proto.set_message("from a later version");
  for (const int code : {-1, 17, 1'000}) {
    proto.set_code(code);
    CHECK(FromProto(proto).code() == StatusCode::kUnknown);
  }
}

}  // namespace
}  // namespace muster
