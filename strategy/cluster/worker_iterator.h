// A worker's pass over the data of a per-worker dataset, as a function gets it.
//
// Threading: any thread; closures that run at the same time share a pass. Lifetime: that of the
// call.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "strategy/base/closure_error.h"
#include "strategy/cluster/worker_context.h"

namespace muster {
namespace internal {

// Where a pass stands, for the worker's next executor.
struct PassPlace {
  // Elements taken, by executors before this one too.
  std::uint64_t taken = 0;
  std::string position;
};

[[noreturn]] void raise_all_taken(std::int64_t elements);
[[noreturn]] void raise_some_left(std::int64_t taken, std::int64_t elements);
[[noreturn]] void raise_not_shared();

}  // namespace internal

// This worker's pass over its data: of a dataset's pieces, the next one; under
// InputGuarantee::kExactlyOnce the closure's own part of a pass of all workers. next() throws
// CANCELLED when the closure is cancelled, before it asks the dataset; one that waits long should
// look at cancellation() itself.
template <class T>
class WorkerIterator {
 public:
  using value_type = T;

  virtual ~WorkerIterator() = default;

  // Nothing at the end of this worker's data, or of the closure's own elements. What the dataset
  // throws.
  std::optional<T> next() {
    throw_if_cancelled();
    const MutexLock lock(mutex_);
    return take();
  }
  // EndOfData.  FAILED_PRECONDITION: the closure's own elements are taken, and there are more.
  T get_next() {
    throw_if_cancelled();
    const MutexLock lock(mutex_);
    std::optional<T> value = take();
    if (!value) {
      raise_if_all_taken();
      throw EndOfData("the data of worker " + std::to_string(worker_index()) + " has ended");
    }
    return *std::move(value);
  }

  // For function.h. Absent: it cannot say where it stands, or nothing was taken.
  virtual std::optional<internal::PassPlace> place() { return std::nullopt; }
  // The part, in a pass that all workers share, of the closure that has this turn.
  virtual std::shared_ptr<WorkerIterator> part(std::uint64_t /*turn*/) {
    internal::raise_not_shared();
  }
  // Ends such a part. FAILED_PRECONDITION: elements were left.
  virtual void finish() {}

 protected:
  virtual std::optional<T> take() = 0;
  virtual void raise_if_all_taken() const {}
  Mutex& mutex() { return mutex_; }

 private:
  Mutex mutex_;
};

namespace internal {

// A pass of the worker's own, from the beginning or from where another executor came to.
template <class D, class T>
class OwnPass final : public WorkerIterator<T> {
  using Iterator = std::decay_t<decltype(std::declval<const D&>().iterator())>;
  static constexpr bool kHasPlace = requires(const D& dataset, const Iterator& iterator) {
    { iterator.save_position() } -> std::same_as<std::string>;
    dataset.iterator(std::optional<std::string>());
  };

 public:
  OwnPass(std::shared_ptr<const D> dataset, PassPlace from)
      : dataset_(std::move(dataset)), taken_(from.taken) {
    if constexpr (kHasPlace) {
      if (taken_ > 0) {
        iterator_.emplace(dataset_->iterator(from.position));
        return;
      }
    }
    iterator_.emplace(dataset_->iterator());
  }

  std::optional<PassPlace> place() override {
    if constexpr (kHasPlace) {
      const MutexLock lock(this->mutex());
      if (taken_ > 0) {
        return PassPlace{.taken = taken_,
                         .position = iterator_ ? iterator_->save_position() : before_};
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<T> take() override {
    if constexpr (kHasPlace) {
      if (!iterator_) iterator_.emplace(dataset_->iterator(before_));
    }
    try {
      std::optional<T> value = iterator_->next();
      if (value) ++taken_;
      return value;
    } catch ([[maybe_unused]] const Error& error) {
      // It was one closure that was cancelled, in a function of the dataset; the iterator would
      // give all others its error.
      if constexpr (kHasPlace) {
        if (error.code() == ErrorCode::kCancelled) {
          before_ = iterator_->save_position();
          iterator_.reset();
        }
      }
      throw;
    }
  }

  const std::shared_ptr<const D> dataset_;
  // Absent: a cancelled closure has ended it before this position, where the next one goes on.
  std::optional<Iterator> iterator_;
  std::string before_;
  std::uint64_t taken_;
};

// A pass that all workers share: each closure finds its elements by their numbers.
template <class Iterator, class T>
class SharedPass final : public WorkerIterator<T> {
 public:
  SharedPass(Iterator iterator, std::int64_t elements_per_closure)
      : pass_(std::make_shared<Pass>(std::move(iterator))), elements_(elements_per_closure) {}

  std::shared_ptr<WorkerIterator<T>> part(std::uint64_t turn) override {
    const bool has_number = turn <= static_cast<std::uint64_t>(kBehindAll / elements_);
    const std::int64_t first =
        has_number ? static_cast<std::int64_t>(turn) * elements_ : kBehindAll;
    return std::make_shared<Part>(pass_, first, elements_);
  }

 private:
  // No data have an element of this number.
  static constexpr std::int64_t kBehindAll = std::numeric_limits<std::int64_t>::max();

  struct Pass {
    explicit Pass(Iterator from) : iterator(std::move(from)) {}
    Mutex mutex;
    Iterator iterator MUSTER_GUARDED_BY(mutex);
    // The number of its next element; -1: not known.
    std::int64_t at MUSTER_GUARDED_BY(mutex) = 0;
  };
  class Part final : public WorkerIterator<T> {
   public:
    Part(std::shared_ptr<Pass> pass, std::int64_t first, std::int64_t elements)
        : pass_(std::move(pass)), first_(first), elements_(elements) {}

    void finish() override {
      if (!over_ && taken_ < elements_) raise_some_left(taken_, elements_);
    }

   private:
    std::optional<T> take() override {
      if (over_ || taken_ == elements_) return std::nullopt;
      over_ = taken_ >= kBehindAll - first_;
      if (over_) return std::nullopt;
      const MutexLock lock(pass_->mutex);
      const std::int64_t wanted = first_ + taken_;
      // An iterator keeps an error, which may be of a closure that was cancelled: whoever takes its
      // turn seeks anew.
      const bool there = std::exchange(pass_->at, -1) == wanted;
      if (!there) pass_->iterator.seek(wanted);
      std::optional<T> value = pass_->iterator.next();
      if (value) {
        pass_->at = wanted + 1;
        ++taken_;
      } else {
        over_ = true;
      }
      return value;
    }
    void raise_if_all_taken() const override {
      if (!over_) raise_all_taken(elements_);
    }

    const std::shared_ptr<Pass> pass_;
    const std::int64_t first_;
    const std::int64_t elements_;
    std::int64_t taken_ = 0;
    bool over_ = false;  // the data ends within or before it
  };

  // Nobody is given the pass itself.
  std::optional<T> take() override { raise_not_shared(); }

  const std::shared_ptr<Pass> pass_;
  const std::int64_t elements_;
};

}  // namespace internal
}  // namespace muster
