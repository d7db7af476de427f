#include "common/cluster/device_name.h"

#include "tests/support/catch.h"

namespace muster::cluster {
namespace {

TEST_CASE("a canonical name has every part", "[cluster][unit][spec][CSP-17]") {
  CHECK(CanonicalDevice("/job:worker/task:1/cpu:0").value() ==
        "/job:worker/replica:0/task:1/device:CPU:0");
  CHECK(CanonicalDevice("/job:ps/replica:2/task:3/device:TPU:7").value() ==
        "/job:ps/replica:2/task:3/device:TPU:7");
  CHECK(CanonicalDevice("GPU:1").value() == "/job:localhost/replica:0/task:0/device:GPU:1");
  CHECK(CanonicalDevice("").value() == "/job:localhost/replica:0/task:0/device:CPU:0");
}

TEST_CASE("a default fills what a name leaves open", "[cluster][unit][spec][CSP-18]") {
  CHECK(CanonicalDevice("/job:worker/task:1", "/gpu:0").value() ==
        "/job:worker/replica:0/task:1/device:GPU:0");
  CHECK(CanonicalDevice("/cpu:0", "/job:worker").value() ==
        "/job:worker/replica:0/task:0/device:CPU:0");
  CHECK(CanonicalDevice("/task:4/gpu:2", "/job:ps/task:1/cpu:0").value() ==
        "/job:ps/replica:0/task:4/device:GPU:2");
  CHECK(CanonicalDevice("/device:GPU:*", "/gpu:3").value() ==
        "/job:localhost/replica:0/task:0/device:GPU:3");
}

TEST_CASE("an open device scope is the default of a name", "[cluster][unit][spec][CSP-19]") {
  const char* scope = "/job:worker";

  CHECK(CanonicalDevice("/cpu:0", scope).value() == "/job:worker/replica:0/task:0/device:CPU:0");
  CHECK(CanonicalDevice("/task:5", "/job:chief/gpu:1").value() ==
        "/job:chief/replica:0/task:5/device:GPU:1");
}

TEST_CASE("the parts that are set are printed", "[cluster][unit]") {
  CHECK(DeviceName::Parse("/job:worker/gpu:*").value().ToString() == "/job:worker/device:GPU:*");
  CHECK(DeviceName::Parse("/task:1").value() ==
        DeviceName{.job = {}, .replica = {}, .task = 1, .type = {}, .index = {}});
  CHECK(DeviceName::Parse("").value().ToString().empty());
}

TEST_CASE("a name of another form is refused", "[cluster][unit]") {
  for (const char* bad :
       {"/job:", "/job:a/job:b", "/cpu:0/gpu:1", "/cpu:x", "/cpu:-1", "/cpu", "/task:1/task:1",
        "/device:CPU", "/device::0", "/a b:0", "/cpu:0:1", "/task:99999999999"}) {
    INFO(bad);
    CHECK(DeviceName::Parse(bad).status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(Message(DeviceName::Parse("/cpu:x").status()) ==
        "device \"/cpu:x\": \"x\" is not a number of a device");
}

}  // namespace
}  // namespace muster::cluster
