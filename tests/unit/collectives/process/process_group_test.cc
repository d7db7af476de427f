#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "collectives/kernels.h"
#include "common/process/wait_page.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

// Members of one host, over its shared memory or over sockets alone.
Address GroupOf(int size, Transport transport) {
  Address address(size);
  address.spec.transport = transport;
  return address;
}

template <class T>
ReduceBuffer BufferOf(DType type, std::vector<T>& values, void* out) {
  return {.type = type,
          .shape = {static_cast<std::int64_t>(values.size())},
          .in = values.data(),
          .out = out};
}

std::vector<float> Values(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) * 7919U + static_cast<unsigned>(count));
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = number(random);
  return values;
}

TEST_CASE("processes' sums and means are those of one process with as many replicas",
          "[collectives][process][COL-01][COL-02]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  const int size = GENERATE(1, 2, 3, 4);
  InGroup(GroupOf(size, by), [&](Group& group) {
    if (group.size() != size) FAIL_CHECK("size");
    for (const std::size_t count : {0U, 1U, 4U, 5U, 7U, 1000U, 5000U, 70'000U, 1'500'000U}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMin,
                                        Reduction::kMax, Reduction::kProduct}) {
        if (count > 100'000 && reduction != Reduction::kMean) continue;  // as long, nothing new
        std::vector<std::vector<float>> all;
        std::vector<const void*> sources;
        for (int r = 0; r < size; ++r) sources.push_back(all.emplace_back(Values(count, r)).data());
        std::vector<float> expected(count), result(count);
        void* const to = expected.data();
        ReduceRange(reduction, DType::kFloat32, sources, {&to, 1}, 0, count);
        std::vector<float>& mine = all[static_cast<std::size_t>(group.rank())];
        const ReduceBuffer buffer = BufferOf(DType::kFloat32, mine, result.data());
        const Status status = group.AllReduce(reduction, {&buffer, 1});
        if (!status.ok()) FAIL_CHECK(ToString(status));
        // Over sockets other algorithms than the direct one may round otherwise.
        const bool equal =
            std::equal(result.begin(), result.end(), expected.begin(), [&](float a, float b) {
              return by == Transport::kBest ? a == b : std::abs(a - b) <= 1e-6f * (1 + std::abs(b));
            });
        if (!equal) FAIL_CHECK(NameOf(reduction) << " of " << count << " is another");
        // In place.
        const ReduceBuffer in_place = BufferOf(DType::kFloat32, mine, mine.data());
        if (!group.AllReduce(reduction, {&in_place, 1}).ok()) FAIL_CHECK("in place");
        if (mine != result) FAIL_CHECK("in place another result, " << count);
      }
    }
  });
}

// So many elements that are a small whole number of that type.
std::vector<std::byte> Filled(DType type, int value, std::size_t count) {
  const auto fill = [&](auto one) {
    const std::vector<decltype(one)> all(count, one);
    const auto bytes = std::as_bytes(std::span(all));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto as_float = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  switch (type) {
    case DType::kFloat32:
      return fill(static_cast<float>(value));
    case DType::kFloat64:
      return fill(static_cast<double>(value));
    case DType::kInt64:
      return fill(static_cast<std::int64_t>(value));
    case DType::kInt32:
      return fill(static_cast<std::int32_t>(value));
    case DType::kInt16:
      return fill(static_cast<std::int16_t>(value));
    case DType::kBfloat16:
      return fill(static_cast<std::uint16_t>(as_float >> 16U));
    case DType::kFloat16:  // 5 bits of exponent around 15 in place of 8 around 127
      return fill(static_cast<std::uint16_t>((as_float >> 13U) - ((127U - 15U) << 10U)));
    default:
      return fill(static_cast<std::uint8_t>(value));
  }
}

TEST_CASE("each type that has sums is summed and averaged between processes",
          "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  InGroup(GroupOf(3, by), [&](Group& group) {
    for (const DType type :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16, DType::kInt64,
          DType::kInt32, DType::kInt16, DType::kInt8, DType::kUint8}) {
      if (!Reducible(type)) FAIL_CHECK(NameOf(type) << " has no sum");
      for (const std::size_t count : {1U, 1'000U, 100'000U}) {
        const auto mine = Filled(type, group.rank() + 1, count);
        for (const auto& [reduction, value] : {std::pair{Reduction::kSum, 6},
                                               {Reduction::kMean, 2},
                                               {Reduction::kMin, 1},
                                               {Reduction::kMax, 3},
                                               {Reduction::kProduct, 6}}) {
          const auto wanted = Filled(ResultType(reduction, type), value, count);
          std::vector<std::byte> result(wanted.size());
          const ReduceBuffer buffer{.type = type,
                                    .shape = {static_cast<std::int64_t>(count)},
                                    .in = mine.data(),
                                    .out = result.data()};
          const Status status = group.AllReduce(reduction, {&buffer, 1});
          if (!status.ok()) FAIL_CHECK(ToString(status));
          if (result != wanted) FAIL_CHECK(NameOf(reduction) << " of " << NameOf(type));
        }
      }
    }
  });
}

TEST_CASE("many tensors of several types are reduced as one, in their order",
          "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  InGroup(GroupOf(3, by), [&](Group& group) {
    const int rank = group.rank();
    std::vector<std::vector<float>> floats(40);
    std::vector<std::vector<std::int64_t>> longs(40);
    std::vector<std::vector<double>> means(40);
    std::vector<ReduceBuffer> sums, averages;
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i].assign(i * 997 % 3000, static_cast<float>(rank + 1));
      longs[i].assign(i * 13, rank * static_cast<int>(i));
      means[i].resize(longs[i].size());
      sums.push_back(BufferOf(DType::kFloat32, floats[i], floats[i].data()));
      averages.push_back(BufferOf(DType::kInt64, longs[i], means[i].data()));
    }
    std::vector<std::uint16_t> halves(100, 0x3c00);  // 1.0
    sums.push_back(BufferOf(DType::kFloat16, halves, halves.data()));
    if (!group.AllReduce(Reduction::kSum, sums).ok()) FAIL_CHECK("SUM");
    if (!group.AllReduce(Reduction::kMean, averages).ok()) FAIL_CHECK("MEAN");
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const auto all = [](const auto& values, auto wanted) {
        return std::all_of(values.begin(), values.end(), [&](auto v) { return v == wanted; });
      };
      if (!all(floats[i], 6.0f)) FAIL_CHECK("sum " << i);
      if (!all(means[i], static_cast<double>(i))) FAIL_CHECK("mean " << i);
    }
    if (halves[99] != 0x4200) FAIL_CHECK("float16: 3.0 expected");
  });
}

TEST_CASE(
    "broadcast, reduce_scatter, all_gather, all_to_all, exchange and barrier bring what they "
    "say to everybody",
    "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  const int size = GENERATE(2, 3, 5);
  InGroup(GroupOf(size, by), [&](Group& group) {
    const int rank = group.rank();
    const auto n = static_cast<std::size_t>(size);
    for (int root = 0; root < size; ++root) {
      for (const std::size_t count : {0U, 3U, 300'000U}) {
        std::vector<std::uint8_t> data(count, static_cast<std::uint8_t>(rank));
        if (!group.Broadcast(std::as_writable_bytes(std::span(data)), root).ok())
          FAIL_CHECK("root");
        if (count > 0 && data.back() != root) FAIL_CHECK("broadcast of " << root);
      }
    }
    std::vector<std::size_t> counts(n);
    std::iota(counts.begin(), counts.end(), 0U);
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    std::vector<float> in(total, 2.0f), out(counts[static_cast<std::size_t>(rank)]);
    if (!group
             .ReduceScatter(
                 Reduction::kSum,
                 {.type = DType::kFloat32, .counts = counts, .in = in.data(), .out = out.data()})
             .ok()) {
      FAIL_CHECK("reduce_scatter");
    }
    for (const float value : out) {
      if (value != 2.0f * static_cast<float>(size)) FAIL_CHECK("reduce_scatter " << value);
    }
    const std::vector<std::int64_t> mine(static_cast<std::size_t>(rank), rank);
    const auto shapes = group.Exchange("gather", mine);
    if (!shapes.ok()) FAIL_CHECK(ToString(shapes.status()));
    for (std::size_t r = 0; r < n; ++r) {
      if ((*shapes)[r] != std::vector<std::int64_t>(r, static_cast<std::int64_t>(r))) {
        FAIL_CHECK("exchange " << r);
      }
    }
    // Two blocks, of rank + 1 bytes each.
    std::string brought(2 * (static_cast<std::size_t>(rank) + 1), static_cast<char>('a' + rank));
    GatherBuffer gather;
    gather.in = brought.data();
    gather.blocks = 2;
    std::string expected;
    for (std::size_t r = 0; r < n; ++r) {
      gather.block_bytes.push_back(r + 1);
      expected += std::string(r + 1, static_cast<char>('a' + r));
    }
    expected += expected;
    std::string gathered(expected.size(), ' ');
    gather.out = gathered.data();
    if (!group.AllGather({&gather, 1}).ok() || gathered != expected) FAIL_CHECK(gathered);
    std::vector<std::string> to(n), from(n);
    std::vector<std::span<const std::byte>> sends;
    std::vector<std::span<std::byte>> receives;
    for (std::size_t r = 0; r < n; ++r) {
      to[r].assign(r + static_cast<std::size_t>(rank), static_cast<char>('0' + rank));
      from[r].resize(r + static_cast<std::size_t>(rank));
      sends.push_back(std::as_bytes(std::span(to[r])));
      receives.push_back(std::as_writable_bytes(std::span(from[r])));
    }
    if (!group.AllToAll(sends, receives).ok()) FAIL_CHECK("all_to_all");
    for (std::size_t r = 0; r < n; ++r) {
      if (from[r] != std::string(from[r].size(), static_cast<char>('0' + r))) FAIL_CHECK(from[r]);
    }
    if (!group.Barrier().ok()) FAIL_CHECK("barrier");
  });
}

TEST_CASE("members that call with other shapes are all told so, and the group is over",
          "[collectives][process][COL-12]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  // Who notices it first differs from time to time.
  (void)GENERATE(range(0, 4));
  // Worker 1 brings another shape, or one buffer more: what it calls begins with the others' words.
  const bool longer = GENERATE(false, true);
  InGroup(GroupOf(3, by), [&](Group& group) {
    const bool odd = group.rank() == 1;
    std::vector<float> values(odd && !longer ? 4 : 3, 1.0f);
    const std::vector<ReduceBuffer> buffers(odd && longer ? 2 : 1,
                                            BufferOf(DType::kFloat32, values, values.data()));
    const Status status = group.AllReduce(Reduction::kSum, buffers);
    // Each is told what it calls itself, whichever member's words are everybody's.
    const std::string mine = fmt::format("all_reduce SUM of float32[{}]{}", values.size(),
                                         buffers.size() > 1 ? ", float32[3]" : "");
    const std::string text = Message(status) + ";";
    if (status.code() != StatusCode::kInvalidArgument ||
        Message(status).find("Shape mismatch") == std::string::npos ||
        Message(status).find("worker:1") == std::string::npos ||
        (text.find(mine + ";") == std::string::npos &&
         text.find(mine + ":") == std::string::npos)) {
      FAIL_CHECK(ToString(status));
    }
    const Status later = group.Barrier();
    if (later.code() != StatusCode::kInvalidArgument) FAIL_CHECK(ToString(later));
  });
}

// Two members call different things, and both are named.
bool Mismatch(const Status& status) {
  const std::string text = Message(status);
  return status.code() == StatusCode::kInvalidArgument &&
         text.find("Shape mismatch") != std::string::npos &&
         text.find("worker:0") != std::string::npos && text.find("worker:1") != std::string::npos;
}

TEST_CASE("a member that makes another call, or one call more, is found by its first message",
          "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  InGroup(GroupOf(2, by), [&](Group& group) {
    std::vector<float> values(3, 1.0f);
    const ReduceBuffer buffer = BufferOf(DType::kFloat32, values, values.data());
    const Status status =
        group.rank() == 0 ? group.AllReduce(Reduction::kSum, {&buffer, 1}) : group.Barrier();
    if (!Mismatch(status)) FAIL_CHECK(ToString(status));
  });
}

TEST_CASE(
    "members that wait for each other in different calls are told so, though neither speaks first",
    "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  const bool both_listen = GENERATE(true, false);
  constexpr Millis kLong{30'000};
  InGroup(GroupOf(both_listen ? 2 : 3, by), [&](Group& group) {
    std::vector<float> values(3, 1.0f);
    Status status;
    if (both_listen) {
      const auto bytes = std::as_writable_bytes(std::span(values));
      status = group.Broadcast(bytes, 1 - group.rank(), kLong);
    } else {
      // Rank 0 sums the one element, and waits for rank 1, which waits for it and has none.
      if (group.rank() == 1) values.clear();
      const ReduceBuffer buffer = BufferOf(DType::kFloat32, values, values.data());
      status = group.AllReduce(Reduction::kSum, {&buffer, 1}, kLong);
    }
    const std::string mine = both_listen ? "broadcast of 12 bytes" : "all_reduce SUM of float32";
    if (status.code() != StatusCode::kInvalidArgument ||
        Message(status).find("Shape mismatch") == std::string::npos ||
        Message(status).find("worker:1") == std::string::npos ||
        Message(status).find(mine) == std::string::npos) {
      FAIL_CHECK(ToString(status));
    }
  });
}

TEST_CASE(
    "reduce_scatter and all_to_all are told from other calls, also where one has no part in it",
    "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  const bool scatter = GENERATE(true, false);
  InGroup(GroupOf(2, by), [&](Group& group) {
    Status status;
    if (group.rank() == 0) {
      status = group.Barrier();
    } else if (scatter) {
      status = group.ReduceScatter(Reduction::kSum, {.type = DType::kFloat32, .counts = {0, 0}});
    } else {
      const std::vector<std::span<const std::byte>> sends(2);
      const std::vector<std::span<std::byte>> receives(2);
      status = group.AllToAll(sends, receives);
    }
    if (!Mismatch(status)) FAIL_CHECK(ToString(status));
  });
}

TEST_CASE("large reduce_scatter and all_to_all, of unlike parts, bring every byte",
          "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets);
  InGroup(GroupOf(3, by), [&](Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::vector<std::size_t> counts{700'001, 3, 90'000};
    const std::size_t total = counts[0] + counts[1] + counts[2];
    std::vector<std::int64_t> in(total);
    std::iota(in.begin(), in.end(), static_cast<std::int64_t>(rank));
    std::vector<double> out(counts[rank]);
    const Status status = group.ReduceScatter(
        Reduction::kMean,
        {.type = DType::kInt64, .counts = counts, .in = in.data(), .out = out.data()});
    if (!status.ok()) FAIL_CHECK(ToString(status));
    std::size_t first = 0;
    for (std::size_t r = 0; r < rank; ++r) first += counts[r];
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] == static_cast<double>(first + i + 1)) continue;
      FAIL_CHECK("element " << i << " is " << out[i]);
      break;
    }
    std::vector<std::string> to, from;
    std::vector<std::span<const std::byte>> sends;
    std::vector<std::span<std::byte>> receives;
    const auto length = [](std::size_t a, std::size_t b) { return a * 1'000'003 + b * 77; };
    for (std::size_t r = 0; r < 3; ++r) {
      to.emplace_back(length(rank, r), static_cast<char>('a' + 3 * rank + r));
      from.emplace_back(length(r, rank), ' ');
    }
    for (std::size_t r = 0; r < 3; ++r) {
      sends.push_back(std::as_bytes(std::span(to[r])));
      receives.push_back(std::as_writable_bytes(std::span(from[r])));
    }
    if (const Status all = group.AllToAll(sends, receives); !all.ok()) FAIL_CHECK(ToString(all));
    for (std::size_t r = 0; r < 3; ++r) {
      if (from[r] != std::string(length(r, rank), static_cast<char>('a' + 3 * r + rank))) {
        FAIL_CHECK("all_to_all from " << r);
      }
    }
  });
}

TEST_CASE("a member that sends more than the other takes is an error of both, which says so",
          "[collectives][process]") {
  InGroup(GroupOf(2, Transport::kBest), [&](Group& group) {
    std::string bytes(10, 'x');
    const std::span<std::byte> all = std::as_writable_bytes(std::span(bytes));
    std::vector<std::span<const std::byte>> sends(2);
    std::vector<std::span<std::byte>> receives(2);
    if (group.rank() == 0) sends[1] = all.first(7);
    if (group.rank() == 1) receives[0] = all.first(3);
    const Status status = group.AllToAll(sends, receives);
    if (status.code() != StatusCode::kInvalidArgument ||
        Message(status).find("member 0 sends 7 bytes to member 1, which takes 3") ==
            std::string::npos) {
      FAIL_CHECK(ToString(status));
    }
  });
}

TEST_CASE("who does not come within the time limit is named to all who wait",
          "[collectives][process][COL-10]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  Steps over;
  InGroup(GroupOf(3, by), [&](Group& group) {
    if (group.rank() == 2) {
      over.Await();
      over.Await();
      return;
    }
    std::vector<float> values(3, 1.0f);
    const ReduceBuffer buffer = BufferOf(DType::kFloat32, values, values.data());
    const Status status =
        group.AllReduce(Reduction::kSum, {&buffer, 1}, std::chrono::milliseconds(1'000));
    if (status.code() != StatusCode::kDeadlineExceeded ||
        Message(status).find("for worker:2 (which has not begun it)") == std::string::npos ||
        Message(status).find("operation 1, all_reduce SUM of float32[3]") == std::string::npos) {
      FAIL_CHECK(ToString(status));
    }
    over.Done();
  });
}

TEST_CASE("a call that lasts is on the page of its process, with who is waited for, until it ends",
          "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  Address address = GroupOf(3, by);
  const auto page = process::WaitPage::Create();
  REQUIRE(page.ok());
  const std::string path = (*page)->path();
  Steps shown;
  const auto seen = [&](bool there) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < until) {
      const auto wait = (*page)->Get();
      if (wait.has_value() == there) return wait;
      std::this_thread::yield();
    }
    FAIL_CHECK("never " << (there ? "shown" : "gone"));
    return std::optional<process::Wait>();
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      GroupSpec spec = address.Of(r);
      if (r == 0) spec.wait_page = path;
      auto group = FormGroup(spec, address.listeners[static_cast<std::size_t>(r)]);
      if (!group.ok()) {
        FAIL_CHECK(ToString(group.status()));
        return;
      }
      if (r == 2) shown.Await();
      std::vector<float> values(3, 1.0f);
      const ReduceBuffer buffer = BufferOf(DType::kFloat32, values, values.data());
      // A quarter of this is less than a second.
      Status status = (*group)->AllReduce(Reduction::kSum, {&buffer, 1}, Millis(3'600));
      if (!status.ok()) FAIL_CHECK(ToString(status));
      if (r == 2) shown.Await();
      status = (*group)->Barrier();
      if (!status.ok()) FAIL_CHECK(ToString(status));
    });
  }
  const auto wait = seen(true);
  shown.Done();
  (void)seen(false);
  shown.Done();
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wait);
  CHECK(wait->generation == Generation(1));
  CHECK(wait->operation == 1);
  CHECK(wait->call == "all_reduce SUM of float32[3]");
  CHECK(wait->awaited == "worker:2 (which has not begun it)");
  CHECK(wait->limit == Millis(3'600));
  CHECK(wait->lasts >= Millis(900));
}

TEST_CASE(
    "a member that leaves is no trouble to those who need it no more, and one to those who do",
    "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  InGroup(GroupOf(3, by), [&](Group& group) {
    Status status;
    int done = 0;
    for (; done < 3 && status.ok(); ++done) status = group.Barrier();
    if (group.rank() == 1 && status.ok()) return;
    // Who is still in the third barrier may hear of it there, from one who is in the fourth.
    if (done < 3 || group.rank() == 1) FAIL_CHECK(done << ": " << ToString(status));
    if (status.ok()) status = group.Barrier();
    if (status.code() != StatusCode::kUnavailable ||
        Message(status).find("worker:1 has left the group after operation 3") ==
            std::string::npos) {
      FAIL_CHECK(ToString(status));
    }
  });
}

TEST_CASE("what one member aborts with is the error of every call, until a new group is formed",
          "[collectives][process][COL-19]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  Address address = GroupOf(3, by);
  Steps waiting;
  InGroup(address, [&](Group& group) {
    if (group.rank() == 1) {
      // The others wait in a call that this member does not make.
      waiting.Await();
      waiting.Await();
      group.Abort(Aborted("the data has ended early"));
    } else {
      waiting.Done();
    }
    for (int call = 0; call < 3; ++call) {
      const Status status = group.Barrier();
      if (status.code() != StatusCode::kAborted ||
          Message(status).find("the data has ended early") == std::string::npos) {
        FAIL_CHECK(call << ": " << ToString(status));
      }
    }
  });
  address.spec.generation = address.spec.generation.Next();
  InGroup(address, [](Group& group) {
    if (const Status status = group.Barrier(); !status.ok()) FAIL_CHECK(ToString(status));
  });
}

// What becomes of a group of three, of whom rank 1 is a process that gets `signal` in the middle.
void Lose(Transport by, int signal) {
  const Address address = GroupOf(3, by);
  Steps begun;
  std::vector<std::unique_ptr<Process>> members;
  for (int r = 0; r < 3; ++r) {
    members.push_back(std::make_unique<Process>([&, r]() -> std::string {
      auto group = FormGroup(address.Of(r), address.listeners[static_cast<std::size_t>(r)]);
      if (!group.ok()) return ToString(group.status());
      std::vector<float> values(200'000, 1.0f);
      const ReduceBuffer buffer = BufferOf(DType::kFloat32, values, values.data());
      for (int i = 0;; ++i) {
        const Status status = (*group)->AllReduce(Reduction::kMax, {&buffer, 1});
        if (i == 50) begun.Done();
        if (!status.ok()) return ToString(status);
      }
    }));
  }
  for (int r = 0; r < 3; ++r) begun.Await();
  members[1]->Signal(signal);
  for (const int survivor : {0, 2}) {
    const std::string told = members[static_cast<std::size_t>(survivor)]->Told();
    INFO(told);
    CHECK(told.find("UNAVAILABLE: ") == 0);
    CHECK(told.find("all_reduce MAX of float32[200000]") != std::string::npos);
    CHECK(told.find("worker:1 was lost") != std::string::npos);
  }
}

TEST_CASE("a member that is killed ends the group for all others, who are told its name",
          "[collectives][process][faults]") {
  Lose(GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp), SIGKILL);
}

TEST_CASE("a member that is stopped ends the group for all others, who are told its name",
          "[collectives][process][faults]") {
  Lose(GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp), SIGSTOP);
}

TEST_CASE("groups that never form name whom they wait for", "[collectives][process]") {
  Address address(3);
  address.spec.form_within = Millis(300);
  const auto group = FormGroup(address.Of(0), address.listeners[0]);
  REQUIRE(group.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(group.status()).find("waits for worker:1 (127.0.0.1:") != std::string::npos);
  CHECK(Message(group.status()).find("worker:2 (127.0.0.1:") != std::string::npos);
}

TEST_CASE("a member with another key, another list of members or an older generation is refused",
          "[collectives][process]") {
  const auto refused = [](const std::function<void(GroupSpec&)>& change) {
    Address address(2);
    address.spec.form_within = Millis(1'000);
    Status said;
    std::thread other([&] {
      GroupSpec spec = address.Of(1);
      change(spec);
      said = FormGroup(spec, address.listeners[1]).status();
    });
    (void)FormGroup(address.Of(0), address.listeners[0]);
    other.join();
    return said;
  };
  CHECK(refused([](GroupSpec& spec) { spec.key = "another"; }).code() ==
        StatusCode::kUnauthenticated);
  CHECK(refused([](GroupSpec& spec) { spec.members[1].task = "chief:0"; }).code() ==
        StatusCode::kInvalidArgument);
  CHECK(refused([](GroupSpec& spec) { spec.generation = Generation(0); }).code() ==
        StatusCode::kAborted);
}

TEST_CASE("a spec that is not sound is refused before anybody is waited for",
          "[collectives][process]") {
  Address address(2);
  const auto status = [&](const std::function<void(GroupSpec&)>& change) {
    GroupSpec spec = address.Of(0);
    change(spec);
    return FormGroup(spec, address.listeners[0]).status().code();
  };
  CHECK(status([](GroupSpec& spec) { spec.rank = 2; }) == StatusCode::kInvalidArgument);
  CHECK(status([](GroupSpec& spec) { spec.key.clear(); }) == StatusCode::kInvalidArgument);
  CHECK(status([](GroupSpec& spec) { spec.members.clear(); }) == StatusCode::kInvalidArgument);
  CHECK(status([](GroupSpec& spec) { spec.members[1] = spec.members[0]; }) ==
        StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::collectives
