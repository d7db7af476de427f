// Certificates of a cluster: who may do what, as a certificate says it, and until when.
//
// A certificate names its holder in URIs of its subject's alternative names: "muster://node/ps:1"
// (a daemon that may be that task; several such URIs: any of them), "muster://submitter/ana",
// "muster://viewer/bob". What else stands in a certificate decides nothing but its dates, and the
// names of hosts that the control plane's server is looked for at.
//
// Threading: values; any thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// OpenSSL's own; its headers stay out of ours.
struct x509_st;
struct evp_pkey_st;

namespace muster::tls {

// A node may do all that a submitter may, a submitter all that a viewer may.
enum class Role { kViewer, kSubmitter, kNode };
std::string_view RoleName(Role role);
// kInvalidArgument: there is no such role; says which there are.
Result<Role> RoleNamed(std::string_view name);

struct Holder {
  Role role = Role::kViewer;
  // Tasks of a node ("ps:1"); of a person the one name.
  std::vector<std::string> names;

  // "node ps:1, worker:0", "submitter ana".
  std::string ToString() const;
  // "muster://node/ps:1".
  std::vector<std::string> Uris() const;
};

struct FreeX509 {
  void operator()(x509_st* one) const;
};
struct FreeKey {
  void operator()(evp_pkey_st* one) const;
};
using X509Ptr = std::unique_ptr<x509_st, FreeX509>;
using KeyPtr = std::unique_ptr<evp_pkey_st, FreeKey>;

// The first certificate of a PEM text.
//   kInvalidArgument: there is none; `what` says whose it is.
Result<X509Ptr> ParseCertificate(std::string_view pem, const std::string& what);
Result<KeyPtr> ParseKey(std::string_view pem, const std::string& what);

//   kPermissionDenied: the certificate names no holder, or two roles.
Result<Holder> HolderOf(const x509_st& certificate);

// Names and addresses of hosts that it is for.
std::vector<std::string> HostsOf(const x509_st& certificate);
// kPermissionDenied: it is for other hosts, which are named. `host` may be a numeric address.
Status CheckHost(const x509_st& certificate, const std::string& host);

struct Period {
  std::chrono::system_clock::time_point from;
  std::chrono::system_clock::time_point until;
};
// What is before 1970 or after 2262-04-11 is told as these.
Period PeriodOf(const x509_st& certificate);
// kUnauthenticated: not yet, or not any more; says since when, and what to do. `what` says whose
// certificate it is.
Status CheckPeriod(const x509_st& certificate, std::chrono::system_clock::time_point now,
                   const std::string& what);

// The certificate's subject on one line.
std::string SubjectOf(const x509_st& certificate);
// The issuer's.
std::string IssuerOf(const x509_st& certificate);

// SHA-256 of the certificate, 64 digits.
std::string FingerprintOf(const x509_st& certificate);
// Its holder ("node ps:1"), else its subject: for messages.
std::string WhoseOf(const x509_st& certificate);

// What OpenSSL says about the last thing that failed on this thread.
std::string LastError();

}  // namespace muster::tls
