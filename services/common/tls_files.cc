#include "services/common/tls_files.h"

namespace muster::services {

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

}  // namespace muster::services
