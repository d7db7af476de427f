#include "dispatch/driver.h"

#include "dispatch/driver_core.h"
#include <sys/eventfd.h>

namespace muster::dispatch {

RemoteValue::RemoteValue(const RemoteValue& other) : core_(other.core_), slot_(other.slot_) {
  if (core_ != nullptr) core_->AddReference(slot_);
}

RemoteValue::~RemoteValue() {
  if (core_ != nullptr) core_->Release(slot_);
}

ResultSlab::State RemoteValue::state() const {
  return core_ == nullptr ? ResultSlab::State::kNotReady : core_->StateOf(slot_);
}

Result<KeptBytes> RemoteValue::Fetch(TimePoint deadline) const {
  if (core_ == nullptr) return InvalidArgument("the value is of no closure");
  return core_->Fetch(slot_, deadline);
}

Driver::Driver(Options options)
    : core_(std::make_shared<DriverCore>(std::move(options),
                                         net::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)))) {
  core_->Start();
}

Driver::~Driver() { core_->Close(); }

Status Driver::Connect(const std::string& task, Incarnation incarnation, net::LinkKind kind,
                       const std::string& address, TimePoint deadline) {
  return core_->Connect(task, incarnation, kind, address, deadline);
}

void Driver::Disconnect(const std::string& task, const Status& why, Incarnation last) {
  core_->Disconnect(task, why, last);
}

ClosureDispatcher::Crash Driver::Crashed(const std::string& task, const std::string& how,
                                         Suspects::Cause cause, std::span<const ClosureId> running,
                                         Incarnation last) {
  return core_->Crashed(task, how, cause, running, last);
}

void Driver::SetPace(Pace pace) { core_->SetPace(pace); }

Result<RemoteValue> Driver::Schedule(std::uint32_t function, const KeptBytes& arguments,
                                     TimePoint deadline, std::span<const ClosureId> turns_of,
                                     std::uint64_t step, const ClosureTerms& terms) {
  MUSTER_TRY_ASSIGN(const ResultSlab::Slot slot,
                    core_->Schedule(function, arguments, deadline, turns_of, step, terms));
  return RemoteValue(core_, slot);
}

void Driver::SetStaleness(std::uint64_t staleness) { core_->SetStaleness(staleness); }
void Driver::SetSecondRuns(std::uint32_t most) { core_->SetSecondRuns(most); }
void Driver::SetErrors(const ErrorPolicy::Options& errors) { core_->SetErrors(errors); }
const Driver::Options& Driver::options() const { return core_->options(); }

Result<KeptBytes> Driver::Fetch(const RemoteValue& value, TimePoint deadline) {
  if (value.core_ != core_) {
    return InvalidArgument("the value is of no closure of this driver");
  }
  return value.Fetch(deadline);
}

Status Driver::Join(TimePoint deadline) { return core_->Join(deadline); }
Result<bool> Driver::Done(TimePoint deadline) { return core_->Done(deadline); }

Result<ClosureId> Driver::CreatePerWorker(std::uint32_t function, const KeptBytes& arguments) {
  return core_->CreatePerWorker(function, arguments);
}

void Driver::ReleasePerWorker(ClosureId value) { core_->ReleasePerWorker(value); }

Result<KeptBytes> Driver::AwaitPerWorker(ClosureId value, const std::string& task,
                                         TimePoint deadline) {
  return core_->AwaitPerWorker(value, task, deadline);
}

Driver::Counts Driver::counts() const { return core_->counts(); }
std::string Driver::Waiting() const { return core_->WaitingNow(); }

}  // namespace muster::dispatch
