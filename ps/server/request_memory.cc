#include "ps/server/request_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ps/server/server_context.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

// Up to here a transfer uses the connection's own buffer.
constexpr std::size_t kSmall = std::size_t{64} << 10;

}  // namespace

Result<std::span<std::byte>> RequestMemory::Stage(std::uint64_t bytes) {
  if (bytes <= kSmall) {
    if (small_.empty()) small_.resize(kSmall);
    return std::span(small_).first(bytes);
  }
  if (lease_ && lease_->bytes().size() >= bytes) return lease_->bytes().first(bytes);
  lease_.reset();
  const Millis patience = std::max(context_.options.stage_timeout - waited_, Millis(0));
  const TimePoint due = channel_.After(TimeFor(bytes));
  Result<net::StagePool::Lease> lease = context_.stage.Take(bytes, due + patience);
  const auto late = std::chrono::duration_cast<Millis>(channel_.After(Millis(0)) - due);
  CountWait(std::max(late, Millis(0)));
  // Other transfers have the room just now: this one may come again. It is no error of its job.
  if (!lease.ok() && lease.status().code() == StatusCode::kResourceExhausted) {
    context_.Warn(context_.shortages, fmt::format("{}: {}; more by --stage-budget",
                                                  channel_.link().peer(), Message(lease.status())));
    return Unavailable("{}", Message(lease.status()));
  }
  MUSTER_TRY(lease.status());
  lease_.emplace(*std::move(lease));
  return lease_->bytes();
}

Status RequestMemory::StageMost(std::uint64_t ids) {
  const std::uint64_t bytes = ids * sizeof(std::int64_t);
  // More ids than the arena has room for are refused where they are looked at.
  if (bytes <= kSmall || bytes > arena_->size()) return Ok();
  return Stage(bytes).status();
}

Result<std::span<const std::int64_t>> RequestMemory::LocalIds(std::uint64_t offset,
                                                              std::uint64_t ids) {
  if (ids == 0) return std::span<const std::int64_t>();
  MUSTER_TRY_ASSIGN(const auto theirs,
                    arena_->At(offset, ids * sizeof(std::int64_t), alignof(std::int64_t)));
  MUSTER_TRY_ASSIGN(const auto ours, Stage(theirs.size()));
  std::memcpy(ours.data(), theirs.data(), theirs.size());
  return AsIds(ours);
}

std::uint64_t RequestMemory::ResidentLimit() const {
  const std::uint64_t links = std::max<std::uint64_t>(context_.local_links, 1);
  return context_.options.stage_budget_bytes / links;
}

Status RequestMemory::WithArena(std::uint64_t offset, std::uint64_t bytes, std::size_t align,
                                absl::FunctionRef<Status(std::span<std::byte>)> use) {
  const std::uint64_t limit = ResidentLimit();
  if (arena_->resident() > limit) arena_->Release();
  MUSTER_TRY_ASSIGN(const auto values, arena_->At(offset, bytes, align));
  if (values.size() <= limit) return use(values);
  const Reclaimer::Guard guard = context_.reclaimer.Watch(values);
  return use(values);
}

Result<std::span<std::byte>> RequestMemory::InArena(std::uint64_t offset, std::uint64_t bytes,
                                                    std::size_t align) {
  MUSTER_TRY_ASSIGN(const auto values, arena_->At(offset, bytes, align));
  if (values.size() > ResidentLimit()) {
    guards_.emplace_back(new Reclaimer::Guard(context_.reclaimer.Watch(values)));
  }
  return values;
}

}  // namespace muster::ps
