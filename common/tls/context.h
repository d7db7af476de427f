// What TLS sessions by certificates are made of: this process's own, its key and the authorities
// that it trusts, read from files, and read anew when these change. Each connection is verified
// against the files as they are then. (Processes of a job have none: key_context.h.)
//
// Threading: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tls/allowed.h"
#include "common/tls/published_files.h"
#include "common/tls/reload.h"
#include "common/tls/session.h"

namespace muster::tls {

// PEM files of the authorities (one or more), of the own certificate (with intermediates behind it)
// and of its key; and the list of certificates that are let in (allowed.h), empty: all of the
// authorities'.
struct Files {
  std::string ca = {};
  std::string certificate = {};
  std::string key = {};
  std::string allowed = {};
  bool given() const {
    return !ca.empty() || !certificate.empty() || !key.empty() || !allowed.empty();
  }
};

// The own certificate, read and checked: it matches the key, one of the authorities has issued it,
// it is valid now, and on the list if there is one.
//   kInvalidArgument: one of the files is missing or is no PEM file.  kPermissionDenied: others may
//   read the key.  kUnauthenticated: its dates, or the list.  kFailedPrecondition: these do not go
//   together.
Result<Holder> CheckFiles(const Files& files);

class Context {
 public:
  using OnWarning = std::function<void(const std::string& line)>;
  // Whether this process may show a certificate of that holder; its error is one of the files.
  using Accepts = std::function<Status(const Holder&)>;

  // Errors of CheckFiles and of `accepts`; kResourceExhausted, no descriptors. Files that are wrong
  // later are told to `on_warning`, once for each change and kind of reason; the old ones stay in
  // use, and these are tried again, at last every 16 seconds. A certificate of which less than a
  // fifth of its time, and less than 14 days, is left is told of once a day.
  static Result<std::shared_ptr<Context>> FromFiles(Files files, OnWarning on_warning = {},
                                                    Accepts accepts = {});
  ~Context();

  // Null: there is no list.
  const std::shared_ptr<Allowed>& allowed() const { return allowed_; }

  // When the certificate in use ends.
  std::chrono::system_clock::time_point Ends();

  // Paths of what is in use, for a library that opens files by itself: they have the newest sound
  // files within two seconds, and never others. From the first call on a thread looks.
  Files Follow();

  // The server's side. Peers are told why they are refused in a protocol of their own: whoever
  // comes is let in, and Session::Visitor() says who it is.
  Result<std::unique_ptr<Session>> Accept();
  // The client's. The server must be a node, and `task`, at `host`, where these are given.
  Result<std::unique_ptr<Session>> Connect(const std::string& task = {},
                                           const std::string& host = {});

 private:
  Context(Files files, OnWarning on_warning, Accepts accepts);
  void Run(const std::stop_token& stop);
  // The newest good state of the files.
  std::shared_ptr<ssl_ctx_st> Current();
  void WarnOfEnd() MUSTER_REQUIRES(mutex_);
  Result<std::unique_ptr<Session>> NewSession(bool server);

  const Files files_;
  const OnWarning on_warning_;
  const Accepts accepts_;
  std::shared_ptr<Allowed> allowed_;
  Mutex mutex_;
  std::shared_ptr<ssl_ctx_st> loaded_ MUSTER_GUARDED_BY(mutex_);
  Reload reload_ MUSTER_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point looked_ MUSTER_GUARDED_BY(mutex_){};
  std::chrono::system_clock::time_point warned_ MUSTER_GUARDED_BY(mutex_){};  // of its end
  PublishedFiles published_ MUSTER_GUARDED_BY(mutex_);
  // Last: it uses the others.
  std::jthread follower_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::tls
