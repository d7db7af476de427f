// Which cluster a command speaks to.
#pragma once

#include <memory>
#include <string>

#include "cli/options.h"
#include "common/base/environment.h"
#include "common/base/status.h"
#include "common/tls/context.h"

namespace muster::cli {

struct Cluster {
  std::string address;
  // Empty: behind TLS a person's certificate is enough.
  std::string token;
  // Null: in the clear.
  std::shared_ptr<tls::Context> tls = nullptr;
};

// --coordinator > MUSTER_COORDINATOR > the newest live `up` of this user; the token from
// --token-file > MUSTER_TOKEN_FILE > that `up`'s file.
//   kUnavailable: no cluster; the message says how to start one.
// TLS by --tls-ca, --tls-cert and --tls-key, or MUSTER_TLS_CA and the others.
//   kUnauthenticated: neither a certificate nor a token file is named, or it cannot be read, or it
//   is empty or has what no token has.
Result<Cluster> FindCluster(const Options& options, const Environment& environment);

// The same certificate alone; null: none is named. Errors of tls::CheckFiles.
Result<std::shared_ptr<tls::Context>> FindTls(const Options& options,
                                              const Environment& environment);

// The token in a file, without the newline at its end.
Result<std::string> ReadToken(const std::string& path);

}  // namespace muster::cli
