// A set of numbers that is mostly runs: costs memory by run, not by number.
//
// Threading: not thread-safe.
#pragma once

#include <cstdint>
#include <map>

namespace muster::coordinator {

class IntervalSet {
 public:
  bool Contains(std::uint64_t id) const {
    const auto after = runs_.upper_bound(id);
    return after != runs_.begin() && std::prev(after)->second >= id;
  }

  // False: it was in already.
  bool Insert(std::uint64_t id) {
    if (Contains(id)) return false;
    std::uint64_t first = id, last = id;
    const auto after = runs_.upper_bound(id);
    if (after != runs_.end() && after->first == id + 1) {
      last = after->second;
      runs_.erase(after);
    }
    const auto before = runs_.lower_bound(id);
    if (before != runs_.begin() && std::prev(before)->second + 1 == id) {
      first = std::prev(before)->first;
    }
    runs_[first] = last;
    return true;
  }

  // first..last; none of them, and nothing above them, may be in.
  void Append(std::uint64_t first, std::uint64_t last) {
    if (!runs_.empty() && std::prev(runs_.end())->second + 1 == first) {
      std::prev(runs_.end())->second = last;
    } else {
      runs_[first] = last;
    }
  }

  void Erase(std::uint64_t id) {
    auto run = runs_.upper_bound(id);
    if (run == runs_.begin()) return;
    --run;
    const auto [first, last] = *run;
    if (last < id) return;
    runs_.erase(run);
    if (first < id) runs_[first] = id - 1;
    if (id < last) runs_[id + 1] = last;
  }

  // The last of the run that `id` is in; id - 1 when it is in none.
  std::uint64_t EndOfRun(std::uint64_t id) const {
    const auto after = runs_.upper_bound(id);
    return Contains(id) ? std::prev(after)->second : id - 1;
  }

  void Clear() { runs_.clear(); }
  std::size_t runs() const { return runs_.size(); }

 private:
  std::map<std::uint64_t, std::uint64_t> runs_;  // first -> last
};

}  // namespace muster::coordinator
