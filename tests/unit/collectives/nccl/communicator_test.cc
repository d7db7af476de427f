#include "collectives/nccl/communicator.h"

#include <atomic>
#include <filesystem>
#include <numeric>
#include <utility>

#include <dlfcn.h>

#include "collectives/nccl/library.h"
#include "tests/support/fixed_environment.h"
#include "tests/unit/collectives/nccl/stand_in.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives::nccl {
namespace {

using muster::testing::StandIn;
using muster::testing::StandInStream;
using namespace std::chrono_literals;

Result<Library> LoadFrom(const std::string& file) {
  return Library::Load(FixedEnvironment({{Library::kVariable, file}}));
}

Result<Library> StandInLibrary() { return LoadFrom(MUSTER_NCCL_STAND_IN); }

// The stand-in as no case before it has left it.
StandIn& FreshStandIn() {
  void* const handle = ::dlopen(MUSTER_NCCL_STAND_IN, RTLD_NOW);
  REQUIRE(handle != nullptr);
  auto* const stand_in =
      reinterpret_cast<muster::testing::StandInOf*>(::dlsym(handle, "muster_stand_in"));
  REQUIRE(stand_in != nullptr);
  stand_in()->Reset();
  return *stand_in();
}

Communicator::Options OptionsOf(const Group& group) {
  return {.card = fmt::format("card {}", group.rank()), .form_within = 20s};
}

// The communicator of a group, which must form.
std::unique_ptr<Communicator> Formed(Group& group) {
  auto formed = Communicator::Form(group, StandInLibrary(), OptionsOf(group));
  if (!formed.ok() || formed->communicator == nullptr) {
    FAIL_CHECK((formed.ok() ? formed->why_not : ToString(formed.status())));
    return nullptr;
  }
  return std::move(formed->communicator);
}

class Queue {
 public:
  Communicator::Stream stream() {
    return {.handle = &stream_, .done = [this] { return stream_.queued == 0; }};
  }

 private:
  StandInStream stream_;
};

template <class T>
ReduceBuffer BufferOf(DType type, const std::vector<T>& values, std::vector<T>& sums) {
  sums.resize(values.size());
  return {.type = type,
          .shape = {static_cast<std::int64_t>(values.size())},
          .in = values.data(),
          .out = sums.data()};
}

// All ranks' statuses of what each does with its communicator.
std::vector<Status> InCommunicator(
    int size, const std::function<Status(Group&, Communicator&, Queue&)>& member) {
  std::vector<Status> statuses(static_cast<std::size_t>(size), Internal("not run"));
  InGroup(Address(size), [&](Group& group) {
    auto communicator = Formed(group);
    if (communicator == nullptr) return;
    Queue queue;
    statuses[static_cast<std::size_t>(group.rank())] = member(group, *communicator, queue);
  });
  return statuses;
}

Status AddFloats(Communicator& communicator, Queue& queue, std::size_t count, Timeout timeout) {
  const std::vector<float> mine(count, 1.0f);
  std::vector<float> sums;
  const ReduceBuffer buffer = BufferOf(DType::kFloat32, mine, sums);
  return communicator.AllReduce({&buffer, 1}, queue.stream(), timeout);
}

bool Says(const Status& status, StatusCode code, const std::string& text) {
  const bool yes = status.code() == code && Message(status).find(text) != std::string::npos;
  if (!yes) UNSCOPED_INFO(ToString(status));
  return yes;
}

template <class T>
void CheckSums(Group& group, Communicator& communicator, Queue& queue, DType type) {
  for (const std::size_t count : {0U, 1U, 7U, 5000U}) {
    std::vector<T> mine(count), cards, host;
    for (std::size_t i = 0; i < count; ++i) {
      mine[i] = static_cast<T>((i * 7 + static_cast<std::size_t>(group.rank()) * 13) % 100) /
                static_cast<T>(3);
    }
    const ReduceBuffer on_cards = BufferOf(type, mine, cards);
    const ReduceBuffer in_host = BufferOf(type, mine, host);
    if (!communicator.AllReduce({&on_cards, 1}, queue.stream(), 30s).ok()) FAIL_CHECK("cards");
    if (!group.AllReduce(Reduction::kSum, {&in_host, 1}, 30s).ok()) FAIL_CHECK("host");
    if (cards != host) FAIL_CHECK(NameOf(type) << " of " << count << " is another");
  }
}

TEST_CASE("sums of NCCL's are those of the group, of all types that it adds",
          "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const int size = GENERATE(1, 2, 3);
  InGroup(Address(size), [&](Group& group) {
    auto communicator = Formed(group);
    if (communicator == nullptr) return;
    if (communicator->version() != "2.21.5") FAIL_CHECK(communicator->version());
    Queue queue;
    CheckSums<float>(group, *communicator, queue, DType::kFloat32);
    CheckSums<double>(group, *communicator, queue, DType::kFloat64);
    CheckSums<std::int32_t>(group, *communicator, queue, DType::kInt32);
    CheckSums<std::int64_t>(group, *communicator, queue, DType::kInt64);
    CheckSums<std::int8_t>(group, *communicator, queue, DType::kInt8);
    CheckSums<std::uint8_t>(group, *communicator, queue, DType::kUint8);
  });
  CHECK(stand_in.ids == 1);
  CHECK(stand_in.begun == size);
  CHECK(stand_in.ended == size);
}

TEST_CASE("many buffers are one launch, in place too, and empty ones none", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const auto statuses =
      InCommunicator(2, [&](Group& group, Communicator& communicator, Queue& queue) {
        std::vector<std::vector<float>> values(40);
        std::vector<std::int64_t> longs(3, group.rank() + 1);
        std::vector<ReduceBuffer> buffers;
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i].assign(i * 3, static_cast<float>(group.rank() + 1));
          buffers.push_back({.type = DType::kFloat32,
                             .shape = {3, static_cast<std::int64_t>(i)},
                             .in = values[i].data(),
                             .out = values[i].data()});
        }
        buffers.push_back({DType::kInt64, {3}, longs.data(), longs.data()});
        Status status = communicator.AllReduce(buffers, queue.stream(), 30s);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (values[i] != std::vector<float>(i * 3, 3.0f)) FAIL_CHECK("buffer " << i);
        }
        if (longs != std::vector<std::int64_t>(3, 3)) FAIL_CHECK("longs");
        return status;
      });
  for (const Status& status : statuses) CHECK(ToString(status) == "OK");
  CHECK(stand_in.launches == 2);
}

// What all members are told where no communicator forms; the group goes on in each case.
std::string WhyNot(int size, const std::function<Result<Communicator::Formed>(Group&)>& form) {
  std::vector<std::string> why(static_cast<std::size_t>(size));
  InGroup(Address(size), [&](Group& group) {
    auto formed = form(group);
    if (!formed.ok()) {
      FAIL_CHECK(ToString(formed.status()));
      return;
    }
    if (formed->communicator != nullptr) FAIL_CHECK("there is a communicator");
    why[static_cast<std::size_t>(group.rank())] = formed->why_not;
    if (!group.Barrier(30s).ok()) FAIL_CHECK("the group is over");
  });
  for (const std::string& one : why) CHECK(one == why[0]);
  return why[0];
}

TEST_CASE("a member without NCCL leaves all without it, and says why", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const std::string why = WhyNot(3, [](Group& group) {
    return Communicator::Form(group,
                              group.rank() == 2 ? LoadFrom("/no/libnccl.so.2") : StandInLibrary(),
                              OptionsOf(group));
  });
  CHECK(why.find("member 2: NCCL cannot be loaded: /no/libnccl.so.2") == 0);
  CHECK(why.find("MUSTER_NCCL_LIBRARY") != std::string::npos);
  CHECK(stand_in.ids == 0);
}

TEST_CASE("members that have one card between them, or other versions, get no communicator",
          "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  CHECK(WhyNot(3, [](Group& group) {
          return Communicator::Form(group, StandInLibrary(),
                                    {.card = fmt::format("GPU-{}", group.rank() % 2)});
        }) == "members 0 and 2 have the same card (GPU-0)");
  CHECK(WhyNot(2, [](Group& group) {
          auto library = StandInLibrary();
          if (group.rank() == 1) library->version = 21803;
          return Communicator::Form(group, std::move(library), OptionsOf(group));
        }) == "member 1 has NCCL 2.18.3, member 0 2.21.5: all need the same");
  CHECK(stand_in.ids == 0);
}

TEST_CASE("a member that NCCL cannot begin on leaves all without it", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  stand_in.no_beginning_of = 1;
  const auto form = [](Group& group) {
    return Communicator::Form(group, StandInLibrary(),
                              {.card = fmt::format("{}", group.rank()), .form_within = 300ms});
  };
  const std::string why = WhyNot(3, form);
  // The first of those that failed: the others wait for it.
  CHECK(why == "member 0: NCCL has not connected all members in 300 ms");
  CHECK(stand_in.begun == 2);
  CHECK(stand_in.ended == 2);

  stand_in.Reset();
  stand_in.no_beginning_of = 0;
  CHECK(WhyNot(1, form) ==
        "member 0: ncclCommInitRankConfig: system error of the stand-in: the stand-in was told "
        "that it has no card");

  stand_in.Reset();
  stand_in.never_connected = true;
  CHECK(WhyNot(2, form) == "member 0: NCCL has not connected all members in 300 ms");
  CHECK(stand_in.ended == 2);
}

TEST_CASE("a library that is too old or lacks a function is refused by name",
          "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  stand_in.version = 2804;
  CHECK(Says(StandInLibrary().status(), StatusCode::kFailedPrecondition,
             "is NCCL 2.8.4: 2.14.0 or newer is needed"));
  stand_in.version = 21400;
  CHECK(StandInLibrary().ok());
  CHECK(Says(LoadFrom("libc.so.6").status(), StatusCode::kFailedPrecondition,
             "libc.so.6 has no ncclGetVersion"));
}

TEST_CASE("members that bring other shapes or types are told which, before any card works",
          "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const auto statuses =
      InCommunicator(3, [&](Group& group, Communicator& communicator, Queue& queue) {
        const Status status =
            AddFloats(communicator, queue, group.rank() == 2 ? 4U : 3U, std::nullopt);
        // The group is over, as after any error of it.
        if (group.Barrier(30s).ok()) FAIL_CHECK("the group goes on");
        if (communicator.AllReduce({}, queue.stream()).ok()) FAIL_CHECK("the communicator goes on");
        return status;
      });
  for (const Status& status : statuses) {
    CHECK(Says(status, StatusCode::kInvalidArgument,
               "Shape mismatch: all_reduce SUM by NCCL: member 0 brings float32[3] as buffer 0, "
               "member 2 float32[4] as buffer 0"));
  }
  CHECK(stand_in.launches == 0);
  CHECK(stand_in.ended == 3);
}

TEST_CASE("a member that calls something else is an error of all", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const auto statuses =
      InCommunicator(2, [&](Group& group, Communicator& communicator, Queue& queue) {
        return group.rank() == 1 ? group.Barrier(30s) : AddFloats(communicator, queue, 3, 30s);
      });
  for (const Status& status : statuses) {
    CHECK(Says(status, StatusCode::kInvalidArgument, "calls something else"));
  }
  CHECK(stand_in.launches == 0);
}

TEST_CASE("a type that NCCL would round at each member is refused", "[collectives][nccl]") {
  FreshStandIn();
  const auto statuses = InCommunicator(2, [&](Group&, Communicator& communicator, Queue& queue) {
    const ReduceBuffer buffer{.type = DType::kBfloat16, .shape = {0}};
    return communicator.AllReduce({&buffer, 1}, queue.stream(), 30s);
  });
  for (const Status& status : statuses) {
    CHECK(Says(status, StatusCode::kInvalidArgument, "does not add bfloat16"));
  }
}

TEST_CASE("a member that does not come is named at the deadline", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const auto statuses =
      InCommunicator(2, [&](Group& group, Communicator& communicator, Queue& queue) {
        if (group.rank() == 0) return AddFloats(communicator, queue, 3, 200ms);
        while (group.Health().ok()) std::this_thread::yield();
        return AddFloats(communicator, queue, 3, 30s);
      });
  for (const Status& status : statuses) {
    CHECK(Says(status, StatusCode::kDeadlineExceeded, "worker:0 waited 200 ms for worker:1"));
  }
  CHECK(stand_in.launches == 0);
}

TEST_CASE("a member that leaves before a sum is named", "[collectives][nccl]") {
  FreshStandIn();
  const auto statuses =
      InCommunicator(2, [&](Group& group, Communicator& communicator, Queue& queue) {
        return group.rank() == 1 ? Ok() : AddFloats(communicator, queue, 3, 30s);
      });
  CHECK(Says(statuses[0], StatusCode::kUnavailable, "worker:1"));
}

TEST_CASE("cards that are never done are an error of all at the deadline", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const bool own_limit = GENERATE(true, false);
  stand_in.never_done = true;
  std::vector<Status> statuses(2, Internal("not run"));
  InGroup(Address(2), [&](Group& group) {
    Communicator::Options options = OptionsOf(group);
    if (!own_limit) options.call_within = 200ms;
    auto formed = Communicator::Form(group, StandInLibrary(), options);
    if (!formed.ok() || formed->communicator == nullptr) {
      FAIL_CHECK("not formed");
      return;
    }
    Queue queue;
    statuses[static_cast<std::size_t>(group.rank())] =
        AddFloats(*formed->communicator, queue, 3, own_limit ? Timeout(200ms) : Timeout(1h));
    if (group.Health().ok()) FAIL_CHECK("the group lives");
  });
  for (const Status& status : statuses) {
    CHECK(Says(status, StatusCode::kDeadlineExceeded, "the card is not done after 200 ms"));
  }
  CHECK(stand_in.launches == 2);
  CHECK(stand_in.ended == 2);
}

TEST_CASE("a limit beyond what the clock can tell is none, also for a card that takes its time",
          "[collectives][nccl]") {
  FreshStandIn();
  const auto statuses = InCommunicator(2, [](Group&, Communicator& communicator, Queue& queue) {
    const std::vector<float> mine(3, 1.0f);
    std::vector<float> sums;
    const ReduceBuffer buffer = BufferOf(DType::kFloat32, mine, sums);
    int looks = 0;
    Communicator::Stream stream = queue.stream();
    stream.done = [&, done = stream.done]() -> Result<bool> {
      if (++looks <= 3) return false;
      return done();
    };
    return communicator.AllReduce({&buffer, 1}, stream, std::chrono::milliseconds::max());
  });
  for (const Status& status : statuses) CHECK(ToString(status) == ToString(Ok()));
}

TEST_CASE("an error of one member's card, now or later, ends the call of all",
          "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  const bool later = GENERATE(false, true);
  // The others are still at work when it comes.
  stand_in.never_done = true;
  (later ? stand_in.error_later_of : stand_in.no_launch_of) = 1;
  const auto statuses = InCommunicator(3, [&](Group&, Communicator& communicator, Queue& queue) {
    return AddFloats(communicator, queue, 3, std::nullopt);
  });
  const std::string why =
      later ? "all_reduce SUM by NCCL, member 1: NCCL's communicator: remote error of the "
              "stand-in: the stand-in was told to lose a connection"
            : "all_reduce SUM by NCCL, member 1: ncclAllReduce: system error of the stand-in: the "
              "stand-in was told to refuse it";
  for (const Status& status : statuses) CHECK(Says(status, StatusCode::kUnavailable, why));
  CHECK(stand_in.ended == 3);
}

// What rank 1's stream says in place of the stand-in's: rank 0's card is done.
std::vector<Status> WithStreamOfOne(const std::function<Result<bool>()>& done, Timeout first,
                                    Timeout second) {
  return InCommunicator(2, [&](Group& group, Communicator& communicator, Queue& queue) {
    Communicator::Stream stream = queue.stream();
    if (group.rank() == 1) stream.done = done;
    const std::vector<float> mine(3, 1.0f);
    std::vector<float> sums;
    const ReduceBuffer buffer = BufferOf(DType::kFloat32, mine, sums);
    return communicator.AllReduce({&buffer, 1}, stream, group.rank() == 0 ? first : second);
  });
}

TEST_CASE("no member has its sum before all cards are done, and who is not done in time is named",
          "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  for (const Status& status : WithStreamOfOne([] { return false; }, 200ms, 30s)) {
    CHECK(Says(status, StatusCode::kDeadlineExceeded, "ms for worker:1"));
  }
  CHECK(stand_in.ended == 2);
}

TEST_CASE("an error of one member's stream is that of all", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  for (const Status& status : WithStreamOfOne(
           []() -> Result<bool> { return Unavailable("an illegal memory access"); }, 30s, 30s)) {
    CHECK(Says(status, StatusCode::kUnavailable, "member 1: an illegal memory access"));
  }
  CHECK(stand_in.ended == 2);
}

TEST_CASE("the next group has a communicator of its own, under another id", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  stand_in.never_done = true;
  for (const Status& status :
       InCommunicator(2, [&](Group&, Communicator& communicator, Queue& queue) {
         return AddFloats(communicator, queue, 3, 50ms);
       })) {
    CHECK(status.code() == StatusCode::kDeadlineExceeded);
  }
  stand_in.never_done = false;
  for (const Status& status :
       InCommunicator(2, [&](Group&, Communicator& communicator, Queue& queue) {
         return AddFloats(communicator, queue, 3, 30s);
       })) {
    CHECK(ToString(status) == "OK");
  }
  CHECK(stand_in.ids == 2);
  CHECK(stand_in.ended == 4);
}

TEST_CASE("a communicator ends with the group that it was given to", "[collectives][nccl]") {
  StandIn& stand_in = FreshStandIn();
  InGroup(Address(2), [&](Group& group) {
    if (group.communicator() != nullptr) FAIL_CHECK("nobody gave it one");
    group.set_communicator(Formed(group));
    Queue queue;
    if (!AddFloats(*group.communicator(), queue, 3, 30s).ok()) FAIL_CHECK("sum");
  });
  CHECK(stand_in.begun == 2);
  CHECK(stand_in.ended == 2);
}

TEST_CASE("NVIDIA's own library says its version, and why it cannot begin without a card",
          "[collectives][nccl]") {
  auto library = Library::Load(ProcessEnvironment());
  if (library.status().code() == StatusCode::kNotFound) {
    WARN("skipped: no libnccl.so.2 (" << Message(library.status()) << ")");
    return;
  }
  REQUIRE(ToString(library.status()) == "OK");
  CHECK(library->version >= Library::kOldest);
  InGroup(Address(1), [&](Group& group) {
    auto formed = Communicator::Form(group, std::move(library), {.card = "the one"});
    if (!formed.ok()) {
      FAIL_CHECK(ToString(formed.status()));
      return;
    }
    UNSCOPED_INFO(formed->why_not);
    // With a card it begins, and gpu_test adds by it.
    if (formed->communicator != nullptr) return;
    const bool own_words = formed->why_not.find("member 0: nccl") == 0 ||
                           formed->why_not.find("member 0: NCCL's communicator: ") == 0;
    CHECK(own_words);
    WARN("no card: " << formed->why_not);
  });
}

}  // namespace
}  // namespace muster::collectives::nccl
