#include "common/tls/authority.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "common/base/utf8.h"
#include "common/base/wall_time.h"

namespace muster::tls {
namespace {

constexpr long kVersion3 = 2;
// Serial numbers are positive, and no two alike.
constexpr std::size_t kSerialBytes = 16;
constexpr std::size_t kLongestName = 64;  // of a subject, by X.509

Status Failed(std::string_view what) {
  return Internal("OpenSSL cannot {}: {}", what, LastError());
}

std::string TextIn(BIO* out) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(out, &text);
  return {text, static_cast<std::size_t>(size)};
}

using OutPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
OutPtr Writer() { return {BIO_new(BIO_s_mem()), &BIO_free}; }

Result<std::string> PemOf(X509* certificate) {
  const OutPtr out = Writer();
  if (PEM_write_bio_X509(out.get(), certificate) != 1) return Failed("write a certificate");
  return TextIn(out.get());
}
Result<std::string> PemOf(EVP_PKEY* key) {
  const OutPtr out = Writer();
  if (PEM_write_bio_PKCS8PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("write a key");
  }
  return TextIn(out.get());
}

Status AddExtension(X509* to, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()), &X509_EXTENSION_free);
  if (extension == nullptr || X509_add_ext(to, extension.get(), -1) != 1) {
    return Failed(fmt::format("add \"{}\"", value));
  }
  return Ok();
}

// Whatever the two have in common; neither issuer nor signature.
Result<X509Ptr> Begin(const std::string& subject, const Period& period, EVP_PKEY* key) {
  if (period.until <= period.from) {
    return InvalidArgument("a certificate from {} until {} is never valid", UtcText(period.from),
                           UtcText(period.until));
  }
  X509Ptr made(X509_new());
  std::array<unsigned char, kSerialBytes> serial{};
  if (made == nullptr || RAND_bytes(serial.data(), serial.size()) != 1) {
    return Failed("begin a certificate");
  }
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7fU) | 0x40U);
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      BN_bin2bn(serial.data(), serial.size(), nullptr), &BN_free);
  const std::time_t from = std::chrono::system_clock::to_time_t(period.from);
  const std::time_t until = std::chrono::system_clock::to_time_t(period.until);
  const std::string name = Utf8Beginning(subject, kLongestName);
  if (X509_set_version(made.get(), kVersion3) != 1 ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(made.get())) == nullptr ||
      ASN1_TIME_set(X509_getm_notBefore(made.get()), from) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(made.get()), until) == nullptr ||
      X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                 0) != 1 ||
      X509_set_pubkey(made.get(), key) != 1) {
    return Failed("fill in a certificate");
  }
  return made;
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

Status CheckHostName(const std::string& host) {
  const bool good = !host.empty() && host.size() <= 253 && std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '*';
  });
  if (good || IsAddress(host)) return Ok();
  return InvalidArgument("host \"{}\": neither a name (letters, digits, - and .) nor an address",
                         host);
}

// A text that stands inside a list of OpenSSL's, where a comma would begin another name.
Status CheckName(Role role, const std::string& name) {
  const std::size_t colon = name.find(':');
  const bool digits = colon != std::string::npos && colon > 0 && colon + 1 < name.size() &&
                      std::all_of(name.begin() + static_cast<std::ptrdiff_t>(colon) + 1, name.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  const bool sound =
      !name.empty() && name.size() <= kLongestName && std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '.' || c == '_' || c == '@' || c == ':';
      });
  if (role == Role::kNode && !(sound && digits)) {
    return InvalidArgument("task \"{}\": must be type:index, for example ps:0", name);
  }
  if (sound) return Ok();
  return InvalidArgument("name \"{}\": 1 to {} letters, digits, and any of -._@: are allowed", name,
                         kLongestName);
}

}  // namespace

Result<Issued> MakeAuthority(const std::string& name, const Period& period) {
  if (FirstBadUtf8(name) != std::string::npos) {
    return InvalidArgument("name \"{}\": it is not UTF-8", name);
  }
  const KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  MUSTER_TRY_ASSIGN(const X509Ptr made, Begin(name, period, key.get()));
  if (X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) != 1) {
    return Failed("name the issuer");
  }
  MUSTER_TRY(
      AddExtension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  MUSTER_TRY(AddExtension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign"));
  MUSTER_TRY(AddExtension(made.get(), made.get(), NID_subject_key_identifier, "hash"));
  if (X509_sign(made.get(), key.get(), EVP_sha256()) == 0) return Failed("sign");
  Issued issued;
  MUSTER_TRY_ASSIGN(issued.certificate, PemOf(made.get()));
  MUSTER_TRY_ASSIGN(issued.key, PemOf(key.get()));
  return issued;
}

Result<Issued> Issue(const Issued& authority, const Wish& wish) {
  if (wish.holder.names.empty()) return InvalidArgument("a certificate for nobody");
  for (const std::string& name : wish.holder.names) MUSTER_TRY(CheckName(wish.holder.role, name));
  for (const std::string& host : wish.hosts) MUSTER_TRY(CheckHostName(host));
  MUSTER_TRY_ASSIGN(const X509Ptr issuer,
                    ParseCertificate(authority.certificate, "the authority's certificate"));
  MUSTER_TRY_ASSIGN(const KeyPtr issuer_key, ParseKey(authority.key, "the authority's key"));
  if (X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    return InvalidArgument("the authority's key is not the one of its certificate ({})",
                           SubjectOf(*issuer));
  }
  const KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  MUSTER_TRY_ASSIGN(const X509Ptr made, Begin(wish.holder.ToString(), wish.period, key.get()));
  if (X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get())) != 1) {
    return Failed("name the issuer");
  }
  std::vector<std::string> names;
  for (const std::string& uri : wish.holder.Uris()) names.push_back("URI:" + uri);
  for (const std::string& host : wish.hosts) {
    names.push_back((IsAddress(host) ? "IP:" : "DNS:") + host);
  }
  const bool node = wish.holder.role == Role::kNode;
  MUSTER_TRY(AddExtension(made.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE"));
  MUSTER_TRY(AddExtension(made.get(), issuer.get(), NID_key_usage, "critical,digitalSignature"));
  MUSTER_TRY(AddExtension(made.get(), issuer.get(), NID_ext_key_usage,
                          node ? "serverAuth,clientAuth" : "clientAuth"));
  MUSTER_TRY(AddExtension(made.get(), issuer.get(), NID_subject_alt_name,
                          fmt::format("{}", fmt::join(names, ","))));
  MUSTER_TRY(AddExtension(made.get(), issuer.get(), NID_subject_key_identifier, "hash"));
  MUSTER_TRY(AddExtension(made.get(), issuer.get(), NID_authority_key_identifier, "keyid"));
  if (X509_sign(made.get(), issuer_key.get(), EVP_sha256()) == 0) return Failed("sign");
  Issued issued;
  MUSTER_TRY_ASSIGN(issued.certificate, PemOf(made.get()));
  MUSTER_TRY_ASSIGN(issued.key, PemOf(key.get()));
  return issued;
}

}  // namespace muster::tls
