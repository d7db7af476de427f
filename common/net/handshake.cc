#include "common/net/handshake.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "common/net/proof.h"

namespace muster::net {
namespace {

constexpr std::string_view kClientLabel = "muster hello 1";
constexpr std::string_view kServerLabel = "muster welcome 1";
constexpr std::string_view kJobLabel = "muster job key 1";
constexpr const char* kWhatProves = "the token, or the job's key, that this process has";
constexpr std::size_t kMaxName = 256;
// In WELCOME's meta, before the proof.
constexpr std::byte kPayloadCrc{1};

using Bytes = std::span<const std::byte>;

Bytes BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

// Subject, nonce, u16 length + role, u16 length + host id.
std::vector<std::byte> EncodeHello(const Hello& hello, const Nonce& nonce) {
  std::vector<std::byte> out;
  const auto put = [&out](const void* data, std::size_t n) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out.insert(out.end(), bytes, bytes + n);
  };
  put(hello.subject.data(), hello.subject.size());
  put(nonce.data(), nonce.size());
  for (const std::string* name : {&hello.role, &hello.host_id}) {
    const auto length = static_cast<std::uint16_t>(name->size());
    put(&length, sizeof(length));
    put(name->data(), name->size());
  }
  return out;
}

struct ReceivedHello {
  Hello hello;
  // What has proven it.
  std::string key;
  Nonce nonce{};
  Proof proof{};
  // What the proof covers, without the label and the server's nonce.
  std::vector<std::byte> body;
};

Result<ReceivedHello> DecodeHello(Bytes meta) {
  ReceivedHello received;
  const Status malformed = DataLoss("HELLO of {} bytes is malformed", meta.size());
  if (meta.size() < received.proof.size()) return malformed;
  Bytes left = meta.first(meta.size() - received.proof.size());
  received.body.assign(left.begin(), left.end());
  std::memcpy(received.proof.data(), meta.data() + left.size(), received.proof.size());
  const auto take = [&left](void* into, std::size_t n) {
    if (left.size() < n) return false;
    std::memcpy(into, left.data(), n);
    left = left.subspan(n);
    return true;
  };
  Hello& hello = received.hello;
  if (!take(hello.subject.data(), hello.subject.size()) ||
      !take(received.nonce.data(), received.nonce.size())) {
    return malformed;
  }
  for (std::string* name : {&hello.role, &hello.host_id}) {
    std::uint16_t length = 0;
    if (!take(&length, sizeof(length)) || length > kMaxName || length > left.size()) {
      return malformed;
    }
    name->resize(length);
    (void)take(name->data(), length);
  }
  if (!left.empty()) return malformed;
  return received;
}

// What a client calls its key: all that the server looks it up by.
std::string KeyName(const std::string& role, const Subject& subject) {
  return std::string(reinterpret_cast<const char*>(subject.data()), subject.size()) + role;
}
std::optional<std::string> KeyBehind(std::string_view name, const Identity& self,
                                     const KeyOf& key_of) {
  Hello hello;
  if (name.size() < hello.subject.size() || name.size() > hello.subject.size() + kMaxName) {
    return std::nullopt;
  }
  std::memcpy(hello.subject.data(), name.data(), hello.subject.size());
  hello.role = name.substr(hello.subject.size());
  return key_of ? key_of(hello) : self.token;
}

// Puts TLS on the channel where it is due; what the proofs are bound to, empty in the clear.
Result<std::vector<std::byte>> Encrypt(Channel& channel,
                                       Result<std::unique_ptr<tls::Session>> session,
                                       TimePoint deadline) {
  MUSTER_TRY(session.status());
  Stream* const stream = channel.link().stream();
  if (stream == nullptr) return Internal("{}: a link that takes no TLS", channel.link().peer());
  const Status shaken = stream->Encrypt(*std::move(session), deadline);
  if (!shaken.ok()) return Annotate(shaken, channel.link().peer());
  MUSTER_TRY_ASSIGN(const tls::Session::Binding binding, stream->session().binding());
  return std::vector<std::byte>(binding.begin(), binding.end());
}

bool WantsTls(const Channel& channel, const Identity& self) {
  return self.tls != nullptr && channel.link().kind() == LinkKind::kTcp;
}

// Over a Unix socket memory is shared, and who has it in hand is trusted with its contents. For
// another user there is TCP, as for another host.
Status RequireSameUser(Channel& channel) {
  if (channel.link().kind() != LinkKind::kUnix) return Ok();
  const std::string& peer = channel.link().peer();
  const Stream* const stream = channel.link().stream();
  if (stream == nullptr) return Internal("{}: a Unix link without a socket", peer);
  ucred theirs{};
  socklen_t size = sizeof(theirs);
  if (::getsockopt(stream->fd(), SOL_SOCKET, SO_PEERCRED, &theirs, &size) != 0) {
    return Annotate(FromErrno(errno, "ask whose process it is"), peer);
  }
  if (theirs.uid == ::geteuid()) return Ok();
  return Unavailable(
      "{}: the process at the other end of this Unix socket is user {}'s, and this one user {}'s: "
      "shared memory is for processes of one user. Run both as one, or connect them by TCP",
      peer, theirs.uid, ::geteuid());
}

Proof ClientProof(const std::string& token, const Nonce& server, Bytes body, Bytes binding) {
  const std::array<Bytes, 4> parts = {BytesOf(kClientLabel), server, body, binding};
  return Hmac(token, parts);
}

Proof ServerProof(const std::string& token, const Nonce& server, const Nonce& client,
                  std::byte options, Bytes binding) {
  const std::array<Bytes, 5> parts = {BytesOf(kServerLabel), server, client, Bytes(&options, 1),
                                      binding};
  return Hmac(token, parts);
}

Result<FrameHeader> Expect(Channel& channel, FrameKind kind, TimePoint deadline) {
  MUSTER_TRY_ASSIGN(const std::optional<FrameHeader> header, channel.ReadFrame(deadline));
  const std::string& peer = channel.link().peer();
  if (!header.has_value()) return Unavailable("{} closed the connection in the handshake", peer);
  if (header->status != 0) return Annotate(StatusOf(*header, channel.meta()), peer);
  if (header->kind != kind || header->payload_bytes != 0) {
    return DataLoss("{}: frame of kind {} where the handshake needs {}", peer, header->kind, kind);
  }
  return *header;
}

Result<ReceivedHello> ReceiveHello(Channel& channel, const Identity& self, const KeyOf& key_of,
                                   const Nonce& nonce, Bytes binding, TimePoint deadline) {
  MUSTER_TRY_ASSIGN([[maybe_unused]] const FrameHeader header, Expect(channel, kHello, deadline));
  MUSTER_TRY_ASSIGN(ReceivedHello received, DecodeHello(channel.meta()));
  received.key = key_of ? key_of(received.hello) : self.token;
  if (!SameProof(received.proof, ClientProof(received.key, nonce, received.body, binding))) {
    return Unauthenticated("{} does not know {}", channel.link().peer(),
                           key_of ? "the key of " + received.hello.role : kWhatProves);
  }
  return received;
}

}  // namespace

std::string JobKey(std::string_view token, std::string_view job_id, Epoch epoch) {
  // The epoch's length is fixed, so no other job and epoch give the same bytes.
  const std::uint64_t number = epoch.value();
  const std::array<Bytes, 3> parts = {BytesOf(kJobLabel), std::as_bytes(std::span(&number, 1)),
                                      BytesOf(job_id)};
  const Proof key = Hmac(token, parts);
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

// NONCE, HELLO, WELCOME, over TLS where that is due. A peer that may not come in hears the reason
// instead; nothing of its hello is believed before its proof has been checked.
Result<Hello> WelcomeClient(Channel& channel, const Identity& self, TimePoint deadline,
                            const std::function<Status(const Hello&)>& admit, const KeyOf& key_of) {
  if (const Status same = RequireSameUser(channel); !same.ok()) {
    (void)channel.SendError({}, kNonce, same, deadline);
    return same;
  }
  std::vector<std::byte> binding;
  if (WantsTls(channel, self)) {
    const auto key_named = [&](std::string_view name) { return KeyBehind(name, self, key_of); };
    MUSTER_TRY_ASSIGN(binding, Encrypt(channel, self.tls->Accept(key_named), deadline));
  }
  const Nonce nonce = RandomNonce();
  MUSTER_TRY(channel.Send({.kind = kNonce}, nonce, {}, deadline));
  auto received = ReceiveHello(channel, self, key_of, nonce, binding, deadline);
  Status verdict = received.status();
  if (verdict.ok()) verdict = admit(received->hello);
  if (!verdict.ok()) {
    (void)channel.SendError({}, kWelcome, verdict, deadline);
    return verdict;
  }
  const bool crc =
      channel.link().kind() == LinkKind::kTcp && received->hello.host_id != self.host_id;
  const std::byte options = crc ? kPayloadCrc : std::byte{0};
  const Proof proof = ServerProof(received->key, nonce, received->nonce, options, binding);
  std::array<std::byte, 1 + sizeof(Proof)> meta;
  meta[0] = options;
  std::memcpy(meta.data() + 1, proof.data(), proof.size());
  MUSTER_TRY(channel.Send({.kind = kWelcome}, meta, {}, deadline));
  if (crc) channel.UsePayloadCrc();
  return std::move(received->hello);
}

// The other side of it. The server proves itself last: until then it has seen a proof that is bound
// to its own nonce, which is of no use with another server.
Status GreetServer(Channel& channel, const Identity& self, const std::string& role,
                   const Subject& subject, TimePoint deadline) {
  MUSTER_TRY(RequireSameUser(channel));
  std::vector<std::byte> binding;
  if (WantsTls(channel, self)) {
    const tls::NamedKey key{.name = KeyName(role, subject), .key = self.token};
    MUSTER_TRY_ASSIGN(binding, Encrypt(channel, self.tls->Connect(key), deadline));
  }
  MUSTER_TRY_ASSIGN([[maybe_unused]] const FrameHeader first, Expect(channel, kNonce, deadline));
  Nonce theirs{};
  if (channel.meta().size() != theirs.size()) {
    return DataLoss("{}: NONCE of {} bytes, must be {}", channel.link().peer(),
                    channel.meta().size(), theirs.size());
  }
  std::memcpy(theirs.data(), channel.meta().data(), theirs.size());

  const Nonce ours = RandomNonce();
  const Hello hello{.role = role.substr(0, kMaxName),
                    .host_id = self.host_id.substr(0, kMaxName),
                    .subject = subject};
  std::vector<std::byte> meta = EncodeHello(hello, ours);
  const Proof proof = ClientProof(self.token, theirs, meta, binding);
  meta.insert(meta.end(), proof.begin(), proof.end());
  MUSTER_TRY(channel.Send({.kind = kHello}, meta, {}, deadline));

  MUSTER_TRY_ASSIGN([[maybe_unused]] const FrameHeader welcome,
                    Expect(channel, kWelcome, deadline));
  Proof got{};
  if (channel.meta().size() != 1 + got.size()) {
    return DataLoss("{}: WELCOME of {} bytes, must be {}", channel.link().peer(),
                    channel.meta().size(), 1 + got.size());
  }
  const std::byte options = channel.meta()[0];
  std::memcpy(got.data(), channel.meta().data() + 1, got.size());
  if (!SameProof(got, ServerProof(self.token, theirs, ours, options, binding))) {
    return Unauthenticated("{} does not know {}", channel.link().peer(), kWhatProves);
  }
  if ((options & kPayloadCrc) != std::byte{0}) channel.UsePayloadCrc();
  return Ok();
}

}  // namespace muster::net
