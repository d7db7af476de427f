// One TLS 1.3 connection without its socket: ciphertext goes in and comes out as bytes, plaintext
// too (a Stream of common/net carries the bytes; a test may carry them from one session to the
// other).
//
// Threading: one thread at a time. Lifetime: independent of the context that made it.
// Errors are final. kUnauthenticated, kPermissionDenied: who the peer is, or is not, in a sentence
// that says what to do; kDataLoss: what came is no TLS, or was tampered with.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/allowed.h"
#include "common/tls/certificate.h"

struct bio_st;
struct ssl_st;
struct ssl_ctx_st;
struct x509_store_ctx_st;

namespace muster::tls {

// A secret, and what the client calls it. Any length; it is hashed.
struct NamedKey {
  std::string name;
  std::string key;
};
// The secret that a client's name for it stands for; nothing: there is none.
using KeyNamed = std::function<std::optional<std::string>(std::string_view name)>;

class Session {
 public:
  // A secret of this connection alone that both ends compute: what is proven together with it was
  // proven here, and is not passed on from somewhere else.
  using Binding = std::array<std::byte, 32>;

  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Before a client's handshake: it says that "h2" will be spoken inside (ALPN). gRPC's servers end
  // a connection that does not.
  Status OfferHttp2();

  // One step. True: it is done; false: the peer's bytes are needed.
  Result<bool> Handshake();
  // After the handshake of Context::Accept(): who the peer's certificate says it is, held
  // against the list anew at each call.
  //   kUnauthenticated: it has shown none, one of a foreign authority, out of its dates, or
  //   revoked. kPermissionDenied: its certificate names no holder.
  Result<Holder> Visitor() const;
  Result<Binding> binding() const;

  // Plaintext that has come. 0: none, more ciphertext is needed, or ended().
  Result<std::size_t> Read(std::span<std::byte> into);
  // The peer has said that nothing more comes.
  bool ended() const { return ended_; }
  // Takes as much plaintext as there is room for in Waiting(); 0: none.
  Result<std::size_t> Write(std::span<const std::byte> bytes);
  // Says to the peer that nothing more comes.
  void End();

  // Where ciphertext of the peer goes next, and how much of it was used.
  std::span<std::byte> Room();
  void Came(std::size_t bytes);
  // Ciphertext for the peer, and how much of it has gone.
  std::span<const std::byte> Waiting();
  void Went(std::size_t bytes);
  // Some ciphertext has come that Read() has not used.
  bool has_input() const;

 private:
  friend class Context;
  friend class KeyContext;
  Session() = default;
  // Both sides' common part.
  static Result<std::unique_ptr<Session>> Make(ssl_ctx_st* context, bool server);
  static int OnVerify(int good, x509_store_ctx_st* store);
  // What there is against a peer's certificate ends no handshake: it stays in verdict_.
  void LetInAll();
  Status Explain(int result);
  Status CheckServer();

  ssl_st* ssl_ = nullptr;
  bio_st* network_ = nullptr;
  bool server_ = false;
  bool lets_in_all_ = false;
  bool done_ = false;
  bool ended_ = false;
  // The client's of a session by keys, and what the server looks its clients' up by.
  std::optional<NamedKey> key_;
  KeyNamed keys_;
  // What the server's certificate must name; empty: any task.
  std::string wanted_task_;
  // Name or address that it must be for; empty: any host.
  std::string wanted_host_;
  // What OnVerify() found.
  Status verdict_;
  // Null: there is no list.
  std::shared_ptr<Allowed> allowed_;
};

}  // namespace muster::tls
