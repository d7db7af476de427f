// A strategy as variables, modules and optimizers refer to it: it may be gone before they are.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace muster {
class Strategy;
namespace internal {

// Threading: any thread; not against the strategy's destructor.
class StrategyRef {
 public:
  // What all references to one strategy share; the strategy itself sets it to null in its end.
  using Life = std::atomic<Strategy*>;

  StrategyRef() = default;
  explicit StrategyRef(std::shared_ptr<const Life> life) : life_(std::move(life)) {}

  // Null: destroyed.
  Strategy* get() const { return life_ == nullptr ? nullptr : life_->load(); }
  // FAILED_PRECONDITION: destroyed.
  Strategy& operator*() const {
    if (Strategy* const strategy = get()) return *strategy;
    RaiseDestroyed();
  }
  Strategy* operator->() const { return &**this; }

 private:
  [[noreturn]] static void RaiseDestroyed();

  std::shared_ptr<const Life> life_;
};

}  // namespace internal
}  // namespace muster
