// A dispatcher, its workers, and what they were sent.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "dispatch/core/closure_dispatcher.h"

namespace muster::dispatch {

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// By their numbers, as tests write them.
inline std::vector<std::uint64_t> NumbersOf(std::span<const ClosureId> closures) {
  std::vector<std::uint64_t> numbers;
  for (const ClosureId closure : closures) numbers.push_back(closure.value());
  return numbers;
}

struct Sent {
  WorkerHandle worker;
  std::uint64_t closure = 0;
  Attempt attempt;
  std::uint32_t flags = 0;
  std::string arguments;
};

struct Bench {
  explicit Bench(ClosureDispatcher::Options options = {}) : dispatcher(std::move(options)) {}

  // Nobody keeps its future.
  std::uint64_t Schedule(std::string_view arguments = "") {
    const auto scheduled = dispatcher.Schedule(1, BytesOf(arguments));
    if (scheduled.result != ResultSlab::kNone) dispatcher.results().Release(scheduled.result);
    return scheduled.closure.value();
  }
  ResultSlab::Slot ScheduleWanted() { return dispatcher.Schedule(1, {}).result; }

  // What goes out now, in order.
  std::vector<Sent> Pump() {
    std::vector<Sent> sent;
    dispatcher.Pump(now, [&](WorkerHandle worker, const Assignment& one) {
      const auto text = one.arguments;
      sent.push_back({worker, one.closure.value(), one.attempt, one.flags,
                      std::string(reinterpret_cast<const char*>(text.data()), text.size())});
    });
    return sent;
  }
  std::vector<std::uint64_t> PumpIds() {
    std::vector<std::uint64_t> ids;
    for (const Sent& one : Pump()) ids.push_back(one.closure);
    return ids;
  }

  using Outcome = ClosureDispatcher::Outcome;
  Outcome Done(const Sent& sent, std::string_view value = "",
               std::chrono::nanoseconds run = std::chrono::nanoseconds(0)) {
    return dispatcher.OnResult(sent.worker,
                               {.closure = ClosureId(sent.closure),
                                .attempt = sent.attempt,
                                .run = run,
                                .value = BytesOf(value)},
                               now);
  }
  Outcome Failed(const Sent& sent, Status status, Origin origin = Origin::kUser,
                 std::string task = "") {
    const ClosureError error{.status = std::move(status),
                             .origin = origin,
                             .phase = Phase::kRun,
                             .task = std::move(task)};
    return dispatcher.OnResult(
        sent.worker, {.closure = ClosureId(sent.closure), .attempt = sent.attempt, .error = &error},
        now);
  }
  std::string ValueOf(ResultSlab::Slot slot) {
    const auto value = dispatcher.results().value(slot);
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }

  TimePoint now{std::chrono::hours(1)};
  ClosureDispatcher dispatcher;
};

}  // namespace muster::dispatch
