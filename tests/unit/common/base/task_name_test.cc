#include "common/base/task_name.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("a task's name is read back as the task that it was written for", "[base][unit]") {
  const TaskId task = GENERATE(TaskId{"worker", 0}, TaskId{"ps", 12}, TaskId{"w", 2'147'483'647});

  CHECK(TaskIn(task.ToString()) == task);
}

TEST_CASE("what is no type and a whole number names no task", "[base][unit]") {
  const std::string text = GENERATE(as<std::string>{}, "", "worker", ":1", "worker:", "worker:x",
                                    "worker:1x", "worker: 1", "worker:+1", "worker:-1", "worker:-0",
                                    "worker:0x1", "worker:1:2", "worker::1", "worker:2147483648",
                                    "worker:4294967297", "worker:99999999999999999999");
  CAPTURE(text);

  CHECK_FALSE(TaskIn(text));
}

}  // namespace
}  // namespace muster
