// For callbacks that may come when the object that asked for them has gone, or has moved on.
//
//   scheduler_.RunAfter(limit, lifeline_.Guard([this] { GiveUp(); }));
//
// Threading: the lifeline's end and the guarded functions on one strand: it is no lock.
#pragma once

#include <memory>
#include <utility>

namespace muster {

class Lifeline {
 public:
  Lifeline() = default;
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // A function that calls `then`, and does nothing once this lifeline has been cut.
  template <class Function>
  [[nodiscard]] auto Guard(Function then) const {
    return [alive = std::weak_ptr<const char>(mark_),
            then = std::move(then)]<class... Args>(Args&&... args) mutable {
      if (!alive.expired()) then(std::forward<Args>(args)...);
    };
  }

  // Whether it has not been cut since: for who has something to say all the same.
  [[nodiscard]] auto Watch() const {
    return [alive = std::weak_ptr<const char>(mark_)] { return !alive.expired(); };
  }

  // What was guarded until now does nothing any more; as at the end of this object.
  void Cut() { mark_ = std::make_shared<const char>('\0'); }
  // Nor does what is guarded from now on.
  void End() { mark_.reset(); }

 private:
  std::shared_ptr<const char> mark_ = std::make_shared<const char>('\0');
};

}  // namespace muster
