#include "common/tls/files_from.h"

namespace muster::tls {

Files FilesFrom(const Environment& environment) {
  return {.ca = environment("MUSTER_TLS_CA").value_or(""),
          .certificate = environment("MUSTER_TLS_CERT").value_or(""),
          .key = environment("MUSTER_TLS_KEY").value_or(""),
          .allowed = environment("MUSTER_TLS_ALLOWED").value_or("")};
}

}  // namespace muster::tls
