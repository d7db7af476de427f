#include "collectives/nccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "common/base/time_left.h"

namespace muster::collectives::nccl {
namespace {

std::optional<Type> TypeOf(DType type) {
  switch (type) {
    case DType::kInt8:
      return Type::kInt8;
    case DType::kUint8:
      return Type::kUint8;
    case DType::kInt32:
      return Type::kInt32;
    case DType::kInt64:
      return Type::kInt64;
    case DType::kFloat32:
      return Type::kFloat32;
    case DType::kFloat64:
      return Type::kFloat64;
    default:
      return std::nullopt;
  }
}

constexpr std::string_view kCall = "all_reduce SUM by NCCL";

// What the members have told each other: the texts of all, and how the first one failed that did.
struct Told {
  std::vector<std::string> texts;
  std::string failure;
};

// `mine` counts where `status` is OK.
Result<Told> Tell(Group& group, std::string_view call, const Status& status,
                  const std::string& mine) {
  const std::string text = status.ok() ? mine : Message(status);
  std::vector<std::int64_t> said{status.ok() ? 1 : 0};
  said.insert(said.end(), text.begin(), text.end());
  MUSTER_TRY_ASSIGN(const auto all, group.Exchange(call, said));
  Told told;
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::string theirs;
    for (std::size_t i = 1; i < all[r].size(); ++i) theirs.push_back(static_cast<char>(all[r][i]));
    const bool failed = all[r].empty() || all[r][0] == 0;
    if (failed && told.failure.empty()) told.failure = fmt::format("member {}: {}", r, theirs);
    told.texts.push_back(std::move(theirs));
  }
  return told;
}

// Type, number of sizes and sizes of each buffer.
std::vector<std::int64_t> Described(std::span<const ReduceBuffer> buffers) {
  std::vector<std::int64_t> said;
  for (const ReduceBuffer& buffer : buffers) {
    said.push_back(static_cast<std::int64_t>(buffer.type));
    said.push_back(static_cast<std::int64_t>(buffer.shape.size()));
    said.insert(said.end(), buffer.shape.begin(), buffer.shape.end());
  }
  return said;
}

// From the first buffer on in which it differs from `other`.
std::string Text(const std::vector<std::int64_t>& said, const std::vector<std::int64_t>& other) {
  std::size_t number = 0;
  for (std::size_t at = 0; at + 1 < said.size(); ++number) {
    const std::size_t end = std::min(said.size(), at + 2 + static_cast<std::size_t>(said[at + 1]));
    const bool same =
        end <= other.size() && std::equal(said.begin() + static_cast<std::ptrdiff_t>(at),
                                          said.begin() + static_cast<std::ptrdiff_t>(end),
                                          other.begin() + static_cast<std::ptrdiff_t>(at));
    if (!same) {
      return fmt::format("{}[{}] as buffer {}", NameOf(static_cast<DType>(said[at])),
                         fmt::join(said.begin() + static_cast<std::ptrdiff_t>(at) + 2,
                                   said.begin() + static_cast<std::ptrdiff_t>(end), ", "),
                         number);
    }
    at = end;
  }
  return fmt::format("{} buffers", number);
}

TimePoint Now() { return std::chrono::steady_clock::now(); }

// What is left of a limit, at least a moment: none would be for ever.
Timeout Left(Timeout limit, TimePoint deadline) {
  if (!limit) return limit;
  return std::max(Millis(1), std::chrono::ceil<Millis>(deadline - Now()));
}

}  // namespace

bool Adds(DType type) { return TypeOf(type).has_value(); }

// Three rounds of telling all (versions and cards, the id, who is connected), so that either every
// member has a communicator or none has: one that began alone would wait for ever.
Result<Communicator::Formed> Communicator::Form(Group& group, Result<Library> library,
                                                Options options) {
  const auto none = [](std::string why) { return Formed{nullptr, std::move(why)}; };
  // Who has what: the version, and the card behind a space.
  MUSTER_TRY_ASSIGN(
      const Told versions,
      Tell(group, "NCCL: who has which card", library.status(),
           library.ok() ? fmt::format("{} {}", library->VersionText(), options.card) : ""));
  if (!versions.failure.empty()) return none(versions.failure);
  std::map<std::string, std::size_t> cards;
  const std::size_t first = versions.texts[0].find(' ');
  for (std::size_t r = 0; r < versions.texts.size(); ++r) {
    const std::string& text = versions.texts[r];
    const std::size_t space = text.find(' ');
    if (text.substr(0, space) != versions.texts[0].substr(0, first)) {
      return none(fmt::format("member {} has NCCL {}, member 0 {}: all need the same", r,
                              text.substr(0, space), versions.texts[0].substr(0, first)));
    }
    const auto [at, added] = cards.emplace(text.substr(space + 1), r);
    if (!added) {
      return none(
          fmt::format("members {} and {} have the same card ({})", at->second, r, at->first));
    }
  }
  UniqueId id{};
  Status made;
  if (group.rank() == 0) made = library->Check(library->get_unique_id(&id), "ncclGetUniqueId");
  MUSTER_TRY_ASSIGN(const Told ids, Tell(group, "NCCL: the communicator's id", made,
                                         std::string(id.bytes.begin(), id.bytes.end())));
  if (!ids.failure.empty()) return none(ids.failure);
  if (ids.texts[0].size() != id.bytes.size()) return none("member 0 gave no id");
  std::copy(ids.texts[0].begin(), ids.texts[0].end(), id.bytes.begin());

  std::unique_ptr<Communicator> communicator(
      new Communicator(group, *std::move(library), std::move(options)));
  const Status begun = communicator->Begin(id);
  MUSTER_TRY_ASSIGN(const Told outcomes, Tell(group, "NCCL: who is connected", begun, ""));
  if (!outcomes.failure.empty()) return none(outcomes.failure);
  return Formed{std::move(communicator), ""};
}

Communicator::~Communicator() { End(); }

// No member has anything queued any more, or nobody waits for it. ncclCommDestroy() might wait for
// members that are gone.
void Communicator::End() {
  if (comm_ != nullptr) (void)library_.comm_abort(std::exchange(comm_, nullptr));
}

Status Communicator::Begin(const UniqueId& id) {
  Config config;
  MUSTER_TRY(library_.Check(
      library_.comm_init_rank_config(&comm_, group_.size(), id, group_.rank(), &config),
      "ncclCommInitRankConfig"));
  const TimePoint deadline = After(options_.form_within);
  const Status status = Await([] { return true; }, deadline);
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return DeadlineExceeded("NCCL has not connected all members in {} ms",
                          options_.form_within.count());
}

Status Communicator::Await(const std::function<Result<bool>()>& done, TimePoint deadline) const {
  // Looked for without a pause at first: small sums take microseconds.
  const TimePoint patient = Now() + Millis(1);
  while (true) {
    Code state = Code::kSuccess;
    MUSTER_TRY(
        library_.Check(library_.comm_get_async_error(comm_, &state), "ncclCommGetAsyncError"));
    MUSTER_TRY(library_.Check(state, "NCCL's communicator"));
    if (state == Code::kSuccess) {
      MUSTER_TRY_ASSIGN(const bool ended, done());
      if (ended) return Ok();
    }
    MUSTER_TRY(group_.Health());
    const TimePoint now = Now();
    if (now >= deadline) return DeadlineExceeded("not in time");
    if (now < patient) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

Status Communicator::Agree(std::span<const ReduceBuffer> buffers, Timeout limit) {
  for (const ReduceBuffer& buffer : buffers) {
    if (Adds(buffer.type)) continue;
    return InvalidArgument("{}: it does not add {}", kCall, NameOf(buffer.type));
  }
  MUSTER_TRY_ASSIGN(const auto all, group_.Exchange(kCall, Described(buffers), limit));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    return InvalidArgument("Shape mismatch: {}: member 0 brings {}, member {} {}", kCall,
                           Text(all[0], all[r]), r, Text(all[r], all[0]));
  }
  return Ok();
}

Status Communicator::Launch(std::span<const ReduceBuffer> buffers, void* stream) {
  // One launch for all of them.
  MUSTER_TRY(library_.Check(library_.group_start(), "ncclGroupStart"));
  Status launched;
  for (const ReduceBuffer& buffer : buffers) {
    if (buffer.count() == 0 || !launched.ok()) continue;
    launched =
        library_.Check(library_.all_reduce(buffer.in, buffer.out, buffer.count(),
                                           *TypeOf(buffer.type), Operation::kSum, comm_, stream),
                       "ncclAllReduce");
  }
  const Status ended = library_.Check(library_.group_end(), "ncclGroupEnd");
  return launched.ok() ? ended : launched;
}

Status Communicator::AllReduce(std::span<const ReduceBuffer> buffers, const Stream& stream,
                               Timeout timeout) {
  const MutexLock lock(mutex_);
  if (!failure_.ok()) return failure_;
  Timeout limit = timeout && timeout->count() > 0 ? timeout : std::nullopt;
  if (options_.call_within)
    limit = std::min(limit.value_or(*options_.call_within), *options_.call_within);
  const TimePoint deadline = limit ? After(*limit) : TimePoint::max();
  failure_ = Agree(buffers, limit);
  if (failure_.ok()) {
    Status status = Launch(buffers, stream.handle);
    if (status.ok()) status = Await(stream.done, deadline);
    if (status.ok()) {
      status = group_.Barrier(Left(limit, deadline));
    } else if (status.code() == StatusCode::kDeadlineExceeded && Now() >= deadline) {
      status = DeadlineExceeded("the card is not done after {} ms", limit->count());
    }
    failure_ = Annotate(status, fmt::format("{}, member {}", kCall, group_.rank()));
  }
  if (failure_.ok()) return failure_;
  End();
  group_.Abort(failure_);
  return failure_;
}

}  // namespace muster::collectives::nccl
