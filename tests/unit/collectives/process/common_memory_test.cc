#include "collectives/process/common_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/kernels.h"
#include "collectives/process/shared_memory.h"
#include "collectives/process/shared_operations.h"
#include "collectives/process/signature.h"
#include "collectives/queued_group.h"
#include "common/base/dtype.h"
#include "tests/support/no_descriptors.h"
#include "tests/support/shared_mapping.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

Address Members(int size, Transport transport = Transport::kBest) {
  Address address(size);
  address.spec.transport = transport;
  return address;
}

// A small whole number, another one at each element and of each member.
float ValueOf(int rank, std::size_t element) {
  return static_cast<float>((element * 7 + static_cast<std::size_t>(rank) * 13) % 101) - 50;
}

// What all members bring with these values.
float SumAt(int members, std::size_t element) {
  float sum = 0;
  for (int r = 0; r < members; ++r) sum += ValueOf(r, element);
  return sum;
}

ReduceBuffer Floats(const void* in, void* out, std::size_t count) {
  return {
      .type = DType::kFloat32, .shape = {static_cast<std::int64_t>(count)}, .in = in, .out = out};
}

// Room for `count` floats of this member.
std::shared_ptr<std::byte> Room(Group& group, std::size_t count) {
  auto memory = group.AllocateCommon(count * sizeof(float));
  if (memory.ok()) return *std::move(memory);
  FAIL_CHECK(ToString(memory.status()));
  return *OrdinaryMemory(count * sizeof(float));
}

std::span<float> AsFloats(const std::shared_ptr<std::byte>& memory, std::size_t count) {
  return {reinterpret_cast<float*>(memory.get()), count};
}

void Fill(std::span<float> values, int rank) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(rank, i);
}

// Where another number stands than the sum of all; none: -1.
std::ptrdiff_t FirstWrong(std::span<const float> sums, int members) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] != SumAt(members, i)) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

TEST_CASE("What lies in common memory is summed as what lies elsewhere",
          "[collectives][process][COL-01]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  const int size = GENERATE(1, 2, 3, 5);
  InGroup(Members(size, by), [&](Group& group) {
    for (const std::size_t count : {1U, 1'000U, 9'001U, 70'003U, 1'500'000U}) {
      const auto in = Room(group, count);
      const auto out = Room(group, count);
      if (testing::IsShared(in.get()) != (by == Transport::kBest && size > 1))
        FAIL_CHECK("which memory");
      if (std::ranges::any_of(AsFloats(out, count), [](float v) { return v != 0; })) {
        FAIL_CHECK("not zero at first");
      }
      // Again and again: what a member still reads is not overwritten by the next call.
      for (int round = 0; round < 3; ++round) {
        Fill(AsFloats(in, count), group.rank());
        const ReduceBuffer apart = Floats(in.get(), out.get(), count);
        if (!group.AllReduce(Reduction::kSum, {&apart, 1}).ok()) FAIL_CHECK("apart");
        if (FirstWrong(AsFloats(out, count), size) >= 0) FAIL_CHECK("a wrong sum of " << count);
        const ReduceBuffer in_place = Floats(in.get(), in.get(), count);
        if (!group.AllReduce(Reduction::kSum, {&in_place, 1}).ok()) FAIL_CHECK("in place");
        if (FirstWrong(AsFloats(in, count), size) >= 0) FAIL_CHECK("in place, " << count);
      }
    }
  });
}

// So many elements of a type, each a small whole number that depends on the member.
void FillAs(DType type, std::byte* to, std::size_t count, int rank) {
  const auto fill = [&]<class T>(T) {
    for (std::size_t i = 0; i < count; ++i) {
      const T value = static_cast<T>((i + static_cast<std::size_t>(rank)) % 5 + 1);
      std::memcpy(to + i * sizeof(T), &value, sizeof(T));
    }
  };
  switch (type) {
    case DType::kFloat64:
      return fill(double{});
    case DType::kInt32:
      return fill(std::int32_t{});
    case DType::kUint8:
      return fill(std::uint8_t{});
    default:
      return fill(std::uint16_t{});  // bits of a narrow floating number
  }
}

TEST_CASE("Each type and reduction has the same bits in common memory and out of it",
          "[collectives][process][COL-01][COL-02]") {
  const int size = GENERATE(2, 3);
  InGroup(Members(size), [&](Group& group) {
    constexpr std::size_t kCount = 40'001;
    const auto common = group.AllocateCommon(2 * kCount * sizeof(double));
    if (!common.ok()) FAIL_CHECK(ToString(common.status()));
    if (!common.ok()) return;
    std::byte* const in = common->get();
    std::byte* const out = in + kCount * sizeof(double);
    for (const DType type : {DType::kFloat64, DType::kInt32, DType::kUint8, DType::kBfloat16}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin,
                                        Reduction::kMax, Reduction::kProduct}) {
        const std::size_t result = kCount * SizeOf(ResultType(reduction, type));
        std::vector<std::byte> elsewhere(kCount * SizeOf(type)), expected(result);
        FillAs(type, in, kCount, group.rank());
        std::memcpy(elsewhere.data(), in, elsewhere.size());
        const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(kCount)};
        const ReduceBuffer there = {.type = type, .shape = shape, .in = in, .out = out};
        const ReduceBuffer here = {
            .type = type, .shape = shape, .in = elsewhere.data(), .out = expected.data()};
        if (!group.AllReduce(reduction, {&there, 1}).ok()) FAIL_CHECK("in common memory");
        if (!group.AllReduce(reduction, {&here, 1}).ok()) FAIL_CHECK("elsewhere");
        if (std::memcmp(out, expected.data(), result) != 0) {
          FAIL_CHECK(NameOf(reduction) << " of " << NameOf(type) << " has other bits");
        }
      }
    }
  });
}

TEST_CASE("Buffers of one call may lie anywhere on each member", "[collectives][process][COL-01]") {
  const int size = GENERATE(2, 4);
  InGroup(Members(size), [&](Group& group) {
    constexpr std::size_t kCount = 30'000;
    const auto first = Room(group, 3 * kCount);
    const auto second = Room(group, 2 * kCount);
    std::vector<float> own(3 * kCount);
    const std::span<float> one = AsFloats(first, 3 * kCount);
    const std::span<float> other = AsFloats(second, 2 * kCount);
    const int rank = group.rank();
    // Bit 0: the first buffer's input lies in common memory; bit 1: its result does; bit 2: the
    // second's input does; bit 3: it is summed in place; bit 4: that is so at rank 0 alone.
    for (unsigned where = 0; where < 32; ++where) {
      const unsigned mine = (where & 16) != 0 && rank != 0 ? 15 : where;
      float* const a = (mine & 1) != 0 ? one.data() : own.data();
      float* const a_sum = (mine & 2) != 0 ? one.data() + kCount : own.data() + kCount;
      float* const b = (mine & 4) != 0 ? other.data() : own.data() + 2 * kCount;
      float* const b_sum = (mine & 8) != 0 ? b : one.data() + 2 * kCount;
      Fill({a, kCount}, rank);
      Fill({b, kCount}, rank);
      const ReduceBuffer buffers[] = {Floats(a, a_sum, kCount), Floats(nullptr, nullptr, 0),
                                      Floats(b, b_sum, kCount)};
      if (!group.AllReduce(Reduction::kSum, buffers).ok()) FAIL_CHECK("failed at " << where);
      if (FirstWrong({a_sum, kCount}, size) >= 0) FAIL_CHECK("first buffer, " << where);
      if (FirstWrong({b_sum, kCount}, size) >= 0) FAIL_CHECK("second buffer, " << where);
    }
  });
}

TEST_CASE("Members may give their common memory back and ask for other",
          "[collectives][process][COL-01]") {
  InGroup(Members(3), [&](Group& group) {
    constexpr std::size_t kCount = 20'000;
    for (int round = 0; round < 20; ++round) {
      auto memory = Room(group, kCount);
      auto next = Room(group, kCount);
      std::vector<float> own(kCount);
      // One member has given its own back and brings what lies elsewhere.
      if (group.rank() == round % 3) memory.reset();
      float* const in = memory ? AsFloats(memory, kCount).data() : own.data();
      Fill({in, kCount}, group.rank());
      const ReduceBuffer mixed = Floats(in, in, kCount);
      if (!group.AllReduce(Reduction::kSum, {&mixed, 1}).ok()) FAIL_CHECK("mixed");
      if (FirstWrong({in, kCount}, 3) >= 0) FAIL_CHECK("a wrong sum with one that went");
      Fill(AsFloats(next, kCount), group.rank());
      const ReduceBuffer same = Floats(next.get(), next.get(), kCount);
      if (!group.AllReduce(Reduction::kSum, {&same, 1}).ok()) FAIL_CHECK("the next");
      if (FirstWrong(AsFloats(next, kCount), 3) >= 0) FAIL_CHECK("a wrong sum in the next");
    }
  });
}

TEST_CASE("Common memory outlives its group and is ordinary memory behind another",
          "[collectives][process][COL-01]") {
  constexpr std::size_t kCount = 50'000;
  std::vector<std::shared_ptr<std::byte>> kept(2);
  InGroup(Members(2), [&](Group& group) {
    auto& mine = kept[static_cast<std::size_t>(group.rank())];
    mine = Room(group, kCount);
    Fill(AsFloats(mine, kCount), group.rank());
  });
  InGroup(Members(2), [&](Group& group) {
    const auto& mine = kept[static_cast<std::size_t>(group.rank())];
    // This group has common memory, too, so that it asks where buffers lie.
    const auto other = Room(group, kCount);
    const ReduceBuffer buffer = Floats(mine.get(), mine.get(), kCount);
    if (!group.AllReduce(Reduction::kSum, {&buffer, 1}).ok()) FAIL_CHECK("failed");
    if (FirstWrong(AsFloats(mine, kCount), 2) >= 0) FAIL_CHECK("a wrong sum");
  });
}

TEST_CASE("A queue in front of a group has common memory, too", "[collectives][COL-01]") {
  InGroup(Members(2), [&](Group& group) {
    QueuedGroup queued(std::shared_ptr<Group>(&group, [](Group*) {}));
    constexpr std::size_t kCount = 20'000;
    const auto memory = Room(queued, kCount);
    if (!testing::IsShared(memory.get())) FAIL_CHECK("ordinary memory");
    Fill(AsFloats(memory, kCount), group.rank());
    const ReduceBuffer buffer = Floats(memory.get(), memory.get(), kCount);
    const Pending begun =
        queued.Start([&](Group& inner) { return inner.AllReduce(Reduction::kSum, {&buffer, 1}); });
    if (!begun.Wait().ok()) FAIL_CHECK("failed");
    if (FirstWrong(AsFloats(memory, kCount), 2) >= 0) FAIL_CHECK("a wrong sum");
  });
}

TEST_CASE("Ordinary memory is zeroed and has a size", "[collectives]") {
  const auto alone = OrdinaryMemory(10);
  REQUIRE(alone.ok());
  CHECK(std::all_of(alone->get(), alone->get() + 10, [](std::byte b) { return b == std::byte{}; }));
  CHECK(OrdinaryMemory(0).status().code() == StatusCode::kInvalidArgument);
  CHECK(OrdinaryMemory(~std::size_t{0}).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("Pages of common memory go when its members have let go of it",
          "[collectives][process]") {
  InGroup(Members(2), [&](Group& group) {
    constexpr std::size_t kCount = 20'000;
    auto memory = Room(group, kCount);
    const void* const there = memory.get();
    if (!testing::IsShared(there)) FAIL_CHECK("ordinary memory");
    // Found in the first buffer, and not in the second.
    std::vector<float> own(kCount);
    const ReduceBuffer mixed[] = {Floats(there, memory.get(), kCount),
                                  Floats(own.data(), own.data(), kCount)};
    if (!group.AllReduce(Reduction::kSum, mixed).ok()) FAIL_CHECK("failed");
    memory.reset();
    if (testing::IsShared(there)) FAIL_CHECK("still mapped");
  });
}

// Two members' ends of shared memory, without links.
struct Ends {
  Ends() {
    net::Arena arena = *SharedMemory::Make(2);
    base = arena.base();
    descriptor = arena.fd();
    memories.push_back(*SharedMemory::Map(1, {0, 1}, net::Fd(::dup(arena.fd()))));
    memories.insert(memories.begin(), *SharedMemory::Map(0, {0, 1}, std::move(arena)));
  }
  Operation In(std::uint64_t number, TimePoint deadline = TimePoint::max()) const {
    return {.tag = {.generation = Generation(1), .operation = number, .signature = 7},
            .waiter = {.over = &over, .wake = -1, .deadline = deadline, .lasts = nullptr}};
  }
  std::byte* base = nullptr;
  int descriptor = -1;  // member 0's
  std::atomic<bool> over{false};
  std::vector<SharedMemory> memories;
};

// What both bring, in common memory that both know.
struct InCommon {
  static constexpr std::size_t kCount = 20'000;
  explicit InCommon(Ends& ends) {
    const std::size_t size = 2 * kCount * sizeof(float);
    parts.push_back(*CommonMemory::Make(0, 2, size));
    parts.push_back(*CommonMemory::Map(1, 2, size, net::Fd(::dup(parts[0]->descriptor()))));
    for (std::size_t r = 0; r < 2; ++r) {
      operations.push_back(std::make_unique<SharedOperations>(ends.memories[r]));
      operations[r]->Know(parts[r]);
      std::byte* const in = parts[r]->mine();
      Fill({reinterpret_cast<float*>(in), kCount}, static_cast<int>(r));
      buffers.push_back(Floats(in, in + kCount * sizeof(float), kCount));
    }
  }
  std::vector<std::shared_ptr<CommonMemory>> parts;
  std::vector<std::unique_ptr<SharedOperations>> operations;
  std::vector<ReduceBuffer> buffers;
};

TEST_CASE("Of what lies in common memory nothing is copied into slots", "[collectives][process]") {
  Ends ends;
  InCommon both(ends);
  const bool in_place = GENERATE(false, true);
  if (in_place) {
    for (ReduceBuffer& buffer : both.buffers) buffer.out = const_cast<void*>(buffer.in);
  }
  std::thread other([&] {
    (void)both.operations[1]->AllReduce(ends.In(1), Reduction::kSum, {&both.buffers[1], 1});
  });
  CHECK(both.operations[0]->AllReduce(ends.In(1), Reduction::kSum, {&both.buffers[0], 1}).ok());
  other.join();
  for (const ReduceBuffer& buffer : both.buffers) {
    CHECK(FirstWrong({static_cast<const float*>(buffer.out), InCommon::kCount}, 2) < 0);
  }
  constexpr std::size_t kLines = 2 * 64;
  CHECK(std::all_of(ends.base + kLines, ends.base + kLines + 4 * SharedMemory::kSlotBytes,
                    [](std::byte byte) { return byte == std::byte{}; }));
}

TEST_CASE("A late member finds out that another one waits no longer for it to have read",
          "[collectives][process]") {
  Ends ends;
  InCommon both(ends);
  std::thread other([&] {
    (void)both.operations[1]->AllReduce(ends.In(1), Reduction::kSum, {&both.buffers[1], 1});
  });
  CHECK(both.operations[0]->AllReduce(ends.In(1), Reduction::kSum, {&both.buffers[0], 1}).ok());
  other.join();
  // Member 1 says where its buffers lie, the same places as before, and stands still. Another end
  // of it does that, which goes through the phases of the first sum again.
  SharedMemory stopped = *SharedMemory::Map(1, {0, 1}, net::Fd(::dup(ends.descriptor)));
  const auto publish = [&](std::uint64_t number) {
    const std::uint64_t signature = Signature().Add(number).Add(std::uint64_t{7}).value();
    return stopped.Publish(signature, ends.In(number).waiter);
  };
  REQUIRE(publish(1).ok());
  REQUIRE(publish(1).ok());
  std::thread says([&] { (void)publish(2); });
  const Status gave_up = both.operations[0]->AllReduce(
      ends.In(2, std::chrono::steady_clock::now() + std::chrono::milliseconds(300)),
      Reduction::kSum, {&both.buffers[0], 1});
  says.join();
  CHECK(gave_up.code() == StatusCode::kDeadlineExceeded);
  // It goes on, and reads what member 0 may have overwritten since: that is no sum.
  CHECK(both.operations[1]->AllReduce(ends.In(2), Reduction::kSum, {&both.buffers[1], 1}).code() ==
        StatusCode::kCancelled);
  CHECK(ends.memories[1].AnyGaveUp());
}

TEST_CASE("A member without a free descriptor ends the call of all", "[collectives][process]") {
  const Address address = Members(2);
  const auto body = [&](int rank) {
    return [&, rank] {
      auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
      if (!group.ok()) return ToString(group.status());
      std::optional<testing::NoMoreDescriptors> none;
      if (rank == 1) none.emplace();
      return ToString((*group)->AllocateCommon(100'000).status());
    };
  };
  const Process first(body(0)), second(body(1));
  for (const Process* one : {&second, &first}) {
    const std::string told = one->Told();
    INFO(told);
    CHECK(told.starts_with("RESOURCE_EXHAUSTED"));
    CHECK(told.find("no descriptor is free for memory of worker:0") != std::string::npos);
  }
}

TEST_CASE("Memories that live take no descriptor of who made them", "[collectives][process]") {
  const Address address = Members(2);
  const auto body = [&](int rank) {
    return [&, rank]() -> std::string {
      auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
      if (!group.ok()) return ToString(group.status());
      const testing::NoMoreDescriptors none(/*but=*/4);
      std::vector<std::shared_ptr<std::byte>> kept;
      for (int i = 0; i < 20; ++i) {
        auto memory = (*group)->AllocateCommon(100'000);
        if (!memory.ok()) return ToString(memory.status());
        if (!testing::IsShared(memory->get())) return "ordinary memory";
        kept.push_back(*std::move(memory));
      }
      return "OK";
    };
  };
  const Process first(body(0)), second(body(1));
  CHECK(first.Told() == "OK");
  CHECK(second.Told() == "OK");
}

TEST_CASE("Members that ask for other sizes of common memory are told", "[collectives][process]") {
  InGroup(Members(2), [&](Group& group) {
    const auto memory = group.AllocateCommon(group.rank() == 0 ? 100 : 200);
    if (memory.ok()) FAIL_CHECK("no error");
    const std::string text(Message(memory.status()));
    if (memory.status().code() != StatusCode::kInvalidArgument) FAIL_CHECK(text);
    if (text.find("common memory of ") == std::string::npos) FAIL_CHECK(text);
  });
}

TEST_CASE("Common memory of no size or of more than there are addresses is refused",
          "[collectives][process]") {
  for (const std::size_t bytes : {std::size_t{0}, CommonMemory::kMostBytes, ~std::size_t{0}}) {
    InGroup(Members(2), [&](Group& group) {
      const auto memory = group.AllocateCommon(bytes);
      if (memory.status().code() != StatusCode::kInvalidArgument) FAIL_CHECK(bytes);
      if (Message(memory.status()).find("1 to 549755813888 are allowed") == std::string::npos) {
        FAIL_CHECK(ToString(memory.status()));
      }
    });
  }
}

TEST_CASE("Common memory that the machine or the control group cannot have is refused",
          "[collectives][process]") {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  CHECK(CommonMemory::CheckRoom(4 * kMiB, 2, 8 * kMiB, std::nullopt).ok());
  CHECK(CommonMemory::CheckRoom(4 * kMiB, 2, 8 * kMiB, 4 * kMiB).ok());

  const Status machine = CommonMemory::CheckRoom(4 * kMiB + 1, 2, 8 * kMiB, std::nullopt);
  CHECK(ToString(machine) ==
        "RESOURCE_EXHAUSTED: common memory of 4194305 bytes for each of 2 members is more than "
        "this machine has, 8388608 bytes");
  const Status group = CommonMemory::CheckRoom(4 * kMiB, 2, 8 * kMiB, 2 * kMiB);
  CHECK(ToString(group) ==
        "RESOURCE_EXHAUSTED: common memory of 4194304 bytes is more than this process's control "
        "group may have, 2097152 bytes");
}

TEST_CASE("A member that is killed in a sum of common memory ends the call of the others",
          "[collectives][process]") {
  const Address address = Members(3);
  const Steps ready;
  const auto body = [&](int rank) {
    return [&, rank] {
      auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
      if (!group.ok()) return ToString(group.status());
      constexpr std::size_t kCount = 500'000;
      const auto memory = (*group)->AllocateCommon(kCount * sizeof(float));
      if (!memory.ok()) return ToString(memory.status());
      const ReduceBuffer buffer = Floats(memory->get(), memory->get(), kCount);
      for (std::size_t calls = 0;; ++calls) {
        const Status status = (*group)->AllReduce(Reduction::kMax, {&buffer, 1});
        if (!status.ok()) return ToString(status);
        if (calls == 20) ready.Done();
      }
    };
  };
  const Process first(body(0)), second(body(1)), victim(body(2));
  for (int member = 0; member < 3; ++member) ready.Await();
  victim.Signal(SIGKILL);
  for (const Process* one : {&first, &second}) {
    const std::string told = one->Told();
    INFO(told);
    CHECK(told.find("worker:2") != std::string::npos);
    CHECK(told.find("all_reduce MAX of float32[500000]") != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::collectives
