// Functions by their types.
#include "dispatch/program.h"

#include "dispatch/worker_values.h"

#include "tests/unit/dispatch/cluster.h"

namespace program_test {

using muster::Result;
using muster::Status;

enum class Color { kRed, kBlue };
struct Point {
  double x = 0;
  double y = 0;
};

double Square(double x) { return x * x; }
std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}
std::vector<Point> Mirror(std::vector<Point> points) {
  for (Point& point : points) std::swap(point.x, point.y);
  return points;
}
Result<Color> Other(Color color) {
  if (color == Color::kBlue) return muster::OutOfRange("there is no other");
  return Color::kBlue;
}
Status Nothing() { return muster::Ok(); }
void Void(int) {}
std::uint64_t OwnNumber(muster::dispatch::ClosureContext& context, int plus) {
  return context.closure() + static_cast<std::uint64_t>(plus);
}
std::vector<std::string> Words(std::vector<std::string> words) {
  words.push_back("end");
  return words;
}
int Unregistered(int x) { return x; }

struct Shop {
  int open = 0;
};
Shop MakeShop() { return {.open = 7}; }
int Sell(Shop& shop, int n) { return shop.open - n; }
Status Close(muster::dispatch::ClosureContext&, Shop& shop) {
  shop.open = 0;
  return muster::Ok();
}

}  // namespace program_test

MUSTER_PROGRAM(program_test::MakeShop);
MUSTER_FUNCTION(program_test::Sell);
MUSTER_FUNCTION(program_test::Close);
MUSTER_FUNCTION(program_test::Square);
MUSTER_FUNCTION(program_test::Repeat);
MUSTER_FUNCTION(program_test::Mirror);
MUSTER_FUNCTION(program_test::Other);
MUSTER_FUNCTION(program_test::Nothing);
MUSTER_FUNCTION(program_test::Void);
MUSTER_FUNCTION(program_test::OwnNumber);
MUSTER_FUNCTION(program_test::Words);

namespace muster::dispatch {
namespace {

using namespace program_test;

// [CCO-03]: what is not registered, or not called as it is written, does not compile.
static_assert(Schedulable<&Square, double>);
static_assert(Schedulable<&Square, int>);
static_assert(!Schedulable<&Unregistered, int>);
static_assert(!Schedulable<&Square>);
static_assert(!Schedulable<&Square, double, double>);
static_assert(!Schedulable<&Square, std::string>);
static_assert(!Schedulable<&Repeat, int, std::string>);
static_assert(Schedulable<&Repeat, const char*, int>);
static_assert(Schedulable<&OwnNumber, int>);
static_assert(Schedulable<&Sell, int>);
static_assert(!Schedulable<&Sell, Shop, int>);

TEST_CASE("functions are called with their types on another side of a link",
          "[dispatch][unit][CCO-03]") {
  RunningExecutor executor(ProgramFunctions(), net::LinkKind::kUnix);
  Driver driver(DriverOptions(ProgramFunctions()));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  CHECK(Schedule<&Square>(driver, 3)->Fetch().value() == 9.0);
  CHECK(Schedule<&Repeat>(driver, "ab", 3)->Fetch().value() == "ababab");
  const auto points = Schedule<&Mirror>(driver, std::vector<Point>{{1, 2}, {3, 4}})->Fetch();
  REQUIRE(points.ok());
  CHECK((*points)[1].x == 4);
  CHECK(Schedule<&Other>(driver, Color::kRed)->Fetch().value() == Color::kBlue);
  CHECK(Schedule<&Nothing>(driver)->Fetch().ok());
  CHECK(Schedule<&Void>(driver, 7)->Fetch().ok());
  CHECK(Schedule<&OwnNumber>(driver, 100)->Fetch().value() == 107);
  CHECK(Schedule<&Words>(driver, std::vector<std::string>{"", "a"})->Fetch().value() ==
        std::vector<std::string>{"", "a", "end"});
  CHECK(driver.Join(Soon()).ok());
  const auto failed = Schedule<&Other>(driver, Color::kBlue);
  CHECK(failed->Fetch().status().code() == StatusCode::kOutOfRange);
  CHECK(driver.Join(Soon()).code() == StatusCode::kOutOfRange);
}

TEST_CASE("functions take the program's object before their arguments",
          "[dispatch][unit][CCO-03]") {
  REQUIRE(BuildProgramObjects().ok());
  RunningExecutor executor(ProgramFunctions(), net::LinkKind::kUnix);
  Driver driver(DriverOptions(ProgramFunctions()));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  CHECK(Schedule<&Sell>(driver, 3)->Fetch().value() == 4);
  CHECK(Schedule<&Close>(driver)->Fetch().ok());
  CHECK(Schedule<&Sell>(driver, 3)->Fetch().value() == -3);
  CHECK(ProgramObject<Shop>().value()->open == 0);
}

TEST_CASE("arguments that are cut or too long are refused before the function runs",
          "[dispatch][unit]") {
  Cancellation none;
  WorkerValues values;
  std::vector<std::byte> value;
  std::vector<std::byte> bytes;
  Codec<std::vector<std::string>>::Write({"one", "two"}, bytes);
  for (std::size_t n = 0; n <= bytes.size() + 1; ++n) {
    std::vector<std::byte> given = bytes;
    given.resize(n);
    value.clear();
    ClosureContext context(1, given, {.cancellation = none, .values = values}, value);
    const Status status = internal::CallWithBytes<&Words>(context);
    CHECK(status.ok() == (n == bytes.size()));
    if (!status.ok()) CHECK(status.code() == StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace muster::dispatch
