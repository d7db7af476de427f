// The list of certificates that are let in: a file whose lines each begin with the SHA-256
// fingerprint of one; what stands behind it, and lines that begin with '#', are for people. A
// certificate is revoked by taking its line out.
//
// Threading: any thread.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tls/certificate.h"
#include "common/tls/reload.h"

namespace muster::tls {

// Fingerprints on the lines of a list.
//   kInvalidArgument: a line that begins with something else; `path` says of which file.
Result<std::set<std::string>> ParseAllowed(std::string_view text, const std::string& path);
// kUnauthenticated: the list in that file, as it is now, does not have the certificate. Errors of
// ParseAllowed; kInvalidArgument: no fingerprint.
Status CheckAllowed(const x509_st& certificate, const std::string& path);

// The list of one process, read anew when the file changes.
class Allowed {
 public:
  using OnWarning = std::function<void(const std::string& line)>;

  // Errors of ParseAllowed, and kInvalidArgument for a list without a fingerprint. One that is
  // wrong or empty later is told to `on_warning`, once for each change and kind of reason; the one
  // before stays in use, and this one is tried again.
  static Result<std::shared_ptr<Allowed>> Open(std::string path, OnWarning on_warning = {});
  ~Allowed();
  Allowed(const Allowed&) = delete;
  Allowed& operator=(const Allowed&) = delete;

  // By the file as it is now. kUnauthenticated: not on the list; `whose` is in the sentence.
  Status Check(const std::string& fingerprint, const std::string& whose);

 private:
  Allowed(std::string path, OnWarning on_warning)
      : path_(std::move(path)), on_warning_(std::move(on_warning)) {}
  void Look() MUSTER_REQUIRES(mutex_);

  const std::string path_;
  const OnWarning on_warning_;
  Mutex mutex_;
  Reload reload_ MUSTER_GUARDED_BY(mutex_);
  std::set<std::string> fingerprints_ MUSTER_GUARDED_BY(mutex_);
};

// By the list in use. Null: there is none, and all are let in.
Status CheckAllowed(const x509_st& certificate, Allowed* list);

}  // namespace muster::tls
