#include "services/common/admin.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"

namespace muster::services {
namespace {

TEST_CASE("on loopback a request that names another host is refused", "[admin]") {
  const auto guard = ClearAdminGuard("127.0.0.1", /*loopback=*/true);
  const auto asked = [&](const std::string& host) {
    return guard({.path = "/", .host = host}).code();
  };

  for (const char* host :
       {"127.0.0.1:8080", "127.1.2.3", "localhost", "localhost:1", "[::1]:80", ""}) {
    CAPTURE(host);
    CHECK(asked(host) == StatusCode::kOk);
  }
  for (const char* host :
       {"rebound.example:8080", "10.0.0.1", "127.0.0.1.example", "[", "[fe80::1]"}) {
    CAPTURE(host);
    CHECK(asked(host) == StatusCode::kPermissionDenied);
  }
}

TEST_CASE("when a daemon's certificate ends is among its metrics, of one without there is nothing",
          "[admin][tls][metrics]") {
  testing::Certificates folder;
  const auto period = testing::Certificates::Valid();
  const auto tls = tls::Context::FromFiles(
      folder.Issue("ps", {.role = tls::Role::kNode, .names = {"ps:0"}}, {"a"}, period));
  REQUIRE(tls.ok());
  Samples none;
  Samples with;

  AddCertificate(nullptr, none);
  AddCertificate(tls->get(), with);

  CHECK(none.Text().empty());
  const auto ends = std::chrono::floor<std::chrono::seconds>(period.until).time_since_epoch();
  CHECK(with.Text().find(fmt::format("\nmuster_certificate_expiry_timestamp_seconds {}\n",
                                     ends.count())) != std::string::npos);
}

TEST_CASE("beyond loopback a name is no matter", "[admin]") {
  const auto guard = ClearAdminGuard("0.0.0.0", /*loopback=*/false);

  CHECK(guard({.path = "/", .host = "ps-0.muster"}).ok());
}

}  // namespace
}  // namespace muster::services
