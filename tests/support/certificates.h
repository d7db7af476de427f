// Certificates of a small authority, in a folder that goes with the object.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tls/authority.h"
#include "common/tls/context.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::testing {

inline bool Says(const Status& status, std::string_view words) {
  INFO(ToString(status));
  return Message(status).find(words) != std::string::npos;
}

class Certificates {
 public:
  Certificates() {
    authority_ = NewAuthority();
    Write("ca.pem", authority_.certificate);
  }

  static tls::Period FromTo(std::chrono::minutes from, std::chrono::minutes until) {
    const auto now = std::chrono::system_clock::now();
    return {now + from, now + until};
  }
  static tls::Period Valid() { return FromTo(std::chrono::minutes(-5), std::chrono::minutes(60)); }
  static tls::Issued NewAuthority() {
    auto made = tls::MakeAuthority("a test's authority", Valid());
    REQUIRE(made.ok());
    return *std::move(made);
  }

  // The authority's certificate stays in ca.pem.
  const tls::Issued& authority() const { return authority_; }
  const std::string& folder() const { return folder_.path(); }
  std::string path(const std::string& name) const { return folder_ / name; }

  // <name>.pem and <name>.key, replaced in one step each.
  tls::Files Issue(const std::string& name, const tls::Holder& holder,
                   const std::vector<std::string>& hosts = {"127.0.0.1", "localhost"},
                   const tls::Period& period = Valid()) {
    return IssueBy(authority_, name, holder, hosts, period);
  }
  tls::Files IssueBy(const tls::Issued& authority, const std::string& name,
                     const tls::Holder& holder,
                     const std::vector<std::string>& hosts = {"127.0.0.1", "localhost"},
                     const tls::Period& period = Valid()) {
    const auto issued = tls::Issue(authority, {.holder = holder, .hosts = hosts, .period = period});
    REQUIRE(issued.status() == Ok());
    Write(name + ".key", issued->key);
    Write(name + ".pem", issued->certificate);
    return {.ca = path("ca.pem"), .certificate = path(name + ".pem"), .key = path(name + ".key")};
  }
  // Its line in a list of those that are let in (common/tls/allowed.h).
  std::string LineOf(const std::string& name) const {
    std::ifstream file(path(name + ".pem"));
    const std::string pem{std::istreambuf_iterator<char>(file), {}};
    const auto certificate = tls::ParseCertificate(pem, name);
    REQUIRE(certificate.ok());
    return tls::FingerprintOf(**certificate) + "  " + name + "\n";
  }
  void Write(const std::string& name, const std::string& text) const {
    const std::string staged = path(name) + ".new";
    std::ofstream(staged) << text;
    std::filesystem::permissions(
        staged, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::rename(staged, path(name));
  }

 private:
  const TempFolder folder_;
  tls::Issued authority_;
};

}  // namespace muster::testing
