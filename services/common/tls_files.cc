#include "services/common/tls_files.h"

#include <filesystem>

namespace muster::services {
namespace {

std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

}  // namespace

std::vector<config::Setting> TlsSettings() {
  return {
      {.name = "tls-ca",
       .doc = "File with the certificates of the authorities that this cluster trusts. With it, "
              "tls-cert and tls-key all connections are encrypted, and all peers proven."},
      {.name = "tls-cert",
       .doc = "File with this process's certificate (muster certs issue), read anew when it "
              "changes."},
      {.name = "tls-key", .doc = "File (mode 0600) with the certificate's key."},
      {.name = "tls-allowed",
       .doc = "File with the fingerprints of the certificates that are let in, one a line, read "
              "anew when it changes: who is taken out is let in no more, and what connections they "
              "have end (muster certs revoke). Empty: all that the authorities have issued."},
  };
}

tls::Files TlsFilesOf(const config::Values& values) {
  return {.ca = values.String("tls-ca"),
          .certificate = values.String("tls-cert"),
          .key = values.String("tls-key"),
          .allowed = values.String("tls-allowed")};
}

std::map<std::string, std::string> TlsEnvironment(const tls::Files& files) {
  if (!files.given()) return {};
  std::map<std::string, std::string> set = {{"MUSTER_TLS_CA", Absolute(files.ca)},
                                            {"MUSTER_TLS_CERT", Absolute(files.certificate)},
                                            {"MUSTER_TLS_KEY", Absolute(files.key)}};
  if (!files.allowed.empty()) set["MUSTER_TLS_ALLOWED"] = Absolute(files.allowed);
  return set;
}

}  // namespace muster::services
