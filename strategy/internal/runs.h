// The run()s of one strategy that go on, and the modules that are looked after between them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace muster::internal {
class ModuleState;

// Threading: any thread.
class Runs {
 public:
  // While it lives, a run() goes on. When it is the only one, modules take over first what was done
  // to their first copies meanwhile (their errors are thrown), and note in the end what they are.
  class Scope {
   public:
    explicit Scope(Runs& runs) : runs_(runs) { runs_.Begin(); }
    ~Scope() { runs_.End(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Runs& runs_;
  };

  void Add(const std::shared_ptr<ModuleState>& module);
  bool any() const { return active_.load(std::memory_order_acquire) > 0; }

 private:
  void Begin();
  void End();

  std::mutex mutex_;
  std::atomic<int> active_{0};                       // written with mutex_ held
  std::vector<std::weak_ptr<ModuleState>> modules_;  // guarded by mutex_
};

}  // namespace muster::internal
