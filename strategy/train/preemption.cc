#include "strategy/train/preemption.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "collectives/group.h"
#include "common/telemetry/log.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/strategy.h"
#include "strategy/resolver/internal/task_name.h"
#include "strategy/train/internal/termination_notice.h"

namespace muster {
namespace {

using std::chrono::steady_clock;

// Without destructors: threads of the program may run still.
[[noreturn]] void EndProcess() {
  std::cout.flush();
  (void)std::fflush(nullptr);
  std::_Exit(kPreemptedExitCode);
}

}  // namespace

struct PreemptionCheckpointHandler::Impl {
  Strategy& strategy;
  Checkpoint checkpoint;
  CheckpointManager manager;
  TerminationConfig config;
  std::unique_ptr<internal::TerminationNotice> notice = nullptr;
  std::uint64_t calls = 0;
  // Since when all know that one of them is to end.
  std::optional<steady_clock::time_point> known = std::nullopt;
  bool saved = false;
  bool over = false;

  // Calls what is the program's own. What it throws all others hear: they would wait for this
  // worker in a call that it does not come to.
  void Guarded(std::string_view what, const std::function<void()>& own) const {
    const auto tell = [&](const char* why) {
      collectives::Group* const group = strategy.collectives();
      if (group == nullptr) return;
      const std::string name = internal::task_name(strategy.cluster_resolver(),
                                                   "process " + std::to_string(group->rank()));
      group->Abort(Internal("{} failed in {}: {}", name, what, why));
    };
    try {
      own();
    } catch (const std::exception& error) {
      tell(error.what());
      throw;
    } catch (...) {
      tell("something that is no std::exception was thrown");
      throw;
    }
  }
  bool Asked() const {
    if (notice != nullptr) return notice->came();
    bool asked = false;
    Guarded("termination_watcher", [&] { asked = config.termination_watcher(); });
    return asked;
  }
  void Save() const {
    if (config.save != nullptr) {
      Guarded("save", config.save);
    } else {
      manager.save(calls);
    }
    log::Info("saved after {} calls of run(), for a worker was asked to end", calls);
  }
  // The largest of what all workers say.
  std::array<std::int64_t, 2> Agree(std::array<std::int64_t, 2> mine) const {
    std::array<std::int64_t, 2> all = mine;
    if (strategy.collectives() == nullptr) return all;
    const collectives::ReduceBuffer vote{
        .type = DType::kInt64, .shape = {2}, .in = mine.data(), .out = all.data()};
    raise_unless_ok(strategy.collectives()->AllReduce(collectives::Reduction::kMax, {&vote, 1}));
    return all;
  }
};

PreemptionCheckpointHandler::PreemptionCheckpointHandler(Strategy& strategy,
                                                         const Checkpoint& checkpoint,
                                                         const std::string& directory,
                                                         TerminationConfig config) {
  if (directory.empty()) {
    raise(
        InvalidArgument("PreemptionCheckpointHandler: directory is empty: name a folder that all "
                        "workers share"));
  }
  if (config.grace_period < std::chrono::milliseconds(0)) {
    raise(InvalidArgument("PreemptionCheckpointHandler: grace_period is {} ms: 0 or more is needed",
                          config.grace_period.count()));
  }
  impl_ = std::make_unique<Impl>(Impl{.strategy = strategy,
                                      .checkpoint = checkpoint,
                                      .manager = CheckpointManager(checkpoint, directory, 1),
                                      .config = std::move(config)});
  if (impl_->config.termination_watcher == nullptr) {
    impl_->notice = std::make_unique<internal::TerminationNotice>();
  }
  if (impl_->config.save == nullptr && impl_->manager.restore_latest().has_value()) {
    impl_->calls = impl_->checkpoint.step();
  }
}

PreemptionCheckpointHandler::~PreemptionCheckpointHandler() = default;

std::uint64_t PreemptionCheckpointHandler::total_run_calls() const { return impl_->calls; }

void PreemptionCheckpointHandler::save_checkpoint_if_preempted() {
  internal::RequireCrossReplica(impl_->strategy, "PreemptionCheckpointHandler", "it outside run()");
  if (impl_->over) return;
  const auto now = steady_clock::now();
  // In whole milliseconds: a period without an end, milliseconds::max(), is more than the clock
  // has.
  const bool up = impl_->known.has_value() &&
                  std::chrono::floor<std::chrono::milliseconds>(now - *impl_->known) >=
                      impl_->config.grace_period;
  const auto [asked, ends] = impl_->Agree({impl_->Asked() ? 1 : 0, up ? 1 : 0});
  // What has once been asked for is not taken back, also where it could not be saved yet.
  if (impl_->known.has_value() ? impl_->saved && ends == 0 : asked == 0) return;
  impl_->known = impl_->known.value_or(now);
  impl_->Save();
  const bool first = !std::exchange(impl_->saved, true);
  if (first && ends == 0 && impl_->config.grace_period.count() > 0) return;
  impl_->over = true;
  if (impl_->config.exit != nullptr) return impl_->config.exit();
  // Nobody goes before all have heard that all is saved; who is gone by then has heard it.
  if (impl_->strategy.collectives() != nullptr) (void)impl_->strategy.collectives()->Barrier();
  log::Info("ends with exit code {}", kPreemptedExitCode);
  EndProcess();
}

void PreemptionCheckpointHandler::guarded(const std::function<void()>& step) {
  impl_->Guarded("call " + std::to_string(impl_->calls + 1) + " of run()", step);
  ++impl_->calls;
}

}  // namespace muster
