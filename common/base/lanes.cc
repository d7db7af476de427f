#include "common/base/lanes.h"

#include <deque>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/mutex.h"

namespace muster {

// The lanes' threads share it: they may outlive the object.
struct Lanes::State {
  struct Piece {
    std::uint64_t id = 0;
    Function work;
  };

  Mutex mutex;
  Condition ended;
  Scheduler* strand MUSTER_GUARDED_BY(mutex) = nullptr;  // null once stopped
  // Those that have a thread.
  std::map<std::string, std::deque<Piece>> lanes MUSTER_GUARDED_BY(mutex);
  // For pieces that have not ended.
  std::map<std::uint64_t, Function> thens MUSTER_GUARDED_BY(mutex);
  std::uint64_t next MUSTER_GUARDED_BY(mutex) = 1;

  explicit State(Scheduler& with) : strand(&with) {}

  static void Work(const std::shared_ptr<State>& state, const std::string& lane) {
    MutexLock lock(state->mutex);
    while (true) {
      std::deque<Piece>& pieces = state->lanes.at(lane);
      if (pieces.empty()) {
        state->lanes.erase(lane);
        state->ended.notify_all();
        return;
      }
      Piece piece = std::move(pieces.front());
      pieces.pop_front();
      lock.unlock();
      piece.work();
      piece.work = nullptr;  // what it captured is destroyed without the lock
      lock.lock();
      const auto then = state->thens.find(piece.id);
      if (then == state->thens.end() || state->strand == nullptr) continue;
      state->strand->Post(std::move(then->second));
      state->thens.erase(then);
    }
  }
};

Lanes::Lanes(Scheduler& strand) : state_(std::make_shared<State>(strand)) {}

Lanes::~Lanes() { Stop(Millis(0)); }

void Lanes::Run(const std::string& lane, Function work, Function then) {
  const MutexLock lock(state_->mutex);
  if (state_->strand == nullptr) return;
  const auto [pieces, fresh] = state_->lanes.try_emplace(lane);
  if (fresh) {
    try {
      std::thread([state = state_, lane] { State::Work(state, lane); }).detach();
    } catch (const std::system_error&) {
      state_->lanes.erase(pieces);
      return state_->strand->Post(std::move(then));
    }
  }
  const std::uint64_t id = state_->next++;
  pieces->second.push_back({id, std::move(work)});
  state_->thens.emplace(id, std::move(then));
}

void Lanes::Stop(Millis limit) {
  // Destroyed without the lock.
  std::deque<State::Piece> dropped;
  std::map<std::uint64_t, Function> thens;
  MutexLock lock(state_->mutex);
  state_->strand = nullptr;
  thens.swap(state_->thens);
  for (auto& [lane, pieces] : state_->lanes) {
    for (State::Piece& piece : pieces) dropped.push_back(std::move(piece));
    pieces.clear();
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  while (!state_->lanes.empty() && state_->ended.wait_until(state_->mutex, deadline)) {
  }
  lock.unlock();
}

}  // namespace muster
