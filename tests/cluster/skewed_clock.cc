// A host whose clock is wrong, for unmodified programs (LD_PRELOAD): the time of day is
// MUSTER_CLOCK_SKEW seconds ahead of the kernel's (negative: behind). Who waits until a time of day
// waits until this one; the monotonic clock, and the times of files, are the kernel's.
#include <cstdarg>
#include <cstdlib>
#include <ctime>

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

long Skew() {
  static const long skew = [] {
    const char* const text = std::getenv("MUSTER_CLOCK_SKEW");
    return text == nullptr ? 0 : std::atol(text);
  }();
  return skew;
}

template <class Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

timespec Kernels(const timespec& ours) {
  timespec at = ours;
  at.tv_sec -= Skew();
  return at;
}

// glibc keeps there which clock a condition variable waits by.
bool IsMonotonic(const pthread_cond_t& condition) {
  constexpr unsigned kClockMonotonic = 2;
  return (condition.__data.__wrefs & kClockMonotonic) != 0;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* at) noexcept {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, at);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += Skew();
  return result;
}

int gettimeofday(timeval* at, void* zone) noexcept {
  static auto* const next = Next<int(timeval*, void*)>("gettimeofday");
  const int result = next(at, zone);
  at->tv_sec += Skew();
  return result;
}

time_t time(time_t* into) noexcept {
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(timespec* at, int base) noexcept {
  if (base != TIME_UTC) return 0;
  (void)clock_gettime(CLOCK_REALTIME, at);
  return base;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  const timespec at = IsMonotonic(*condition) ? *until : Kernels(*until);
  return next(condition, mutex, &at);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  const timespec at = clock == CLOCK_REALTIME ? Kernels(*until) : *until;
  return next(condition, mutex, clock, &at);
}

int sem_timedwait(sem_t* semaphore, const timespec* until) {
  static auto* const next = Next<int(sem_t*, const timespec*)>("sem_timedwait");
  const timespec at = Kernels(*until);
  return next(semaphore, &at);
}

// abseil, and gRPC by it, waits with a futex of its own, by the time of day.
long syscall(long number, ...) noexcept {
  static auto* const next = Next<long(long, ...)>("syscall");
  constexpr int kMost = 6;
  long with[kMost];
  va_list list;
  va_start(list, number);
  for (long& one : with) one = va_arg(list, long);
  va_end(list);
  timespec at{};
  if (number == SYS_futex && (with[1] & FUTEX_CLOCK_REALTIME) != 0 && with[3] != 0) {
    at = Kernels(*reinterpret_cast<const timespec*>(with[3]));
    with[3] = reinterpret_cast<long>(&at);
  }
  return next(number, with[0], with[1], with[2], with[3], with[4], with[5]);
}

}  // extern "C"
