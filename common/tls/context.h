// What TLS sessions of one process are made of: its certificate, its key and the authorities that
// it trusts, read from files, and read anew when these change; or nothing of all that, for a
// process that proves itself by a secret alone.
//
// TLS 1.3 only. Both sides always prove themselves: by certificates, or (a client that is given a
// name and a key, to a server that knows it) by a pre-shared key with an ephemeral exchange. Each
// connection is verified against the files as they are then, also one by a ticket (tickets.h).
//
// Threading: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/tls/allowed.h"
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

  // Errors of CheckFiles. Files that are wrong later are told to `on_warning`, once for each
  // change and kind of reason; the old ones stay in use, and these are tried again, at last every
  // 16 seconds.
  static Result<std::shared_ptr<Context>> FromFiles(Files files, OnWarning on_warning = {});
  // Without certificates: sessions by named keys alone.
  static std::shared_ptr<Context> ForKeys();
  ~Context();

  bool has_certificate() const { return files_.given(); }
  // Null: there is no list.
  const std::shared_ptr<Allowed>& allowed() const { return allowed_; }

  // The server's side. Clients prove themselves by a certificate, or by a key that `keys` knows.
  Result<std::unique_ptr<Session>> Accept(KeyNamed keys = {});
  // The same for people's tools, which are told why they are refused in a protocol of their own:
  // whoever comes is let in, and Session::Visitor() says who it is. By no ticket, and by no key.
  Result<std::unique_ptr<Session>> AcceptVisitor();
  // The client's side, by certificate. The server must be a node, and `task` where one is given.
  Result<std::unique_ptr<Session>> Connect(const std::string& task = {});
  // The same by a ticket (tickets.h) where that task has given one; those that it gives are kept.
  // Empty: by none.
  Result<std::unique_ptr<Session>> ConnectAgain(const std::string& task);
  // By a key; the server must have it too.
  Result<std::unique_ptr<Session>> Connect(NamedKey key);

 private:
  struct Loaded;
  Context(Files files, OnWarning on_warning);
  // The newest good state of the files.
  std::shared_ptr<const Loaded> Current();
  Result<std::unique_ptr<Session>> NewSession(const Loaded* from, bool server);
  Result<std::unique_ptr<Session>> ConnectFrom(const Loaded* from, const std::string& task);

  const Files files_;
  const OnWarning on_warning_;
  std::shared_ptr<Allowed> allowed_;
  Mutex mutex_;
  std::shared_ptr<const Loaded> loaded_ MUSTER_GUARDED_BY(mutex_);
  Reload reload_ MUSTER_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point looked_ MUSTER_GUARDED_BY(mutex_){};
};

}  // namespace muster::tls
