// What the members of a meeting brought, each an object of one type.
#pragma once

#include <cstddef>
#include <vector>

namespace muster {

// A typed view of the pointers that a meeting place hands on. Whoever opens the meeting answers for
// it: all that come with the same call bring a T.
//
// Lifetime: the pointers outlive it.
template <class T>
class Arrivals {
 public:
  class Iterator {
   public:
    explicit Iterator(void* const* at) : at_(at) {}
    T& operator*() const { return *static_cast<T*>(*at_); }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    void* const* at_;
  };

  explicit Arrivals(const std::vector<void*>& all) : all_(all) {}

  // By member: replica, rank.
  T& operator[](std::size_t member) const { return *static_cast<T*>(all_[member]); }
  std::size_t size() const { return all_.size(); }
  Iterator begin() const { return Iterator(all_.data()); }
  Iterator end() const { return Iterator(all_.data() + all_.size()); }

 private:
  const std::vector<void*>& all_;
};

}  // namespace muster
