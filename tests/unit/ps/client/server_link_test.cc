// Calls that one frame does not hold.
#include "ps/client/server_link.h"

#include "tests/support/catch.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps {
namespace {

using testing::kJob;
using testing::OneVariable;
using testing::SmallCluster;

// The answers to each frame are more than a link holds, and so is each frame.
TEST_CASE("a call of more shards than a frame holds ends over either link", "[ps_client][unit]") {
  constexpr std::size_t kFrames = 4;
  constexpr std::size_t kFloats = 32;
  const LinkMode mode = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  const Verb verb = GENERATE(Verb::kPullDense, Verb::kPush);
  const SmallCluster cluster(OneVariable(kFloats), 1);
  auto arena = net::Arena::Create(std::size_t{1} << 20, mode == LinkMode::kLocal);
  REQUIRE(arena.ok());
  const auto bytes = arena->Allocate(kFloats * sizeof(float));
  REQUIRE(bytes.ok());
  const std::span values(reinterpret_cast<float*>(bytes->data()), kFloats);
  const v1::DataEndpoint& server = cluster.plan().ps(0).data();
  const WireSubject job{.job = kJob, .view = ViewId(1)};
  net::SpinLimit spin(1);
  ServerLink link({.index = 0,
                   .tcp_address = server.tcp_address(),
                   .unix_path = server.unix_path(),
                   .host_id = server.host_id()},
                  job,
                  {.key = testing::ModelKey(),
                   .role = RoleOf(kModelRole, testing::kJobId),
                   .subject = SubjectOf(job),
                   .link = mode,
                   .host_id = cluster.host_id()},
                  *arena, &spin);
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  REQUIRE(link.Connect(deadline).ok());
  Call call{.verb = verb, .closure = ClosureId(1), .attempt = Attempt(1), .entries = {}};
  call.entries.assign(kFrames * kMaxEntries,
                      {.shard = 0, .access = WireAccess::kDense, .ids = {}, .values = values});

  const Status sent = link.Send(call, deadline);
  const Status received = sent.ok() ? link.Receive(call, deadline) : sent;

  CAPTURE(ToString(received));
  REQUIRE(received.ok());
  CHECK(link.connected());
  // The same shard over and over, which is no repetition within one call.
  CHECK(call.entries.back().result == static_cast<std::uint64_t>(WireOutcome::kApplied));
}

}  // namespace
}  // namespace muster::ps
