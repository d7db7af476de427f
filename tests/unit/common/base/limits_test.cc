#include "common/base/limits.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <sched.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// A machine's /proc and /sys as a folder.
class LimitsRoot {
 public:
  void Write(const std::string& name, const std::string& text) const {
    const fs::path file = folder_.path() + name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  Limits Read() const { return ReadLimits(folder_.path()); }
  std::optional<std::uint64_t> OomKills() const { return ReadOomKills(folder_.path()); }
  std::optional<std::uint64_t> Available() const { return AvailableMemory(folder_.path()); }

 private:
  const testing::TempFolder folder_;
};

int Mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

constexpr const char* kVersion2 =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
constexpr const char* kVersion1 =
    "33 32 0:30 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 32 0:31 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory";

TEST_CASE("a container's own group is at the mount point of version 2", "[base][limits]") {
  const LimitsRoot root;
  root.Write("/proc/self/mountinfo", kVersion2);
  root.Write("/proc/self/cgroup", "0::/");
  root.Write("/sys/fs/cgroup/cpu.max", "150000 100000");
  root.Write("/sys/fs/cgroup/memory.max", "536870912");

  const Limits limits = root.Read();

  CHECK(limits.quota == 1.5);
  CHECK(limits.memory_bytes == std::uint64_t{512} << 20);
  CHECK(limits.processors() == std::min(2, Mask()));
  CHECK(limits.ToString().find("(a quota of 1.5), 512 MiB of memory") != std::string::npos);
}

TEST_CASE("the least limit of all groups above counts", "[base][limits]") {
  const LimitsRoot root;
  root.Write("/proc/self/mountinfo", kVersion2);
  root.Write("/proc/self/cgroup", "0::/kubepods/pod1/daemon");
  root.Write("/sys/fs/cgroup/kubepods/pod1/daemon/cpu.max", "max 100000");
  root.Write("/sys/fs/cgroup/kubepods/pod1/daemon/memory.max", "2147483648");
  root.Write("/sys/fs/cgroup/kubepods/pod1/cpu.max", "50000 100000");
  root.Write("/sys/fs/cgroup/kubepods/pod1/memory.max", "1073741824");

  const Limits limits = root.Read();

  CHECK(limits.quota == 0.5);
  CHECK(limits.processors() == 1);
  CHECK(limits.memory_bytes == std::uint64_t{1} << 30);
}

TEST_CASE("version 1 has a hierarchy for each controller, and -1 for no quota", "[base][limits]") {
  const LimitsRoot root;
  root.Write("/proc/self/mountinfo", kVersion1);
  root.Write("/proc/self/cgroup", "5:cpuacct,cpu:/a\n4:memory:/a/b\n0::/");
  root.Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  CHECK_FALSE(root.Read().quota.has_value());
  CHECK_FALSE(root.Read().memory_bytes.has_value());
  CHECK(root.Read().processors() == Mask());

  root.Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "25000");
  root.Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000");
  root.Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1048576");
  CHECK(root.Read().quota == 0.5);
  CHECK(root.Read().memory_bytes == std::uint64_t{1} << 20);
}

TEST_CASE("what is left is the least of machine and groups, and their page cache counts as left",
          "[base][limits]") {
  const LimitsRoot root;
  CHECK_FALSE(root.Available().has_value());
  root.Write("/proc/meminfo", "MemTotal:  8192 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB");
  CHECK(root.Available() == std::uint64_t{4} << 20);

  root.Write("/proc/self/mountinfo", kVersion2);
  root.Write("/proc/self/cgroup", "0::/pod/daemon");
  root.Write("/sys/fs/cgroup/pod/daemon/memory.max", "max");
  root.Write("/sys/fs/cgroup/pod/daemon/memory.current", "900000");
  CHECK(root.Available() == std::uint64_t{4} << 20);

  root.Write("/sys/fs/cgroup/pod/memory.max", "1000000");
  root.Write("/sys/fs/cgroup/pod/memory.current", "900000");
  CHECK(root.Available() == 100'000U);

  root.Write("/sys/fs/cgroup/pod/memory.stat",
             "anon 500000\nfile 400000\ninactive_file 150000\nactive_file 250000");
  CHECK(root.Available() == 500'000U);

  root.Write("/sys/fs/cgroup/pod/memory.current", "1500000");
  CHECK(root.Available() == 0U);
}

TEST_CASE("what version 1 leaves counts its groups below, too", "[base][limits]") {
  const LimitsRoot root;
  root.Write("/proc/self/mountinfo", kVersion1);
  root.Write("/proc/self/cgroup", "5:cpu:/a\n4:memory:/a");
  root.Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000");
  root.Write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "900000");
  root.Write("/sys/fs/cgroup/memory/a/memory.stat",
             "active_file 1\ninactive_file 1\ntotal_active_file 100000\ntotal_inactive_file 0");

  CHECK(root.Available() == 200'000U);
}

TEST_CASE("a container that is told its host's path is found below its mount", "[base][limits]") {
  const LimitsRoot root;
  root.Write("/proc/self/mountinfo",
             "33 32 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
             "34 32 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory");
  root.Write("/proc/self/cgroup", "5:cpu:/docker/abc\n4:memory:/elsewhere/xyz");
  root.Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000");
  root.Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096");

  CHECK(root.Read().quota == 3.0);
  CHECK(root.Read().memory_bytes == 4096U);
}

TEST_CASE("a mounted group is not above one whose name only begins like its own",
          "[base][limits]") {
  const LimitsRoot root;
  root.Write("/proc/self/mountinfo",
             "33 32 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
             "34 32 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory");
  root.Write("/proc/self/cgroup", "5:cpu:/docker/abc/inner\n4:memory:/docker/abcdef/inner");
  root.Write("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "300000");
  root.Write("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000");
  root.Write("/sys/fs/cgroup/memorydef/inner/memory.limit_in_bytes", "1024");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096");

  CHECK(root.Read().quota == 3.0);
  CHECK(root.Read().memory_bytes == 4096U);
}

TEST_CASE("what cannot be read, or is no number, limits nothing", "[base][limits]") {
  const LimitsRoot root;
  CHECK(root.Read().processors() == Mask());

  root.Write("/proc/self/mountinfo", std::string(kVersion2) + "\nnonsense\n1 2 - \n");
  root.Write("/proc/self/cgroup", "nonsense\n0::/../../x");
  root.Write("/sys/fs/cgroup/cpu.max", "many 0");
  root.Write("/sys/fs/cgroup/memory.max", "18446744073709551616");
  CHECK_FALSE(root.Read().quota.has_value());
  CHECK_FALSE(root.Read().memory_bytes.has_value());
}

TEST_CASE("this process's limits are at least one processor", "[base][limits]") {
  CHECK(UsableProcessors() >= 1);
  CHECK(UsableProcessors() <= Mask());
}

TEST_CASE("whom the kernel has ended for want of memory is counted by the process's own group",
          "[base][limits]") {
  const LimitsRoot root;
  CHECK(root.OomKills() == std::nullopt);
  root.Write("/proc/vmstat", "nr_free_pages 7\noom_kill 9\nswap_ra 1");
  CHECK(root.OomKills() == 9);

  root.Write("/proc/self/mountinfo", kVersion1);
  root.Write("/proc/self/cgroup", "5:cpuacct,cpu:/a\n4:memory:/a/b");
  CHECK(root.OomKills() == 9);  // an old kernel's group does not count them
  root.Write("/sys/fs/cgroup/memory/a/b/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 2");
  CHECK(root.OomKills() == 2);

  root.Write("/proc/self/mountinfo", kVersion2);
  root.Write("/proc/self/cgroup", "0::/pod/daemon");
  root.Write("/sys/fs/cgroup/pod/memory.events", "oom 4\noom_kill 4");
  root.Write("/sys/fs/cgroup/pod/daemon/memory.events", "low 0\nmax 8\noom 3\noom_kill 3");
  CHECK(root.OomKills() == 3);
  root.Write("/sys/fs/cgroup/pod/daemon/memory.events.local", "low 0\nmax 8\noom 1\noom_kill 1");
  CHECK(root.OomKills() == 1);  // not of groups below
}

}  // namespace
}  // namespace muster
