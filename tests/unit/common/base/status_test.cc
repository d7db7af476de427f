#include "common/base/status.h"

#include <cerrno>

#include "tests/support/catch.h"

namespace muster {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("{} is odd", n);
  return n / 2;
}

Result<int> Quarter(int n) {
  MUSTER_TRY_ASSIGN(const int half, Half(n));
  MUSTER_TRY_ASSIGN(const int quarter, Half(half));
  return quarter;
}

TEST_CASE("MUSTER_TRY_ASSIGN hands on the first error and the value otherwise", "[base][unit]") {
  CHECK(Quarter(8).value() == 2);
  CHECK(ToString(Quarter(6).status()) == "INVALID_ARGUMENT: 3 is odd");
}

TEST_CASE("a status keeps its code when context is added", "[base][unit]") {
  const Status status = Annotate(NotFound("no such file"), "job a");

  CHECK(status.code() == StatusCode::kNotFound);
  CHECK(Message(status) == "job a: no such file");
  CHECK(Annotate(Ok(), "job a").ok());
}

TEST_CASE("errno becomes the code that says what to do", "[base][unit]") {
  CHECK(FromErrno(ENOSPC, "write").code() == StatusCode::kResourceExhausted);
  CHECK(FromErrno(EFBIG, "write").code() == StatusCode::kResourceExhausted);
  CHECK(FromErrno(ENOENT, "open").code() == StatusCode::kNotFound);
  CHECK(FromErrno(EMFILE, "open").code() == StatusCode::kResourceExhausted);
  CHECK(FromErrno(EISDIR, "read").code() == StatusCode::kInvalidArgument);
  CHECK(FromErrno(EROFS, "create").code() == StatusCode::kPermissionDenied);
  CHECK(FromErrno(ECONNRESET, "read").code() == StatusCode::kUnavailable);
  CHECK(FromErrno(EPIPE, "write").code() == StatusCode::kUnavailable);
}

TEST_CASE("a disk that fails is nobody's absence", "[base][unit]") {
  for (const int error : {EIO, ESTALE, ENODEV, ENXIO, EBADF}) {
    const Status status = FromErrno(error, "fdatasync /x");
    CAPTURE(ToString(status));
    CHECK(status.code() == StatusCode::kUnknown);
  }
}

}  // namespace
}  // namespace muster
