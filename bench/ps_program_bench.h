// The program path of `muster-bench ps`: what a program's client gets of its variables, beside what
// a model job's gets of its shards.
//
// Threading: one thread. Lifetime: the peer outlives it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bench/ps_peer.h"
#include "common/base/status.h"
#include "common/net/spin.h"
#include "ps/client/program_client.h"

namespace muster::bench {

class ProgramSide {
 public:
  // Reads of 4 KB that are asked for at once.
  static constexpr std::size_t kInFlight = 64;

  // `name` tells the kinds of links apart ("tls": encrypted).
  static Result<std::unique_ptr<ProgramSide>> Open(const Peer& peer, const std::string& name,
                                                   ps::LinkMode link, net::SpinMode spin);

  // One whole variable of kDense, into warm memory of this process.
  Status Read(std::size_t variable);
  // The same, lent by the client where the server has put it.
  Status View(std::size_t variable);
  // kInFlight variables of 4 KB in one call.
  Status ReadMany();
  // A write set with the gradient of one variable, under SGD; answered when it is applied.
  Status Write(std::size_t variable);

 private:
  ProgramSide() = default;

  std::unique_ptr<ps::ProgramClient> client_;
  std::vector<ps::VariableHandle> dense_;
  std::vector<ps::VariableHandle> small_;
  std::shared_ptr<std::vector<float>> memory_;
  std::vector<float> into_;
  std::uint64_t closure_ = 0;
};

}  // namespace muster::bench
