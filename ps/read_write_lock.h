// A reader-writer lock that lets no writer starve, and that ThreadSanitizer understands (Debian's
// absl::Mutex is opaque to it; std::shared_mutex prefers readers). Threading: any thread.
#pragma once

#include <pthread.h>

namespace muster::ps {

// For std::unique_lock and std::shared_lock. Not recursive, not even for readers.
class ReadWriteLock {
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

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

}  // namespace muster::ps
