#include "services/coordinator/driver_calls.h"

#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"

namespace muster::coordinator {
namespace {

struct PromptDisk : LaneOffload {
  void Run(const std::string&, Function work, Function) override { work(); }
};

// What driver 5 of words-1 is answered.
struct Calls {
  Status Serve(const v1::DriverCall& call) {
    calls.Serve({.job = "words-1", .driver = Incarnation(5)}, call);
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].number() == call.number());
    return MakeStatus(static_cast<StatusCode>(answers[0].status().code()),
                      answers[0].status().message());
  }

  muster::testing::TempFolder dir;
  PromptDisk disks;
  FakeScheduler strand;
  AuditTrail audit{dir / "audit.log", 0, disks, strand};
  Front front{strand, nullptr, {}, {}, audit, disks};
  std::vector<v1::DriverAnswer> answers;
  DriverCalls calls{front, [this](const DriverCalls::Asker& asker, v1::DriverAnswer answer) {
                      CHECK(asker.job == "words-1");
                      CHECK(asker.driver == Incarnation(5));
                      answers.push_back(std::move(answer));
                    }};
};

TEST_CASE_METHOD(Calls,
                 "a driver that calls for another job, or as another driver, is written down",
                 "[services][audit][unit]") {
  const auto [job, driver] = GENERATE(table<std::string, int>({{"other-2", 5}, {"words-1", 6}}));
  v1::DriverCall call;
  call.set_number(9);
  call.mutable_finish_job()->set_job_id(job);
  call.mutable_finish_job()->set_driver(static_cast<std::uint64_t>(driver));

  const Status said = Serve(call);

  CHECK(said.code() == StatusCode::kPermissionDenied);
  CHECK(Message(said) ==
        fmt::format("driver 5 of job words-1 may not call as driver {} of job {}: it drives that "
                    "one job alone",
                    driver, job));
  std::ifstream file(dir / "audit.log");
  const auto line = nlohmann::json::parse(file);
  CHECK(line["who"] == "the driver of words-1");
  CHECK(line["did"] == "drive");
  CHECK(line["what"] == job);
  CHECK(line["refused"] == Message(said));
}

TEST_CASE_METHOD(Calls, "a driver that asks for nothing known is told so", "[services][unit]") {
  v1::DriverCall call;
  call.set_number(3);

  CHECK(Serve(call).code() == StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace muster::coordinator
