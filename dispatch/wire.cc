#include "dispatch/wire.h"

#include <cstring>

namespace muster::dispatch {
namespace {

// One frame holds no more: the peer begins while the rest is written.
constexpr std::size_t kMostRecords = 4096;
constexpr std::size_t kMostPayload = std::size_t{1} << 20;
constexpr std::string_view kPayloadUrl = "muster/closure-error";
constexpr std::size_t kMaxMessage = 16'384;

// Before the task's name and the message.
struct RawError {
  std::uint64_t incarnation = 0;
  std::uint32_t retries = 0;
  std::uint8_t code = 0;
  std::uint8_t origin = 0;
  std::uint8_t phase = 0;
  std::uint8_t task_bytes = 0;
};
static_assert(sizeof(RawError) == 16);

}  // namespace

bool Batch::Add(WireRecord record, const KeptBytes& bytes) {
  record.bytes = static_cast<std::uint32_t>(bytes.size());
  records_.push_back(record);
  if (bytes.worth_holding()) {
    held_.emplace_back(payload_.size(), bytes);
    held_bytes_ += bytes.size();
  } else {
    payload_.insert(payload_.end(), bytes.begin(), bytes.end());
  }
  return records_.size() >= kMostRecords || payload_.size() + held_bytes_ >= kMostPayload;
}

Status Batch::QueueOn(net::DuplexLink& link) {
  std::vector<KeptBytes> parts;
  std::span<const std::byte> left(payload_);
  std::size_t at = 0;
  for (const auto& [place, bytes] : held_) {
    if (place > at) parts.emplace_back(left.first(place - at));
    left = left.subspan(place - at);
    at = place;
    parts.push_back(bytes);
  }
  if (!left.empty()) parts.emplace_back(left);
  MUSTER_TRY(link.Queue({.kind = static_cast<net::FrameKind>(verb_)},
                        std::as_bytes(std::span(records_)), parts));
  records_.clear();
  held_.clear();
  held_bytes_ = 0;
  payload_.clear();
  if (payload_.capacity() > 4 * kMostPayload) payload_.shrink_to_fit();
  return Ok();
}

Status ReadBatch(std::span<const std::byte> meta, const KeptBytes& payload,
                 absl::FunctionRef<Status(const WireRecord&, const KeptBytes&)> each) {
  std::span<const std::byte> left = payload;
  if (meta.size() % sizeof(WireRecord) != 0) {
    return DataLoss("a table of {} bytes, not records of {}", meta.size(), sizeof(WireRecord));
  }
  for (; !meta.empty(); meta = meta.subspan(sizeof(WireRecord))) {
    WireRecord record;
    std::memcpy(&record, meta.data(), sizeof(record));
    if (record.bytes > left.size()) {
      return DataLoss("closure {} has {} bytes, {} are left of the payload", record.closure,
                      record.bytes, left.size());
    }
    MUSTER_TRY(each(record, payload.Part(left.first(record.bytes))));
    left = left.subspan(record.bytes);
  }
  if (!left.empty()) return DataLoss("{} bytes belong to no closure", left.size());
  return Ok();
}

std::vector<std::byte> EncodeError(const ClosureError& error) {
  std::string task = error.task.substr(0, 255);
  std::string message = Message(error.status);
  if (message.size() > kMaxMessage) message.resize(kMaxMessage);
  const RawError raw{.incarnation = error.incarnation.value(),
                     .retries = error.retries,
                     .code = static_cast<std::uint8_t>(error.status.code()),
                     .origin = static_cast<std::uint8_t>(error.origin),
                     .phase = static_cast<std::uint8_t>(error.phase),
                     .task_bytes = static_cast<std::uint8_t>(task.size())};
  std::vector<std::byte> bytes(sizeof(raw) + task.size() + message.size());
  std::memcpy(bytes.data(), &raw, sizeof(raw));
  std::memcpy(bytes.data() + sizeof(raw), task.data(), task.size());
  std::memcpy(bytes.data() + sizeof(raw) + task.size(), message.data(), message.size());
  return bytes;
}

Result<ClosureError> DecodeError(std::span<const std::byte> bytes) {
  RawError raw;
  if (bytes.size() < sizeof(raw)) return DataLoss("an error of {} bytes", bytes.size());
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  bytes = bytes.subspan(sizeof(raw));
  const bool known = raw.code >= 1 && raw.code <= 16 && raw.origin >= 1 &&
                     raw.origin <= static_cast<std::uint8_t>(Origin::kCoordinator) &&
                     raw.phase >= 1 && raw.phase <= static_cast<std::uint8_t>(Phase::kBuild);
  if (!known || raw.task_bytes > bytes.size()) {
    return DataLoss("an error of code {}, origin {}, phase {}", raw.code, raw.origin, raw.phase);
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  ClosureError error;
  error.task.assign(text, raw.task_bytes);
  error.status = MakeStatus(static_cast<StatusCode>(raw.code),
                            {text + raw.task_bytes, bytes.size() - raw.task_bytes});
  error.origin = static_cast<Origin>(raw.origin);
  error.phase = static_cast<Phase>(raw.phase);
  error.incarnation = Incarnation(raw.incarnation);
  error.retries = raw.retries;
  return error;
}

Status ToStatus(const ClosureError& error) {
  Status status = error.status;
  const std::vector<std::byte> bytes = EncodeError(error);
  status.SetPayload(
      kPayloadUrl.data(),
      absl::Cord(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
  return status;
}

std::optional<ClosureError> ErrorOf(const Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl.data());
  if (!payload) return std::nullopt;
  const std::string bytes(*payload);
  auto error = DecodeError(std::as_bytes(std::span(bytes)));
  return error.ok() ? std::optional(*std::move(error)) : std::nullopt;
}

}  // namespace muster::dispatch
