#include "device/replica_group.h"

#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/other_user.h"

namespace muster::device {
namespace {

std::exception_ptr Throw(const Status& status) {
  return std::make_exception_ptr(std::runtime_error(ToString(status)));
}

void Meet(ReplicaGroup& group, int replica, const std::string& kind) {
  group.Meet(replica, {kind, nullptr}, [](std::vector<void*>&) {});
}

std::string ErrorOf(ReplicaGroup& group, const std::function<void(int)>& replica) {
  try {
    group.Run(replica);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("every replica runs once, on a thread of its own, at the same time",
          "[device][spec][MIR-27]") {
  for (const int replicas : {1, 2, 5}) {
    ReplicaGroup group(replicas, Throw);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::atomic<int> inside{0};

    group.Run([&](int) {
      {
        const std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      }
      // Passes only when all replicas are inside at once.
      ++inside;
      while (inside.load() < replicas) std::this_thread::yield();
    });

    CHECK(threads.size() == static_cast<std::size_t>(replicas));
    CHECK(threads.count(std::this_thread::get_id()) == 0);
  }
}

TEST_CASE("the joint work sees everybody's arguments in replica order", "[device][unit]") {
  ReplicaGroup group(4, Throw);
  std::vector<int> sums(4);

  for (int round = 0; round < 200; ++round) {
    group.Run([&](int replica) {
      for (int call = 0; call < 3; ++call) {
        struct {
          int value;
          int sum = 0;
        } mine{replica * 10 + call};
        using Mine = decltype(mine);
        group.Meet(replica, {"sum", &mine}, [](std::vector<void*>& all) {
          int sum = 0;
          for (std::size_t r = 0; r < all.size(); ++r) {
            sum += static_cast<Mine*>(all[r])->value;
          }
          for (void* one : all) static_cast<Mine*>(one)->sum = sum;
        });
        sums[static_cast<std::size_t>(replica)] = mine.sum;
      }
    });
    REQUIRE(sums == std::vector<int>(4, 60 + 4 * 2));
  }
}

TEST_CASE("a failing replica unwinds those that wait, and its own error comes out",
          "[device][spec][MIR-27]") {
  ReplicaGroup group(3, Throw);
  std::atomic<int> cancelled{0};

  const std::string error = ErrorOf(group, [&](int replica) {
    if (replica == 1) throw std::runtime_error("replica 1 is ill");
    try {
      Meet(group, replica, "merge");
    } catch (const std::exception& unwound) {
      if (std::string(unwound.what()).find("CANCELLED") == 0) ++cancelled;
      throw;
    }
  });

  CHECK(error == "replica 1 is ill");
  CHECK(cancelled == 2);
  CHECK(ErrorOf(group, [&](int replica) { Meet(group, replica, "merge"); }).empty());
}

TEST_CASE("the lowest of several failing replicas is the one that is heard",
          "[device][spec][MIR-27]") {
  ReplicaGroup group(4, Throw);
  std::atomic<int> failing{0};

  const std::string error = ErrorOf(group, [&](int replica) {
    if (replica == 0) return;
    ++failing;
    while (failing.load() < 3) std::this_thread::yield();
    throw std::runtime_error(std::to_string(replica));
  });

  CHECK(error == "1");
}

TEST_CASE("a replica that returns while another waits is an error that names both",
          "[device][spec][MIR-29]") {
  ReplicaGroup group(2, Throw);

  const std::string error = ErrorOf(group, [&](int replica) {
    if (replica == 1) Meet(group, replica, "all_reduce SUM");
  });

  CHECK(error.find("FAILED_PRECONDITION") == 0);
  CHECK(error.find("replica 0 has returned") != std::string::npos);
  CHECK(error.find("replica 1 waits in all_reduce SUM") != std::string::npos);
  CHECK(ErrorOf(group, [&](int replica) { Meet(group, replica, "merge"); }).empty());
}

TEST_CASE("replicas that meet with different calls are all told so", "[device][spec][MIR-29]") {
  ReplicaGroup group(2, Throw);
  std::atomic<int> told{0};

  const std::string error = ErrorOf(group, [&](int replica) {
    try {
      Meet(group, replica, replica == 0 ? "merge_call of f" : "merge_call of g");
    } catch (...) {
      ++told;
      throw;
    }
  });

  CHECK(told == 2);
  CHECK(error.find("replica 0 waits in merge_call of f") != std::string::npos);
  CHECK(error.find("replica 1 waits in merge_call of g") != std::string::npos);
}

TEST_CASE("what the joint work throws is thrown in every replica", "[device][spec][LIB-17]") {
  ReplicaGroup group(3, Throw);
  std::atomic<int> caught{0};

  const std::string error = ErrorOf(group, [&](int replica) {
    try {
      group.Meet(replica, {"merge", nullptr},
                 [](std::vector<void*>&) { throw std::runtime_error("in the merge"); });
    } catch (...) {
      ++caught;
      throw;
    }
  });

  CHECK(error == "in the merge");
  CHECK(caught == 3);
}

TEST_CASE("of replicas that fail by what they were given together the lowest is heard",
          "[device][spec][MIR-27]") {
  ReplicaGroup group(2, Throw);
  std::vector<std::string> heard;
  // Which of them is awake first is chance.
  for (int run = 0; run < 500; ++run) {
    heard.push_back(ErrorOf(group, [&](int replica) {
      try {
        group.Meet(replica, {"merge", nullptr},
                   [](std::vector<void*>&) { throw std::runtime_error("in the merge"); });
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("replica {}: {}", replica, error.what()));
      }
    }));
  }
  CHECK(heard == std::vector<std::string>(500, "replica 0: in the merge"));
}

TEST_CASE("a time limit that the clock does not reach is none", "[device][unit]") {
  ReplicaGroup group(2, Throw);
  std::atomic<bool> waits{false};

  const std::string error = ErrorOf(group, [&](int replica) {
    if (replica == 0) {
      waits = true;
      group.Meet(
          0, {"merge", nullptr}, [](std::vector<void*>&) {}, std::chrono::milliseconds::max());
      return;
    }
    while (!waits) std::this_thread::yield();
    // Longer than replica 0 looks before it waits.
    for (int turn = 0; turn < 20'000; ++turn) std::this_thread::yield();
    Meet(group, 1, "merge");
  });

  CHECK(error == "");
}

// ThreadSanitizer does not follow a fork() of a process with threads.
#ifndef __SANITIZE_THREAD__
TEST_CASE("in a child that was forked a run is refused, and the group goes without a wait",
          "[device][unit]") {
  auto group = std::make_unique<ReplicaGroup>(3, Throw);
  group->Run([](int) {});

  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool refused = ErrorOf(*group, [](int) {}).find("forked") != std::string::npos;
    group.reset();
    ReplicaGroup own(2, Throw);  // made here: it has threads
    std::atomic<int> ran{0};
    own.Run([&](int) { ++ran; });
    _exit(refused && ran == 2 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(child > 0);
  REQUIRE(waitpid(child, &status, 0) == child);

  CHECK(status == 0);
  CHECK(ErrorOf(*group, [](int) {}).empty());
}

TEST_CASE("threads that have started end where a further one cannot be had", "[device][unit]") {
  if (!testing::MayBeOthers()) return;
  // The other user may have four threads, this process's first among them.
  const testing::OtherUser other([]() -> std::string {
    alarm(20);
    rlimit limit{};
    if (getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_max < 64) return "no limit to set";
    const rlim_t before = std::exchange(limit.rlim_cur, 4);
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) return "no limit to set";
    std::string words;
    try {
      const ReplicaGroup group(8, Throw);
      return "no limit to set";
    } catch (const std::exception& error) {
      words = error.what();
    }
    limit.rlim_cur = before;
    (void)setrlimit(RLIMIT_NPROC, &limit);
    std::atomic<int> ran{0};
    ReplicaGroup(8, Throw).Run([&](int) { ++ran; });
    return words + fmt::format("; then {} ran", ran.load());
  });

  const std::string words = other.Words();
  if (words == "no limit to set") {
    WARN("left out: the number of this user's threads cannot be limited");
    return;
  }
  CAPTURE(words);
  CHECK(words.starts_with("RESOURCE_EXHAUSTED: a thread for replica "));
  CHECK(words.find(" of 8 cannot be had: ") != std::string::npos);
  CHECK(words.ends_with("; then 8 ran"));
}
#endif

}  // namespace
}  // namespace muster::device
