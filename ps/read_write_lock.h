// A reader-writer lock that lets no writer starve, and that ThreadSanitizer understands (Debian's
// absl::Mutex is opaque to it; std::shared_mutex prefers readers). Annotated as a Mutex is: clang
// checks that what it guards is read under it, and changed by one who holds it alone.
// Threading: any thread.
#pragma once

#include <pthread.h>

#include "common/base/thread_annotations.h"

namespace muster::ps {

// For ReadLock and WriteLock. Not recursive, not even for readers.
class MUSTER_CAPABILITY("mutex") ReadWriteLock {
 public:
  ReadWriteLock() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~ReadWriteLock() { pthread_rwlock_destroy(&lock_); }
  ReadWriteLock(const ReadWriteLock&) = delete;
  ReadWriteLock& operator=(const ReadWriteLock&) = delete;

  void lock() MUSTER_ACQUIRE() { pthread_rwlock_wrlock(&lock_); }
  void unlock() MUSTER_RELEASE() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() MUSTER_ACQUIRE_SHARED() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() MUSTER_RELEASE_SHARED() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

// Holds it among other readers until it goes.
class MUSTER_SCOPED_CAPABILITY ReadLock {
 public:
  explicit ReadLock(ReadWriteLock& held) MUSTER_ACQUIRE_SHARED(held) : held_(held) {
    held_.lock_shared();
  }
  ~ReadLock() MUSTER_RELEASE() { held_.unlock_shared(); }
  ReadLock(const ReadLock&) = delete;
  ReadLock& operator=(const ReadLock&) = delete;

 private:
  ReadWriteLock& held_;
};

// Holds it alone until it goes.
class MUSTER_SCOPED_CAPABILITY WriteLock {
 public:
  explicit WriteLock(ReadWriteLock& held) MUSTER_ACQUIRE(held) : held_(held) { held_.lock(); }
  ~WriteLock() MUSTER_RELEASE() { held_.unlock(); }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

 private:
  ReadWriteLock& held_;
};

}  // namespace muster::ps
