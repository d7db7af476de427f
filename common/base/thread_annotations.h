// What a mutex guards, said so that clang checks it: the tidy preset compiles with -Wthread-safety.
// Other compilers see nothing.
//
//   class Table {
//     ...
//     void Trim() MUSTER_REQUIRES(mutex_);  // the caller holds mutex_
//
//     Mutex mutex_;
//     std::size_t kept_ MUSTER_GUARDED_BY(mutex_) = 0;
//   };
#pragma once

#ifdef __clang__
#define MUSTER_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MUSTER_THREAD_ATTRIBUTE(x)
#endif

#define MUSTER_CAPABILITY(kind) MUSTER_THREAD_ATTRIBUTE(capability(kind))
#define MUSTER_SCOPED_CAPABILITY MUSTER_THREAD_ATTRIBUTE(scoped_lockable)
#define MUSTER_GUARDED_BY(mutex) MUSTER_THREAD_ATTRIBUTE(guarded_by(mutex))
#define MUSTER_REQUIRES(...) MUSTER_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define MUSTER_REQUIRES_SHARED(...) MUSTER_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define MUSTER_ACQUIRE(...) MUSTER_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MUSTER_ACQUIRE_SHARED(...) MUSTER_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define MUSTER_TRY_ACQUIRE(...) MUSTER_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define MUSTER_RELEASE(...) MUSTER_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define MUSTER_RELEASE_SHARED(...) MUSTER_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define MUSTER_RETURN_CAPABILITY(mutex) MUSTER_THREAD_ATTRIBUTE(lock_returned(mutex))
