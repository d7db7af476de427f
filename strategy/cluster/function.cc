#include "strategy/cluster/function.h"

#include <exception>
#include <functional>
#include <new>
#include <string_view>
#include <utility>

#include "dispatch/functions.h"

#include "common/base/thrown.h"
#include "common/base/words.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/coordinator_core.h"
#include "strategy/cluster/internal/running_closure.h"
#include "strategy/cluster/worker_context.h"
#include "strategy/core/internal/closure_here.h"
#include "strategy/variables/internal/variable_state.h"
#include "strategy/variables/variable.h"

namespace muster {
namespace internal {
namespace {

RunningClosure& this_closure(const char* what) {
  RunningClosure* const running = running_closure();
  if (running == nullptr) {
    raise(FailedPrecondition(
        "{} outside of a closure: only a function that runs on a worker has it", what));
  }
  return *running;
}

// What was left to be done when the function has returned.
void End(RunningClosure& closure) {
  std::function<void()> at_end;
  {
    const MutexLock lock(closure.mutex);
    at_end = std::move(closure.at_end);
  }
  if (at_end) at_end();
}

// What the exception that is handled now, which `name` has thrown, is as a Status.
Status StatusOfException(const char* name) {
  try {
    throw;
  } catch (const Error& error) {
    return ToStatus(error);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{} found no memory (std::bad_alloc)", name);
  } catch (const c10::OutOfMemoryError& error) {  // a card's
    return ResourceExhausted("{} found no memory: {}", name, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    if (text.find("can't allocate memory") != std::string_view::npos) {
      return ResourceExhausted("{} found no memory: {}", name, text);
    }
    return Unknown("{} threw: {}", name, text);
  } catch (const std::exception& error) {
    return Unknown("{} threw: {}", name, error.what());
  } catch (...) {
    return Unknown("{} threw what is no std::exception{}", name, TextOfThrown());
  }
}

// Whose trouble an exception of a function is: the user's, but for what this API throws itself.
Status RunClosure(dispatch::ClosureContext& context, RegisteredForm form, const char* name) {
  RunningClosure closure{.context = context};
  const ClosureHere here(&closure);
  ClosureCall call(context);
  try {
    form(call);
    End(closure);
    return Ok();
  } catch (const ClosureError& error) {
    context.Blame(static_cast<dispatch::Origin>(error.details().origin),
                  static_cast<dispatch::Phase>(error.details().phase), error.details().task);
    return MakeStatus(static_cast<StatusCode>(error.code()), error.text());
  } catch (...) {
    return StatusOfException(name);
  }
}

}  // namespace

RunningClosure* running_closure() { return ClosureHere::Current(); }

void ClosureCall::set_step(std::uint64_t step) {
  if (RunningClosure* const running = running_closure()) running->step = step;
}

std::span<const std::byte> ClosureCall::arguments() const { return context_.arguments(); }
Bytes& ClosureCall::value() { return context_.value(); }
bool ClosureCall::build() const { return context_.build(); }
void ClosureCall::built(std::shared_ptr<void> object) { context_.Build(std::move(object)); }

std::shared_ptr<void> ClosureCall::per_worker_value(std::uint64_t id) {
  auto found = context_.ValueOf(ClosureId(id));
  if (!found.ok() && context_.blame().origin == dispatch::Origin::kWorker) {
    throw ClosureError(static_cast<ErrorCode>(found.status().code()), Message(found.status()),
                       {.origin = ErrorOrigin::kWorker, .phase = ClosurePhase::kInputs});
  }
  if (!found.ok()) {
    throw ClosureInputError(
        static_cast<ErrorCode>(found.status().code()),
        "a per-worker value that it uses was not built: " + Message(found.status()),
        {.origin = ErrorOrigin::kInput, .phase = ClosurePhase::kInputs});
  }
  return *std::move(found);
}

PassPlace ClosureCall::found() const {
  const dispatch::Bookmark& found = context_.bookmark();
  return {.taken = found.sequence,
          .position = {reinterpret_cast<const char*>(found.place.data()), found.place.size()}};
}

void ClosureCall::leave(std::uint64_t id, const PassPlace& place) {
  raise_unless_ok(context_.LeaveBookmark(ClosureId(id), place.taken, place.position));
}

void raise_made_nothing(const char* make) { raise(InvalidArgument("{} made nothing", make)); }

bool register_program_object(const char* make, void (*build)()) {
  return dispatch::internal::AddProgramObject([make, build] {
    try {
      build();
      return Ok();
    } catch (...) {
      return StatusOfException(make);
    }
  });
}

std::uint32_t register_function(const char* name, RegisteredForm form) {
  return dispatch::ProgramFunctions().Add(name, [form, name](dispatch::ClosureContext& context) {
    return RunClosure(context, form, name);
  });
}

void write_per_worker(const CoordinatorCore& core, const PerWorker& value, Arguments& to) {
  if (value.core().get() != &core) {
    raise(InvalidArgument("a per-worker value of another coordinator: its workers are others"));
  }
  append_value(to.bytes, value.shared() ? ArgumentKind::kTurn : ArgumentKind::kPerWorker);
  append_value(to.bytes, value.id().value());
  if (value.shared()) {
    to.turns_of.push_back(value.id().value());
  } else {
    to.of_worker = true;
  }
}

ByteReader take_turns(std::span<const std::byte>& arguments) {
  ByteReader header(arguments);
  (void)header.value<std::uint8_t>();
  const std::size_t bytes = header.value<std::uint8_t>() * sizeof(std::uint64_t);
  arguments = header.take(header.left());
  if (bytes > arguments.size()) {
    raise(InvalidArgument("{} bytes of arguments, of which {} are turns", arguments.size(), bytes));
  }
  const ByteReader turns(arguments.last(bytes));
  arguments = arguments.first(arguments.size() - bytes);
  return turns;
}

SharedStart shared_start(const Graph& graph) {
  try {
    return {.position = graph.indexed().start(), .why_not = ""};
  } catch (const Error& error) {
    return {.position = "", .why_not = error.message()};
  }
}

void raise_all_taken(std::int64_t elements) {
  raise(FailedPrecondition(
      "under exactly_once a closure has {}, which are taken: IteratorOptions::elements_per_closure",
      Counted(elements, "element")));
}

void raise_some_left(std::int64_t taken, std::int64_t elements) {
  raise(
      FailedPrecondition("it took {} of the {} that are its own under exactly_once: the rest would "
                         "be used by nobody (IteratorOptions::elements_per_closure)",
                         taken, Counted(elements, "element")));
}

void raise_not_shared() {
  raise(InvalidArgument("a closure has a part of a pass that the workers do not share"));
}

void write_error(const Error& error, Bytes& to) {
  append_value(to, static_cast<std::int32_t>(error.code()));
  // The first one of an input's error is told, however many closures it has gone through.
  const auto* input = dynamic_cast<const ClosureInputError*>(&error);
  Codec<std::string>::write(input != nullptr
                                ? input->text()
                                : "a remote value that it was given has failed: " + error.message(),
                            to);
}

void raise_input(ByteReader& from) {
  const auto code = static_cast<ErrorCode>(from.value<std::int32_t>());
  throw ClosureInputError(code, Codec<std::string>::read(from),
                          {.origin = ErrorOrigin::kInput, .phase = ClosurePhase::kInputs});
}

void raise_leftover(std::size_t bytes) {
  raise(InvalidArgument("{} bytes too many of arguments", bytes));
}

void raise_argument_kind(ArgumentKind kind) {
  raise(InvalidArgument("an argument of kind {} for a parameter that does not take it",
                        static_cast<int>(kind)));
}

void raise_no_iterator() { raise(InvalidArgument("an iterator of what is no dataset")); }

std::shared_ptr<void> forbid_variables() {
  return std::make_shared<NoVariables>("a function that makes a dataset");
}

}  // namespace internal

bool in_closure() { return internal::running_closure() != nullptr; }

int worker_index() {
  return static_cast<int>(internal::this_closure("worker_index()").context.worker_index());
}

std::stop_token cancellation() {
  internal::RunningClosure& running = internal::this_closure("cancellation()");
  const MutexLock lock(running.mutex);
  return running.context.stop_token();
}

void throw_if_cancelled() {
  const internal::RunningClosure* const running = internal::running_closure();
  if (running != nullptr && running->context.cancelled()) {
    raise(
        Cancelled("another closure has failed, or the coordinator is gone: the result is not "
                  "wanted any more"));
  }
}

}  // namespace muster
