#include "common/tls/session.h"

#include <algorithm>
#include <cstring>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace muster::tls {
namespace {

// Each way. Fewer and larger calls of the kernel than a record's 16 KiB would make.
constexpr std::size_t kBuffer = std::size_t{256} << 10;
constexpr std::size_t kRecord = std::size_t{16} << 10;
// Above what a record adds to its bytes.
constexpr int kRecordRoom = (16 << 10) + 512;
constexpr std::string_view kBindingLabel = "EXPORTER-muster hello 1";

// Before a call whose error is asked for. There is nearly never one from before, and to clear an
// empty queue takes a tenth of a small record's time.
void ForgetErrors() {
  if (ERR_peek_error() != 0) ERR_clear_error();
}

Session* SessionOf(const SSL* ssl) { return static_cast<Session*>(SSL_get_app_data(ssl)); }

// What an alert of the peer says of our own certificate or key.
std::optional<Status> FromAlert(int reason) {
  switch (reason) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return Unauthenticated(
          "it refused this process's certificate: its tls-ca does not have the authority that "
          "issued it. Use a certificate of its authority, or add this one's to its file");
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return Unauthenticated(
          "it refused this process's certificate: expired, or not valid yet by its clock. Issue "
          "another one (muster certs issue)");
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return Unauthenticated(
          "it wants a certificate and this process has none: give tls-ca, tls-cert and tls-key");
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return Unauthenticated("it refused this process's certificate; its log says why");
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return Unauthenticated(
          "it refused this process's certificate: it has been revoked, its line is not on the list "
          "there (tls-allowed). Issue another one (muster certs issue)");
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return Unauthenticated("it refused this process's key: it is of another cluster or job");
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
    case SSL_R_TLSV13_ALERT_MISSING_EXTENSION:
      return Unauthenticated("it speaks TLS, but takes none of the ways that this process offers");
    default:
      return std::nullopt;
  }
}

bool IsPlainText(int reason) {
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
         reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_PACKET_LENGTH_TOO_LONG ||
         reason == SSL_R_RECORD_LENGTH_MISMATCH || reason == SSL_R_BAD_RECORD_TYPE;
}

std::string NameOf(const X509& certificate) {
  return fmt::format("its certificate ({})", SubjectOf(certificate));
}

Status CheckDates(const X509& certificate) {
  return CheckPeriod(certificate, std::chrono::system_clock::now(), NameOf(certificate));
}

Status VerdictOn(X509_STORE_CTX* store) {
  const X509* certificate = X509_STORE_CTX_get_current_cert(store);
  const int error = X509_STORE_CTX_get_error(store);
  if (certificate == nullptr) {
    return Unauthenticated("the peer's certificate: {}", X509_verify_cert_error_string(error));
  }
  const std::string what = NameOf(*certificate);
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID: {
      const Status period = CheckDates(*certificate);
      if (!period.ok()) return period;
      break;
    }
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return Unauthenticated(
          "{} was issued by {}, an authority that is not in this process's tls-ca: it belongs to "
          "another cluster, or add that authority",
          what, IssuerOf(*certificate));
    default:
      break;
  }
  return Unauthenticated("{}: {}", what, X509_verify_cert_error_string(error));
}

}  // namespace

Session::~Session() {
  SSL_free(ssl_);  // and its own half of the pair
  BIO_free(network_);
}

Result<std::unique_ptr<Session>> Session::Make(ssl_ctx_st* context, bool server) {
  std::unique_ptr<Session> made(new Session());
  BIO* internal = nullptr;
  made->ssl_ = SSL_new(context);
  if (made->ssl_ == nullptr ||
      BIO_new_bio_pair(&internal, kBuffer, &made->network_, kBuffer) != 1) {
    return ResourceExhausted("no memory for a TLS connection: {}", LastError());
  }
  SSL_set_bio(made->ssl_, internal, internal);
  SSL_set_app_data(made->ssl_, made.get());
  SSL_set_verify(made->ssl_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, OnVerify);
  made->server_ = server;
  if (server) {
    SSL_set_accept_state(made->ssl_);
  } else {
    SSL_set_connect_state(made->ssl_);
  }
  return made;
}

int Session::OnVerify(int good, x509_store_ctx_st* store) {
  const auto* ssl = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  Session& session = *SessionOf(ssl);
  const int refused = session.lets_in_all_ ? 1 : 0;
  if (good != 1) {
    session.verdict_ = VerdictOn(store);
    return refused;
  }
  // Who is let in all the same is asked about each certificate of the chain: the first fault stays.
  if (!session.verdict_.ok()) return refused;
  if (X509_STORE_CTX_get_error_depth(store) > 0) return 1;
  const X509* const certificate = X509_STORE_CTX_get_current_cert(store);
  session.verdict_ = CheckAllowed(*certificate, session.allowed_.get());
  if (session.verdict_.ok()) return 1;
  X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REVOKED);  // the alert that the peer hears
  return refused;
}

void Session::LetInAll() {
  lets_in_all_ = true;
  SSL_set_verify(ssl_, SSL_VERIFY_PEER, OnVerify);
}

Status Session::OfferHttp2() {
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  if (SSL_set_alpn_protos(ssl_, kHttp2, sizeof(kHttp2)) == 0) return Ok();
  return ResourceExhausted("no memory for a TLS connection: {}", LastError());
}

Result<Holder> Session::Visitor() const {
  const X509* const certificate = SSL_get0_peer_certificate(ssl_);
  if (certificate == nullptr) return Unauthenticated("it shows no certificate");
  MUSTER_TRY(verdict_);
  // The connection may stand longer than what was good when it began.
  MUSTER_TRY(CheckDates(*certificate));
  MUSTER_TRY(CheckAllowed(*certificate, allowed_.get()));
  return HolderOf(*certificate);
}

Result<bool> Session::Handshake() {
  if (done_) return true;
  ForgetErrors();
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    if (SSL_get_error(ssl_, result) == SSL_ERROR_WANT_READ) return false;
    return Explain(result);
  }
  MUSTER_TRY(CheckServer());
  done_ = true;
  return true;
}

Status Session::CheckServer() {
  const X509* certificate = SSL_get0_peer_certificate(ssl_);
  if (server_ || certificate == nullptr) return Ok();  // by a key
  MUSTER_TRY_ASSIGN(const Holder holder, HolderOf(*certificate));
  if (holder.role != Role::kNode) {
    return PermissionDenied("it shows the certificate of {}, which is no server's",
                            holder.ToString());
  }
  if (!wanted_task_.empty() && !std::ranges::count(holder.names, wanted_task_)) {
    return PermissionDenied("it should be {}, and shows the certificate of {}", wanted_task_,
                            holder.ToString());
  }
  return wanted_host_.empty() ? Ok() : CheckHost(*certificate, wanted_host_);
}

// The last error of OpenSSL as a sentence about the peer.
Status Session::Explain(int result) {
  const int kind = SSL_get_error(ssl_, result);
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const std::string said = LastError();
  if (!verdict_.ok()) return verdict_;
  if (kind == SSL_ERROR_SYSCALL || kind == SSL_ERROR_ZERO_RETURN) {
    return Unavailable("it closed the connection in the TLS handshake");
  }
  if (auto status = FromAlert(reason)) return *std::move(status);
  if (!done_ && IsPlainText(reason)) {
    return Unauthenticated(
        "it speaks plain text where TLS is needed: give it tls-ca, tls-cert and tls-key, as all of "
        "a cluster must have");
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Unauthenticated("it shows no certificate: give it tls-ca, tls-cert and tls-key");
  }
  if (reason == SSL_R_BINDER_DOES_NOT_VERIFY) {
    return Unauthenticated("it does not have the key that it names");
  }
  if (!done_) return Unauthenticated("no TLS with it: {}", said);
  return DataLoss("TLS: {}", said);
}

Result<Session::Binding> Session::binding() const {
  Binding bytes{};
  if (SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
                                 kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0) == 1) {
    return bytes;
  }
  return Internal("TLS gives no secret to bind to: {}", LastError());
}

Result<std::size_t> Session::Read(std::span<std::byte> into) {
  std::size_t filled = 0;
  while (filled < into.size()) {
    ForgetErrors();
    std::size_t got = 0;
    const int result = SSL_read_ex(ssl_, into.data() + filled, into.size() - filled, &got);
    filled += got;
    if (result == 1) {
      // Asking for more than there is costs as much as a small record.
      if (!has_input()) break;
      continue;
    }
    const int kind = SSL_get_error(ssl_, result);
    if (kind == SSL_ERROR_WANT_READ || filled > 0) break;
    ended_ = kind == SSL_ERROR_ZERO_RETURN;
    if (ended_) break;
    return Explain(result);
  }
  return filled;
}

Result<std::size_t> Session::Write(std::span<const std::byte> bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && BIO_get_write_guarantee(SSL_get_wbio(ssl_)) >= kRecordRoom) {
    ForgetErrors();
    std::size_t wrote = 0;
    const std::size_t most = std::min(bytes.size() - taken, kRecord);
    const int result = SSL_write_ex(ssl_, bytes.data() + taken, most, &wrote);
    if (result != 1) return Explain(result);
    taken += wrote;
  }
  return taken;
}

void Session::End() {
  if (!done_) return;
  ForgetErrors();
  (void)SSL_shutdown(ssl_);
}

std::span<std::byte> Session::Room() {
  char* at = nullptr;
  const int room = BIO_nwrite0(network_, &at);
  return {reinterpret_cast<std::byte*>(at), static_cast<std::size_t>(std::max(room, 0))};
}
void Session::Came(std::size_t bytes) {
  char* at = nullptr;
  (void)BIO_nwrite(network_, &at, static_cast<int>(bytes));
}

std::span<const std::byte> Session::Waiting() {
  char* at = nullptr;
  const int waiting = BIO_nread0(network_, &at);
  return {reinterpret_cast<const std::byte*>(at), static_cast<std::size_t>(std::max(waiting, 0))};
}
void Session::Went(std::size_t bytes) {
  char* at = nullptr;
  (void)BIO_nread(network_, &at, static_cast<int>(bytes));
}

bool Session::has_input() const {
  return BIO_pending(SSL_get_rbio(ssl_)) > 0 || SSL_has_pending(ssl_) == 1;
}

}  // namespace muster::tls
