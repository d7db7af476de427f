#include "common/tls/certificate.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/base/wall_time.h"
#include "common/base/words.h"

namespace muster::tls {
namespace {

constexpr std::string_view kScheme = "muster://";
constexpr std::array kRoles = {Role::kViewer, Role::kSubmitter, Role::kNode};

struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};
struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPtr = std::unique_ptr<BIO, FreeBio>;

BioPtr Reader(std::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string AddressOf(const ASN1_STRING* bytes) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  // Whoever makes a certificate chooses the length.
  const auto length = static_cast<std::size_t>(ASN1_STRING_length(bytes));
  const int family = length == sizeof(in_addr) ? AF_INET : AF_INET6;
  if (family == AF_INET6 && length != sizeof(in6_addr)) return "?";
  if (::inet_ntop(family, ASN1_STRING_get0_data(bytes), text.data(), text.size()) == nullptr) {
    return "?";
  }
  return text.data();
}

template <class Use>
void ForEachName(const x509_st& certificate, const Use& use) {
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    use(*sk_GENERAL_NAME_value(names.get(), i));
  }
}

// A certificate without an end says the year 9999 (RFC 5280); a clock of nanoseconds ends in 2262.
std::chrono::system_clock::time_point TimeOf(const ASN1_TIME* time) {
  using std::chrono::system_clock;
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return {};
  static constexpr std::time_t kLast =
      std::chrono::floor<std::chrono::seconds>(system_clock::duration::max()).count();
  return system_clock::from_time_t(std::clamp<std::time_t>(::timegm(&parts), 0, kLast));
}

std::string OneLine(const X509_NAME* name) {
  const BioPtr out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<std::size_t>(size)};
}

}  // namespace

void FreeX509::operator()(x509_st* one) const { X509_free(one); }
void FreeKey::operator()(evp_pkey_st* one) const { EVP_PKEY_free(one); }

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kSubmitter:
      return "submitter";
    case Role::kNode:
      return "node";
  }
  return "?";
}

Result<Role> RoleNamed(std::string_view name) {
  for (const Role role : kRoles) {
    if (name == RoleName(role)) return role;
  }
  return InvalidArgument("there is no role \"{}\"; choose node, submitter or viewer", name);
}

std::string Holder::ToString() const { return fmt::format("{} {}", RoleName(role), Joined(names)); }

std::vector<std::string> Holder::Uris() const {
  std::vector<std::string> uris;
  for (const std::string& name : names) {
    uris.push_back(fmt::format("{}{}/{}", kScheme, RoleName(role), name));
  }
  return uris;
}

std::string LastError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason is known" : reason;
}

Result<X509Ptr> ParseCertificate(std::string_view pem, const std::string& what) {
  X509Ptr certificate(PEM_read_bio_X509(Reader(pem).get(), nullptr, nullptr, nullptr));
  if (certificate != nullptr) return certificate;
  return InvalidArgument("{}: no certificate in PEM form is in it ({})", what, LastError());
}

Result<KeyPtr> ParseKey(std::string_view pem, const std::string& what) {
  // Without this a key with a passphrase would ask the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  KeyPtr key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_passphrase, nullptr));
  if (key != nullptr) return key;
  return InvalidArgument("{}: no private key in PEM form, without a passphrase, is in it ({})",
                         what, LastError());
}

Result<Holder> HolderOf(const x509_st& certificate) {
  Holder holder;
  Status mixed = Ok();
  ForEachName(certificate, [&](const GENERAL_NAME& name) {
    if (name.type != GEN_URI) return;
    const std::string uri = TextOf(name.d.uniformResourceIdentifier);
    if (!uri.starts_with(kScheme)) return;
    const std::string_view rest = std::string_view(uri).substr(kScheme.size());
    const std::size_t slash = rest.find('/');
    const Result<Role> role = RoleNamed(rest.substr(0, slash));
    const bool named = slash != std::string_view::npos && slash + 1 < rest.size();
    if (!role.ok() || !named || (!holder.names.empty() && *role != holder.role)) {
      mixed = PermissionDenied(
          "the certificate of {} says \"{}\", which makes no role with the "
          "rest of it",
          SubjectOf(certificate), uri);
      return;
    }
    holder.role = *role;
    holder.names.emplace_back(rest.substr(slash + 1));
  });
  MUSTER_TRY(mixed);
  if (!holder.names.empty()) return holder;
  return PermissionDenied(
      "the certificate of {} names no role: it needs a URI like muster://submitter/ana (made by "
      "`muster certs issue`)",
      SubjectOf(certificate));
}

std::vector<std::string> HostsOf(const x509_st& certificate) {
  std::vector<std::string> hosts;
  ForEachName(certificate, [&](const GENERAL_NAME& name) {
    if (name.type == GEN_DNS) hosts.push_back(TextOf(name.d.dNSName));
    if (name.type == GEN_IPADD) hosts.push_back(AddressOf(name.d.iPAddress));
  });
  return hosts;
}

Status CheckHost(const x509_st& certificate, const std::string& host) {
  // Neither function changes it.
  auto* one = const_cast<x509_st*>(&certificate);
  if (X509_check_ip_asc(one, host.c_str(), 0) == 1 ||
      // What a subject is called is no host (RFC 9525, section 2).
      X509_check_host(one, host.data(), host.size(), X509_CHECK_FLAG_NEVER_CHECK_SUBJECT,
                      nullptr) == 1) {
    return Ok();
  }
  const std::vector<std::string> hosts = HostsOf(certificate);
  return PermissionDenied(
      "{} shows a certificate of {} for other hosts ({}): connect by one of those, or issue one "
      "with --host {}",
      host, SubjectOf(certificate), hosts.empty() ? "none" : Joined(hosts), host);
}

Period PeriodOf(const x509_st& certificate) {
  return {TimeOf(X509_get0_notBefore(&certificate)), TimeOf(X509_get0_notAfter(&certificate))};
}

Status CheckPeriod(const x509_st& certificate, std::chrono::system_clock::time_point now,
                   const std::string& what) {
  const Period period = PeriodOf(certificate);
  if (now > period.until) {
    return Unauthenticated("{} has expired at {}: issue another one (muster certs issue)", what,
                           UtcText(period.until));
  }
  if (now < period.from) {
    return Unauthenticated("{} is not valid before {}, and it is {} here: look at the clocks", what,
                           UtcText(period.from), UtcText(now));
  }
  return Ok();
}

std::string SubjectOf(const x509_st& certificate) {
  return OneLine(X509_get_subject_name(&certificate));
}
std::string FingerprintOf(const x509_st& certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (X509_digest(&certificate, EVP_sha256(), digest.data(), &size) != 1) return "";
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}
std::string WhoseOf(const x509_st& certificate) {
  const Result<Holder> holder = HolderOf(certificate);
  return holder.ok() ? holder->ToString() : SubjectOf(certificate);
}
std::string IssuerOf(const x509_st& certificate) {
  return OneLine(X509_get_issuer_name(&certificate));
}

}  // namespace muster::tls
