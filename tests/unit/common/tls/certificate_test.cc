#include "common/tls/certificate.h"

#include <openssl/asn1.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/certificates.h"

namespace muster::tls {
namespace {

using namespace std::chrono_literals;
using testing::Certificates;
using testing::Says;

const Holder kPs1{.role = Role::kNode, .names = {"ps:1"}};
const Holder kAna{.role = Role::kSubmitter, .names = {"ana"}};

}  // namespace

TEST_CASE("a certificate says who its holder is, where and until when", "[tls][unit]") {
  const Certificates folder;
  const Period period = Certificates::Valid();
  const auto issued =
      Issue(folder.authority(), {.holder = {.role = Role::kNode, .names = {"ps:1", "worker:0"}},
                                 .hosts = {"node-3", "10.0.0.3", "fd00::3"},
                                 .period = period});
  REQUIRE(issued.ok());

  const auto certificate = ParseCertificate(issued->certificate, "it");

  REQUIRE(certificate.ok());
  const auto holder = HolderOf(**certificate);
  REQUIRE(holder.ok());
  CHECK(holder->ToString() == "node ps:1, worker:0");
  CHECK(HostsOf(**certificate) == std::vector<std::string>{"node-3", "10.0.0.3", "fd00::3"});
  CHECK(CheckHost(**certificate, "node-3").ok());
  CHECK(CheckHost(**certificate, "fd00::3").ok());
  CHECK(Says(CheckHost(**certificate, "node-4"), "for other hosts (node-3, 10.0.0.3, fd00::3)"));
  CHECK(CheckPeriod(**certificate, period.from + 1min, "it").ok());
  CHECK(Says(CheckPeriod(**certificate, period.until + 1min, "it"), "it has expired at "));
  CHECK(Says(CheckPeriod(**certificate, period.from - 1min, "it"), "it is not valid before "));
}

TEST_CASE("a subject's name is not taken for a host's", "[tls][unit]") {
  const Certificates folder;
  const auto issued = Issue(folder.authority(), {.holder = kAna, .period = Certificates::Valid()});
  REQUIRE(issued.ok());
  const auto certificate = ParseCertificate(issued->certificate, "it");
  REQUIRE(certificate.ok());
  X509_NAME* const subject = X509_get_subject_name(certificate->get());
  X509_NAME_ENTRY_free(X509_NAME_delete_entry(subject, 0));
  const auto* const name = reinterpret_cast<const unsigned char*>("node-3");
  REQUIRE(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, name, -1, -1, 0) == 1);

  CHECK(Says(CheckHost(**certificate, "node-3"), "for other hosts"));
}

TEST_CASE("an address of a length that no address has is read no further", "[tls][unit]") {
  // One has one byte, the other six.
  const auto certificate = ParseCertificate(
      "-----BEGIN CERTIFICATE-----\n"
      "MIIBVTCB/aADAgECAhRsMJCiz6k52lSUBdH0AxalqSzd2jAKBggqhkjOPQQDAjAO\n"
      "MQwwCgYDVQQDDANvZGQwIBcNMjYxMTI4MTM0NDEwWhgPMjEyNjExMDQxMzQ0MTBa\n"
      "MA4xDDAKBgNVBAMMA29kZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABOc/9Vr5\n"
      "ZgsS5lKX0JFrRCNgHudp8WdPekgpUjz3yX7GsTcT2tnl4MczmexXazgC4XSPKtZo\n"
      "SmzrGUeoznu3VSOjNzA1MBQGA1UdEQQNMAuHAX+HBn8AAAEAADAdBgNVHQ4EFgQU\n"
      "H9xDAGG2Jf4LccIlzwyNShyePfkwCgYIKoZIzj0EAwIDRwAwRAIgCrOM1dhx3h6e\n"
      "52e/5E+lsqZ2SNbZCVAb45jxgH6AkbMCIBw9M+97gSrQCmSbx85QD92k0b89Fi+u\n"
      "gy+FkZ+J+KdF\n"
      "-----END CERTIFICATE-----\n",
      "it");
  REQUIRE(certificate.ok());

  CHECK(HostsOf(**certificate) == std::vector<std::string>{"?", "?"});
  CHECK(Says(CheckHost(**certificate, "127.0.0.1"), "for other hosts (?, ?)"));
}

TEST_CASE("a certificate may have no end, or one later than clocks go", "[tls][unit]") {
  const Certificates folder;
  const auto issued = Issue(folder.authority(), {.holder = kAna, .period = Certificates::Valid()});
  REQUIRE(issued.ok());
  const auto certificate = ParseCertificate(issued->certificate, "it");
  REQUIRE(certificate.ok());
  const auto now = std::chrono::system_clock::now();
  for (const char* until : {"99991231235959Z", "22990101000000Z"}) {
    INFO(until);
    REQUIRE(ASN1_TIME_set_string(X509_getm_notAfter(certificate->get()), until) == 1);
    REQUIRE(ASN1_TIME_set_string(X509_getm_notBefore(certificate->get()), "500101000000Z") == 1);

    CHECK(CheckPeriod(**certificate, now, "it") == Ok());
    const Period period = PeriodOf(**certificate);
    CHECK(period.until - period.from > period.until - now);
  }
}

TEST_CASE("what would be no sound certificate is not issued, and it is said why", "[tls][unit]") {
  const Certificates folder;
  const auto refused = [&](const Wish& wish) { return Issue(folder.authority(), wish).status(); };
  const Period valid = Certificates::Valid();

  CHECK(Says(refused({.holder = {.role = Role::kNode, .names = {"ps"}}, .period = valid}),
             "task \"ps\": must be type:index"));
  CHECK(Says(refused({.holder = {.role = Role::kViewer, .names = {"bob,URI:muster://node/ps:1"}},
                      .period = valid}),
             "name \"bob,URI:muster://node/ps:1\": 1 to 64 letters"));
  CHECK(Says(refused({.holder = kAna, .hosts = {"a,DNS:b"}, .period = valid}),
             "host \"a,DNS:b\": neither a name"));
  CHECK(Says(refused({.holder = kAna, .period = {valid.until, valid.from}}), "is never valid"));
  CHECK(Says(MakeAuthority("caf\xE9", valid).status(), "name \"caf\\xe9\": it is not UTF-8"));
  // Cut before a letter, not within it.
  CHECK(MakeAuthority(std::string(63, 'a') + "\u00e9\u00e9", valid).status() == Ok());
  CHECK(Says(Issue({.certificate = folder.authority().certificate,
                    .key = Certificates::NewAuthority().key},
                   {.holder = kAna, .period = valid})
                 .status(),
             "the authority's key is not the one of its certificate"));
}

TEST_CASE("files that do not go together are refused by the setting's name", "[tls][unit]") {
  Certificates folder;
  const Files good = folder.Issue("ps1", kPs1);
  REQUIRE(CheckFiles(good).status() == Ok());
  CHECK(CheckFiles(good)->ToString() == "node ps:1");

  SECTION("one is missing") {
    CHECK(Says(CheckFiles({.ca = good.ca, .certificate = good.certificate}).status(),
               "tls-key is missing: tls-ca, tls-cert and tls-key belong together"));
  }
  SECTION("one is not there") {
    CHECK(
        Says(CheckFiles({.ca = "/none", .certificate = good.certificate, .key = good.key}).status(),
             "tls-ca: "));
  }
  SECTION("one is a folder") {
    CHECK(Says(CheckFiles({.ca = folder.folder(), .certificate = good.certificate, .key = good.key})
                   .status(),
               ": Is a directory"));
  }
  SECTION("one is no PEM file") {
    folder.Write("ps1.pem", "garbage");
    CHECK(Says(CheckFiles(good).status(), "no certificate in PEM form"));
  }
  SECTION("the key is another one's") {
    const Files other = folder.Issue("other", kPs1);
    CHECK(Says(
        CheckFiles({.ca = good.ca, .certificate = good.certificate, .key = other.key}).status(),
        "is not the key of the certificate"));
  }
  SECTION("others may read the key") {
    REQUIRE(::chmod(good.key.c_str(), 0644) == 0);
    const Status status = CheckFiles(good).status();
    CHECK(status.code() == StatusCode::kPermissionDenied);
    CHECK(Says(status, "has mode 0644"));
  }
  SECTION("another authority has issued it") {
    const Files foreign = folder.IssueBy(Certificates::NewAuthority(), "foreign", kPs1);
    CHECK(Says(CheckFiles(foreign).status(), "is not of an authority in tls-ca"));
  }
  SECTION("it has expired") {
    const Files old = folder.Issue("old", kPs1, {}, Certificates::FromTo(-60min, -1min));
    CHECK(Says(CheckFiles(old).status(), "has expired at"));
  }
  SECTION("it is not valid yet") {
    const Files early = folder.Issue("early", kPs1, {}, Certificates::FromTo(10min, 60min));
    CHECK(Says(CheckFiles(early).status(), "is not valid before"));
  }
}

}  // namespace muster::tls
