#include "strategy/core/internal/closure_here.h"

#include <utility>

namespace muster::internal {
namespace {

thread_local RunningClosure* closure_of_thread = nullptr;

}  // namespace

ClosureHere::ClosureHere(RunningClosure* closure)
    : before_(std::exchange(closure_of_thread, closure)) {}

ClosureHere::~ClosureHere() { closure_of_thread = before_; }

RunningClosure* ClosureHere::Current() { return closure_of_thread; }

}  // namespace muster::internal
