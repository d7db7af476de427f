#include "ps/client/program_client.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/utf8.h"
#include "common/partition/div_layout.h"
#include "muster/v1/variables.pb.h"
#include "ps/client/encode.h"
#include "ps/client/optimized_variables.h"
#include "ps/client/program_servers.h"
#include "ps/client/shard_maker.h"
#include "ps/client/writers.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

// A message with another name would be refused whole, without that name.
Status CheckUtf8(const std::string& name) {
  if (FirstBadUtf8(name) == std::string::npos) return Ok();
  return InvalidArgument("variable {}: its name is not UTF-8", ToValidUtf8(name));
}

std::span<const std::byte> RowsOf(std::span<const std::byte> whole, const VariableInfo& variable,
                                  const ShardRef& shard) {
  return whole.subspan(static_cast<std::size_t>(shard.row_offset) * variable.row_bytes,
                       static_cast<std::size_t>(shard.rows) * variable.row_bytes);
}

std::size_t SizeOf(const ReadRequest& request) {
  const VariableInfo& variable = *request.variable;
  return (request.rows ? request.ids.size() : static_cast<std::size_t>(variable.rows)) *
         variable.row_bytes;
}

// Where the values are, once they have been read.
std::span<std::byte> PlaceOf(const ReadRequest& request) {
  return request.lend != nullptr ? request.lend->bytes : request.into;
}

// One server puts all of it into one place.
bool IsLentWhole(const ReadRequest& request) {
  return request.lend != nullptr && !request.rows && request.variable->shards.size() == 1;
}

}  // namespace

class ProgramClientImpl final : public ProgramClient {
 public:
  ProgramClientImpl(std::vector<Server> servers, const Options& options)
      : options_(options),
        servers_(std::move(servers), options),
        maker_(servers_, options.timeout) {}
  ~ProgramClientImpl() override;

  Status Connect() { return servers_.Open(After(0)); }

  Result<VariableHandle> Create(const VariableSpec& spec,
                                std::span<const std::byte> value) override;
  Result<VariableHandle> Create(const VariableSpec& spec, ShardValues values) override;
  Result<VariableHandle> Create(const VariableSpec& spec, const v1::Initializer& initializer,
                                std::uint64_t seed) override;
  Result<VariableHandle> Find(const std::string& name) override;
  Status Delete(const VariableHandle& variable) override;
  Status DeleteUnmade() override { return maker_.DeleteUnmade("", Ids()); }
  Status Attach(std::span<const VariableHandle> variables, const v1::OptimizerSpec& spec,
                std::optional<std::uint64_t> updates) override;
  Status Read(std::span<const ReadRequest> requests, WriteSet* own) override;
  Result<std::uint64_t> Updates(const VariableHandle& variable) override;
  Status Flush(WriteSet& set) override;
  Status EndFlush(WriteSet& set) override;
  void SetSettled(ClosureId closure) override;
  Status Settle() override;
  Status EndSteps(std::uint64_t step) override;
  std::vector<SpaceId> spaces() const override { return servers_.spaces(); }
  LinkBytes bytes() const override { return servers_.bytes(); }
  std::vector<ReadCounts> reads() const override { return servers_.reads(); }

 private:
  // Memory of one call: ids local to their shards, and values in the shards' order. Parts point
  // into the inner vectors, which stay where they are when an outer one grows.
  struct Scratch {
    std::vector<std::vector<std::int64_t>> ids;
    std::vector<std::vector<std::byte>> values;
  };
  // Rows that were read in the shards' order, and where they belong.
  struct Unsort {
    std::span<const std::byte> sorted;
    std::span<std::byte> into;
    std::vector<std::uint32_t> order;
    std::size_t row_bytes = 0;
  };

  TimePoint After(std::uint64_t bytes) const {
    return std::chrono::steady_clock::now() + options_.timeout + TimeFor(bytes);
  }
  ProgramIds Ids() const { return {.settled = settled_.load(std::memory_order_relaxed)}; }
  // One for each server, in order.
  std::vector<Share> Shares() const;
  Result<VariableHandle> Make(const VariableSpec& spec, v1::CreateShard create, ShardValues values);
  // Asks the servers for their shards, by their indexes there.
  Status AskOwners(const VariableInfo& variable, ProgramVerb verb,
                   absl::FunctionRef<std::vector<std::byte>(std::span<const std::uint32_t>)> meta);
  Status AddRead(const ReadRequest& request, std::vector<Share>& shares, Scratch& scratch,
                 std::vector<Unsort>& unsorts) const;
  Status AddWrite(const WriteSet::Write& write, std::vector<Share>& shares, Scratch& scratch) const;
  Status CheckRead(const ReadRequest& request) const;
  // The first writes that one number stands for.
  Status FlushFirst(WriteSet& set);
  // Whether all variables of gradients have one, on every server.
  Status RequireOptimizers(const WriteSet& set);
  // SETTLE to every server.
  Status TellAll(const ProgramIds& ids);
  void TellSettled();

  const Options options_;
  ProgramServers servers_;
  ShardMaker maker_;
  std::atomic<std::uint64_t> next_id_{1};
  std::atomic<ClosureId> settled_{};
  OptimizedVariables optimized_;
  Writers writers_;

  Mutex mutex_;
  std::thread teller_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  Condition stop_;
};

ProgramClientImpl::~ProgramClientImpl() {
  std::thread teller;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    teller = std::move(teller_);
  }
  stop_.notify_all();
  if (teller.joinable()) teller.join();
}

std::vector<Share> ProgramClientImpl::Shares() const {
  std::vector<Share> shares(servers_.size());
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i].server = i;
  return shares;
}

Result<VariableHandle> ProgramClientImpl::Create(const VariableSpec& spec,
                                                 std::span<const std::byte> value) {
  return Create(spec, [&](const VariableInfo& variable, const ShardRef& shard) -> ShardValue {
    if (value.size() == variable.bytes()) return RowsOf(value, variable, shard);
    return InvalidArgument("variable {} ({}): an initial value of {} bytes; it has {}", spec.name,
                           NameOf(spec.dtype), value.size(), variable.bytes());
  });
}

Result<VariableHandle> ProgramClientImpl::Create(const VariableSpec& spec, ShardValues values) {
  v1::CreateShard create;
  create.set_value(true);
  return Make(spec, std::move(create), values);
}

Result<VariableHandle> ProgramClientImpl::Create(const VariableSpec& spec,
                                                 const v1::Initializer& initializer,
                                                 std::uint64_t seed) {
  v1::CreateShard create;
  *create.mutable_initializer() = initializer;
  create.set_seed(seed);
  return Make(spec, std::move(create), [](const VariableInfo&, const ShardRef&) -> ShardValue {
    return std::span<const std::byte>();
  });
}

// Lays the variable out and makes its shards.
Result<VariableHandle> ProgramClientImpl::Make(const VariableSpec& spec, v1::CreateShard create,
                                               ShardValues values) {
  if (spec.name.empty()) return InvalidArgument("a variable has no name");
  MUSTER_TRY(CheckUtf8(spec.name));
  v1::ProgramVariable& variable = *create.mutable_variable();
  // Unique in the job: of one epoch and incarnation there is one driver.
  variable.set_id(options_.incarnation.value() << 32 | next_id_.fetch_add(1));
  variable.set_name(spec.name);
  variable.set_dtype(static_cast<v1::DType>(spec.dtype));
  variable.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
  MUSTER_TRY_ASSIGN(VariableInfo info, Describe(variable));
  if (spec.servers.empty() || spec.servers.size() > static_cast<std::size_t>(info.rows)) {
    return InvalidArgument("variable {}: {} shards for {} rows", spec.name, spec.servers.size(),
                           info.rows);
  }
  const partition::DivLayout layout(info.rows, static_cast<std::int64_t>(spec.servers.size()));
  for (std::size_t i = 0; i < spec.servers.size(); ++i) {
    MUSTER_TRY(servers_.Find(spec.servers[i]).status());
    const auto part = static_cast<std::int64_t>(i);
    v1::ShardPlacement& shard = *variable.add_shards();
    shard.set_ps_index(spec.servers[i]);
    shard.set_row_offset(layout.Offset(part));
    shard.set_rows(layout.Rows(part));
    info.shards.push_back(
        {.server = spec.servers[i], .row_offset = layout.Offset(part), .rows = layout.Rows(part)});
  }
  MUSTER_TRY(maker_.DeleteUnmade(spec.name, Ids()));
  if (const auto found = Find(spec.name); found.status().code() != StatusCode::kNotFound) {
    MUSTER_TRY(found.status());
    return AlreadyExists("variable {}: another one has the name", spec.name);
  }
  MUSTER_TRY(maker_.Make(std::move(create), values, info, Ids()));
  return std::make_shared<const VariableInfo>(std::move(info));
}

// Asks every server, for the parts that it has.
Result<VariableHandle> ProgramClientImpl::Find(const std::string& name) {
  MUSTER_TRY(CheckUtf8(name));
  v1::LookupVariable lookup;
  lookup.set_name(name);
  const std::vector<std::byte> meta = Encode(lookup);
  VariableInfo info;
  std::set<std::uint32_t> missing;
  std::size_t optimized = 0;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    v1::FoundVariable found;
    const Status asked =
        servers_.Ask(server, ProgramVerb::kLookup, Ids(), meta, {}, After(0),
                     [&](std::span<const std::byte> answer) -> Status {
                       if (found.ParseFromArray(answer.data(), static_cast<int>(answer.size())))
                         return Ok();
                       return DataLoss("variable {}: {} bytes of answer", name, answer.size());
                     });
    if (asked.code() == StatusCode::kNotFound) continue;
    MUSTER_TRY(asked);
    if (info.id == VariableId()) {
      MUSTER_TRY_ASSIGN(info, Describe(found.variable()));
      for (std::uint32_t part = 0; part < info.shards.size(); ++part) missing.insert(part);
    }
    if (VariableId(found.variable().id()) != info.id) continue;
    for (const v1::FoundShard& shard : found.shards()) {
      if (missing.erase(shard.part()) == 0) continue;
      if (shard.optimizer()) ++optimized;
      info.shards[shard.part()].wire = shard.shard();
    }
  }
  if (info.id == VariableId()) return NotFound("no variable {}: its driver has not made it", name);
  if (!missing.empty()) {
    return NotFound("variable {}: part {} of {} is not there", name, *missing.begin(),
                    info.shards.size());
  }
  if (optimized == info.shards.size()) optimized_.Add(info.id);
  return std::make_shared<const VariableInfo>(std::move(info));
}

Status ProgramClientImpl::AskOwners(
    const VariableInfo& variable, ProgramVerb verb,
    absl::FunctionRef<std::vector<std::byte>(std::span<const std::uint32_t>)> meta) {
  Status first;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    std::vector<std::uint32_t> own;
    for (const ShardRef& shard : variable.shards) {
      if (shard.server == servers_.target(server).index) own.push_back(shard.wire);
    }
    if (own.empty()) continue;
    const Status asked = servers_.Ask(server, verb, Ids(), meta(own), {}, After(0),
                                      [](std::span<const std::byte>) { return Ok(); });
    if (first.ok()) first = asked;
  }
  return first;
}

Status ProgramClientImpl::Delete(const VariableHandle& variable) {
  optimized_.Remove(variable->id);
  const Status deleted =
      AskOwners(*variable, ProgramVerb::kDelete, [](std::span<const std::uint32_t> own) {
        v1::ShardList list;
        list.mutable_shards()->Assign(own.begin(), own.end());
        return Encode(list);
      });
  return Annotate(deleted, "variable " + variable->name);
}

Status ProgramClientImpl::Attach(std::span<const VariableHandle> variables,
                                 const v1::OptimizerSpec& spec,
                                 std::optional<std::uint64_t> updates) {
  for (const VariableHandle& variable : variables) {
    MUSTER_TRY(AskOwners(*variable, ProgramVerb::kAttach, [&](std::span<const std::uint32_t> own) {
      v1::AttachOptimizer attach;
      *attach.mutable_optimizer() = spec;
      attach.mutable_shards()->Assign(own.begin(), own.end());
      if (updates) attach.set_updates(*updates);
      return Encode(attach);
    }));
    optimized_.Add(variable->id);
  }
  return Ok();
}

Status ProgramClientImpl::CheckRead(const ReadRequest& request) const {
  const VariableInfo& variable = *request.variable;
  if (request.lend != nullptr || request.into.size() == SizeOf(request)) return Ok();
  return InvalidArgument("variable {} ({}): room for {} bytes; what is read has {}", variable.name,
                         NameOf(variable.dtype), request.into.size(), SizeOf(request));
}

// Adds to each server's share what it has of the request. Rows that are not in the shards' order
// are read into scratch memory, and put in order afterwards.
Status ProgramClientImpl::AddRead(const ReadRequest& request, std::vector<Share>& shares,
                                  Scratch& scratch, std::vector<Unsort>& unsorts) const {
  const VariableInfo& variable = *request.variable;
  const auto add = [&](const ShardRef& shard, const ReadPart& part) -> Status {
    MUSTER_TRY_ASSIGN(const std::size_t server,
                      servers_.Find(static_cast<std::uint32_t>(shard.server)));
    shares[server].reads.push_back(part);
    return Ok();
  };
  if (IsLentWhole(request)) {
    const ShardRef& shard = variable.shards[0];
    return add(shard, {.shard = shard.wire,
                       .slot = request.slot,
                       .lend = request.lend,
                       .lent_bytes = SizeOf(request)});
  }
  const std::span<std::byte> place = PlaceOf(request);
  if (!request.rows) {
    for (const ShardRef& shard : variable.shards) {
      const auto own = RowsOf(place, variable, shard);
      MUSTER_TRY(
          add(shard, {.shard = shard.wire,
                      .slot = request.slot,
                      .into = place.subspan(static_cast<std::size_t>(own.data() - place.data()),
                                            own.size())}));
    }
    return Ok();
  }
  const std::span<std::int64_t> local = scratch.ids.emplace_back(request.ids.size());
  const auto split = SplitRows(variable.name, variable.rows, variable.shards, request.ids, local);
  if (!split.ok()) return InvalidArgument("{}", Message(split.status()));
  std::span<std::byte> into = place;
  if (!split->order.empty()) {
    into = scratch.values.emplace_back(place.size());
    unsorts.push_back(
        {.sorted = into, .into = place, .order = split->order, .row_bytes = variable.row_bytes});
  }
  for (const RowSplit::Segment& segment : split->segments) {
    if (segment.count == 0) continue;
    MUSTER_TRY(add(*segment.shard, {.shard = segment.shard->wire,
                                    .slot = request.slot,
                                    .rows = true,
                                    .ids = local.subspan(segment.first, segment.count),
                                    .into = into.subspan(segment.first * variable.row_bytes,
                                                         segment.count * variable.row_bytes)}));
  }
  return Ok();
}

// Own gradients first, then what the servers have, then own writes over it.
Status ProgramClientImpl::Read(std::span<const ReadRequest> requests, WriteSet* own) {
  const auto touched = [own](const ReadRequest& request) {
    return own != nullptr && request.slot == 0 && own->Touches(*request.variable);
  };
  for (const ReadRequest& request : requests) {
    MUSTER_TRY(CheckRead(request));
    // No more is sent than has to be: of several threads' sets over one closure's, whose reads
    // share what they have read, each sends its own when it has to, whoever has read first.
    for (WriteSet* set = own; set != nullptr; set = set->under_) {
      if (request.slot == 0 && !set->HasGradient(*request.variable)) continue;
      MUSTER_TRY(Flush(*set));
      break;
    }
  }
  std::vector<Share> shares = Shares();
  Scratch scratch;
  std::vector<Unsort> unsorts;
  std::uint64_t bytes = 0;
  for (const ReadRequest& request : requests) {
    const bool replaced = !request.rows && touched(request) && own->Replaces(*request.variable);
    if (request.lend != nullptr && (replaced || !IsLentWhole(request))) {
      *request.lend = Lent::Ordinary(SizeOf(request));
    }
    if (replaced) continue;
    bytes += SizeOf(request);
    MUSTER_TRY(AddRead(request, shares, scratch, unsorts));
  }
  ProgramIds ids = Ids();
  if (own != nullptr) ids.flush = own->step_ << kStepShift;
  MUSTER_TRY(servers_.ReadAll(shares, ids, After(bytes)));
  for (const Unsort& unsort : unsorts) {
    const std::size_t row = unsort.row_bytes;
    for (std::size_t i = 0; i < unsort.order.size(); ++i) {
      std::memcpy(unsort.into.data() + unsort.order[i] * row, unsort.sorted.data() + i * row, row);
    }
  }
  for (const ReadRequest& request : requests) {
    if (!touched(request)) continue;
    if (request.rows) {
      own->Overlay(*request.variable, request.ids, PlaceOf(request));
    } else {
      own->Overlay(*request.variable, PlaceOf(request));
    }
  }
  return Ok();
}

Result<std::uint64_t> ProgramClientImpl::Updates(const VariableHandle& variable) {
  std::vector<Share> shares = Shares();
  for (const ShardRef& shard : variable->shards) {
    MUSTER_TRY_ASSIGN(const std::size_t server,
                      servers_.Find(static_cast<std::uint32_t>(shard.server)));
    shares[server].reads.push_back({.shard = shard.wire, .rows = true});
  }
  MUSTER_TRY(servers_.ReadAll(shares, Ids(), After(0)));
  std::uint64_t most = 0;
  for (const Share& share : shares) {
    for (const ReadPart& part : share.reads) most = std::max(most, part.mark.updates);
  }
  return most;
}

// As AddRead(): rows go in the shards' order.
Status ProgramClientImpl::AddWrite(const WriteSet::Write& write, std::vector<Share>& shares,
                                   Scratch& scratch) const {
  const VariableInfo& variable = *write.variable;
  const auto add = [&](const ShardRef& shard, std::span<const std::int64_t> ids,
                       std::span<const std::byte> values) -> Status {
    MUSTER_TRY_ASSIGN(const std::size_t server,
                      servers_.Find(static_cast<std::uint32_t>(shard.server)));
    shares[server].writes.push_back({.shard = shard.wire,
                                     .slot = write.slot,
                                     .op = write.op,
                                     .rows = write.rows,
                                     .ids = ids,
                                     .values = values,
                                     .learning_rate = write.learning_rate});
    return Ok();
  };
  const auto values = write.operands.bytes;
  if (!write.rows) {
    for (const ShardRef& shard : variable.shards) {
      MUSTER_TRY(add(shard, {}, RowsOf(values, variable, shard)));
    }
    return Ok();
  }
  const std::span<std::int64_t> local = scratch.ids.emplace_back(write.ids.size());
  MUSTER_TRY_ASSIGN(const RowSplit split,
                    SplitRows(variable.name, variable.rows, variable.shards, write.ids, local));
  const std::size_t row = variable.row_bytes;
  std::span<const std::byte> rows = values;
  if (!split.order.empty()) {
    std::vector<std::byte>& sorted = scratch.values.emplace_back(values.size());
    for (std::size_t i = 0; i < split.order.size(); ++i) {
      std::memcpy(sorted.data() + i * row, values.data() + split.order[i] * row, row);
    }
    rows = sorted;
  }
  for (const RowSplit::Segment& segment : split.segments) {
    if (segment.count == 0) continue;
    MUSTER_TRY(add(*segment.shard, local.subspan(segment.first, segment.count),
                   rows.subspan(segment.first * row, segment.count * row)));
  }
  return Ok();
}

// A server knows its own shards alone, and would take its part of what another one refuses.
Status ProgramClientImpl::RequireOptimizers(const WriteSet& set) {
  for (const WriteSet::Write& write : set.writes_) {
    const VariableInfo& variable = *write.variable;
    if (write.op != kGradient || optimized_.Contains(variable.id)) continue;
    // Another process may have attached it since.
    MUSTER_TRY_ASSIGN(const VariableHandle now, Find(variable.name));
    if (now->id != variable.id) return NotFound("variable {}: it was deleted", variable.name);
    if (optimized_.Contains(variable.id)) continue;
    return FailedPrecondition(
        "variable {}: a gradient, and no optimizer is attached to it; nothing of what is written "
        "with it was sent",
        variable.name);
  }
  return Ok();
}

// A set of no closure takes a writer for as long as it is on its way, so that its number tells a
// repeated flush from the next one.
Status ProgramClientImpl::Flush(WriteSet& set) {
  if (set.under_ != nullptr) MUSTER_TRY(Flush(*set.under_));
  if (set.empty()) return Ok();
  MUSTER_TRY(RequireOptimizers(set));
  while (!set.empty()) MUSTER_TRY(FlushFirst(set));
  if (set.closure_ == ClosureId()) {
    writers_.GiveBack({.id = std::exchange(set.attempt_, Attempt()), .next = set.flush_});
  }
  return Ok();
}

Status ProgramClientImpl::EndFlush(WriteSet& set) { return set.sent_ > 0 ? FlushFirst(set) : Ok(); }

// What a flush that failed has sent goes again as it was, and alone: to a shard that has it, what
// was written since would be a part of what it knows by this number.
Status ProgramClientImpl::FlushFirst(WriteSet& set) {
  const std::size_t first = set.sent_ > 0 ? set.sent_ : set.writes_.size();
  std::vector<Share> shares = Shares();
  Scratch scratch;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < first; ++i) {
    bytes += set.writes_[i].operands.bytes.size();
    MUSTER_TRY(AddWrite(set.writes_[i], shares, scratch));
  }
  std::vector<std::vector<Share>> flushes = CutIntoFlushes(std::move(shares));
  if (set.closure_ == ClosureId() && set.attempt_ == Attempt()) {
    const Writers::Writer writer = writers_.Take();
    set.attempt_ = writer.id;
    set.flush_ = writer.next;
  }
  MUSTER_TRY_ASSIGN(const std::uint64_t next, set.NextFlush(flushes.size()));
  ProgramIds ids = Ids();
  ids.closure = set.closure_;
  ids.attempt = set.attempt_;
  set.sent_ = first;
  for (std::size_t i = 0; i < flushes.size(); ++i) {
    ids.flush = set.step_ << kStepShift | (next + i);
    MUSTER_TRY(servers_.WriteAll(flushes[i], ids, After(bytes)));
  }
  set.writes_.erase(set.writes_.begin(), set.writes_.begin() + static_cast<std::ptrdiff_t>(first));
  set.sent_ = 0;
  set.flush_ += flushes.size();
  return Ok();
}

void ProgramClientImpl::SetSettled(ClosureId closure) {
  ClosureId known = settled_.load(std::memory_order_relaxed);
  while (known < closure && !settled_.compare_exchange_weak(known, closure)) {
  }
  if (known != ClosureId() || closure == ClosureId()) return;
  const MutexLock lock(mutex_);
  if (stopping_ || teller_.joinable()) return;
  try {
    teller_ = std::thread([this] { TellSettled(); });
  } catch (const std::system_error&) {  // no thread: they hear it with what is sent
  }
}

void ProgramClientImpl::TellSettled() {
  ClosureId told;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const TimePoint next = std::chrono::steady_clock::now() + options_.settle_every;
      while (!stopping_ && stop_.wait_until(mutex_, next)) {
      }
      if (stopping_) return;
    }
    const ClosureId settled = settled_.load(std::memory_order_relaxed);
    if (settled == told) continue;
    // A server that is away hears it another time, and whoever uses it hears that it is away.
    if (Settle().ok()) told = settled;
  }
}

Status ProgramClientImpl::Settle() { return TellAll(Ids()); }

Status ProgramClientImpl::EndSteps(std::uint64_t step) {
  ProgramIds ids = Ids();
  ids.flush = step << kStepShift;
  return TellAll(ids);
}

Status ProgramClientImpl::TellAll(const ProgramIds& ids) {
  Status first;
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) break;  // the destructor waits for one that is cut off, not for all of them
    }
    const Status told = servers_.Ask(server, ProgramVerb::kSettle, ids, {}, {}, After(0),
                                     [](std::span<const std::byte>) { return Ok(); });
    if (first.ok()) first = told;
  }
  return first;
}

Result<std::unique_ptr<ProgramClient>> ProgramClient::Open(std::vector<Server> servers,
                                                           Options options) {
  if (servers.empty()) {
    return FailedPrecondition("job {}: variables need a parameter server; it has none",
                              options.job_id);
  }
  auto client = std::make_unique<ProgramClientImpl>(std::move(servers), options);
  MUSTER_TRY(client->Connect());
  return std::unique_ptr<ProgramClient>(std::move(client));
}

ServerSession::Target TargetOf(const v1::PsAddress& address) {
  return {.index = address.index(),
          .tcp_address = address.data().tcp_address(),
          .unix_path = address.data().unix_path(),
          .host_id = address.data().host_id()};
}

}  // namespace muster::ps
