// The other process of `muster-bench ps`: a parameter server, and a bare socket to compare it with.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/scratch.h"
#include "bench/self_process.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "common/tls/key_context.h"
#include "muster/v1/common.pb.h"

namespace muster::bench {

struct DenseVariable {
  const char* name;
  std::int64_t floats;
};
inline constexpr DenseVariable kDense[] = {{"4 KB", 1 << 10},
                                           {"64 KB", 16 << 10},
                                           {"1 MB", 256 << 10},
                                           {"16 MB", 4 << 20},
                                           {"64 MB", 16 << 20}};
inline constexpr std::int64_t kTableRows = 200'000;
inline constexpr std::int64_t kRowFloats = 64;

// Dense variables under SGD (job 1), or one table of rows under Adagrad (job 2).
v1::JobPlan DensePlan();
v1::JobPlan RowsPlan();

class Peer {
 public:
  // Starts this program again as the peer; with `pin` on the second processor.
  static Result<std::unique_ptr<Peer>> Start(bool pin);
  ~Peer();

  // Adds the peer's address to a plan; `tls`: of the server whose TCP connections are encrypted.
  // Both serve the same shards.
  void Complete(v1::JobPlan& plan, bool tls) const;
  // What clients of that one say beside the token; sessions are by keys, without certificates.
  const std::shared_ptr<tls::KeyContext>& tls() const { return tls_; }
  const std::string& token() const { return token_; }
  const std::string& host_id() const { return host_id_; }

  // The bare socket: n bytes one way, a few the other; blocking, at most 1 MiB an operation.
  Status BarePull(std::span<std::byte> into);
  Status BarePush(std::span<const std::byte> bytes);

 private:
  Peer() = default;
  std::unique_ptr<Scratch> scratch_;
  std::string token_;
  std::string host_id_;
  std::string tcp_address_;
  std::string tls_address_;
  std::shared_ptr<tls::KeyContext> tls_ = tls::KeyContext::Make();
  std::string unix_path_;
  net::Fd bare_;
  std::unique_ptr<SelfProcess> process_;
};

// main() of the peer: serves until its standard input ends.
int RunPeer();

}  // namespace muster::bench
