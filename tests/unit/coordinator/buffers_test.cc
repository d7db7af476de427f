// What an archive's module holds beside its variables: whose buffers count, and where they go.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

v1::JobSpec NormedSpec() {
  v1::JobSpec spec = Cluster::Spec();
  spec.mutable_model()->Clear();
  spec.mutable_model()->set_archive("normed.pt");
  spec.mutable_model()->set_archive_sha256(std::string(64, 'a'));
  spec.mutable_model()->set_buffers(v1::BUFFER_POLICY_WORKER_LOCAL);
  return spec;
}

v1::ModelValues Values(const std::string& mean) {
  v1::ModelValues values;
  v1::TensorValue& tensor = *values.mutable_buffers()->add_tensors();
  tensor.set_name("bn.running_mean");
  tensor.set_data(mean);
  values.mutable_frozen()->add_tensors()->set_name("scale");
  return values;
}

// A running job whose workers have made steps 1..10.
struct WithBuffers : Cluster {
  WithBuffers() {
    JoinAll(1, 2);
    at({"worker", 0}).values = Values("worker 0 at 10");
    at({"worker", 1}).values = Values("worker 1 at 10");
    v1::VariableLayout& w = *at({"worker", 0}).check.add_parameters();
    w.set_name("w");
    w.set_dtype(v1::DTYPE_FLOAT32);
    w.add_shape(4);
    at({"worker", 1}).check = at({"worker", 0}).check;
    REQUIRE(Submit(NormedSpec()).ok());
    REQUIRE(State() == v1::JOB_STATE_RUNNING);
    REQUIRE(Schedule(1, 10).ok());
    WorkAll();
  }
  // The buffers of the newest SetBuffers to this worker; empty: none came.
  static std::string Given(const FakeDaemon& worker) {
    for (auto one = worker.commands.rbegin(); one != worker.commands.rend(); ++one) {
      if (one->has_set_buffers()) return one->set_buffers().buffers().tensors(0).data();
    }
    return "";
  }
};

TEST_CASE_METHOD(WithBuffers, "everybody evaluates with the buffers of worker 0 at the cut",
                 "[coordinator][unit]") {
  REQUIRE(Schedule(1, 4, v1::CLOSURE_KIND_EVALUATE).ok());

  for (const int index : {0, 1}) {
    const FakeDaemon& worker = at({"worker", index});
    CHECK(Given(worker) == "worker 0 at 10");
    REQUIRE(worker.given.size() == 2);
    CHECK(worker.given[0].buffers() > 0);
  }
  const std::uint64_t first = at({"worker", 1}).given[0].buffers();
  WorkAll();

  // At another step they are others, and a training closure names none.
  REQUIRE(Schedule(11, 20).ok());
  CHECK(at({"worker", 0}).given[0].buffers() == 0);
  WorkAll();
  at({"worker", 0}).values = Values("worker 0 at 20");
  REQUIRE(Schedule(1, 4, v1::CLOSURE_KIND_EVALUATE).ok());
  CHECK(Given(at({"worker", 1})) == "worker 0 at 20");
  CHECK(at({"worker", 1}).given[0].buffers() > first);
}

TEST_CASE_METHOD(WithBuffers,
                 "buffers that executors have from an earlier coordinator are not taken for newer "
                 "ones",
                 "[coordinator][unit]") {
  REQUIRE(Schedule(1, 4, v1::CLOSURE_KIND_EVALUATE).ok());
  const std::uint64_t before = at({"worker", 0}).given[0].buffers();
  WorkAll();
  RestartCoordinator();
  JoinAll(1, 2);
  REQUIRE(EventOf("VIEW_ADOPTED"));
  REQUIRE(Schedule(11, 20).ok());
  WorkAll();
  at({"worker", 0}).values = Values("worker 0 at 20");

  REQUIRE(Schedule(1, 4, v1::CLOSURE_KIND_EVALUATE).ok());

  CHECK(Given(at({"worker", 1})) == "worker 0 at 20");
  CHECK(at({"worker", 1}).given[0].buffers() > before);
}

TEST_CASE_METHOD(WithBuffers, "a checkpoint holds worker 0's buffers and what does not train",
                 "[coordinator][unit]") {
  REQUIRE(Save(10).ok());

  REQUIRE(checkpoints.saved_values.size() == 1);
  CHECK(checkpoints.saved_values[0].buffers().tensors(0).data() == "worker 0 at 10");
  CHECK(checkpoints.saved_values[0].frozen().tensors(0).name() == "scale");
  REQUIRE(checkpoints.manifests.size() == 1);
  CHECK(checkpoints.manifests[0].files(0).name() == "buffers.safetensors");
  CHECK(checkpoints.manifests[0].files_size() == 2);
}

TEST_CASE_METHOD(WithBuffers,
                 "without worker 0 the lowest worker that is there stands in, and it is said",
                 "[coordinator][unit]") {
  Kill({"worker", 0});
  Pass(Millis(1'000));

  REQUIRE(Save(10).ok());

  CHECK(checkpoints.saved_values[0].buffers().tensors(0).data() == "worker 1 at 10");
  REQUIRE(EventOf("BUFFERS_OF_ANOTHER"));
  CHECK(EventOf("BUFFERS_OF_ANOTHER")->task().index() == 1);
}

TEST_CASE_METHOD(WithBuffers, "a worker that is lost while it is asked is replaced",
                 "[coordinator][unit]") {
  at({"worker", 0}).refuse[v1::Command::kGetValues] = Unavailable("its executor has ended");
  REQUIRE_FALSE(Save(10).ok());  // waits
  CHECK(checkpoints.manifests.empty());

  at({"worker", 0}).refuse.clear();
  Pass(Millis(1'000));

  CHECK(checkpoints.manifests.size() == 1);
}

TEST_CASE_METHOD(WithBuffers,
                 "executors of a job that goes back begin with the checkpoint's buffers",
                 "[coordinator][unit]") {
  CHECK_FALSE(at({"worker", 1}).start.has_buffers());
  REQUIRE(Save(10).ok());
  checkpoints.buffers = Values("from the disk").buffers();

  Kill({"ps", 0});
  Pass(Millis(1'000));
  (void)Join({"ps", 0}, "boot-2");

  REQUIRE(State() == v1::JOB_STATE_RUNNING);
  CHECK(View() == 2);
  for (const int index : {0, 1}) {
    CHECK(at({"worker", index}).start.buffers().tensors(0).data() == "from the disk");
  }

  // Who starts again within the view begins with the newest that are known.
  REQUIRE(Schedule(11, 12).ok());
  WorkAll();
  at({"worker", 0}).values = Values("worker 0 at 12");
  REQUIRE(Save(12).ok());
  at({"worker", 1}).ExecutorExits("signal SIGKILL");
  Pass(Millis(1'000));
  CHECK(at({"worker", 1}).start.buffers().tensors(0).data() == "worker 0 at 12");
}

struct Readopted : WithBuffers {
  // The coordinator is restarted, and worker 1's process has ended with it.
  void Restart(bool folder_hangs = false) {
    REQUIRE(Save(10).ok());
    checkpoints.buffers = Values("from the disk").buffers();
    checkpoints.hangs = folder_hangs;
    RestartCoordinator();
    JoinAll(1, 1);
    (void)Join({"worker", 1}, "boot-2");
  }
};

TEST_CASE_METHOD(Readopted,
                 "an executor that starts anew in an adopted view begins with the buffers of its "
                 "newest checkpoint",
                 "[coordinator][unit]") {
  Restart();

  REQUIRE(EventOf("VIEW_ADOPTED"));
  REQUIRE(State() == v1::JOB_STATE_RUNNING);
  REQUIRE(at({"worker", 1}).start.has_buffers());
  CHECK(at({"worker", 1}).start.buffers().tensors(0).data() == "from the disk");
}

TEST_CASE_METHOD(Readopted, "a view is adopted though the buffers of its checkpoint cannot be read",
                 "[coordinator][unit]") {
  SECTION("for an error") {
    checkpoints.unreadable = Unavailable("stale file handle");
    Restart();
  }
  SECTION("since the folder hangs") {
    Restart(/*folder_hangs=*/true);
    CHECK_FALSE(EventOf("VIEW_ADOPTED"));
    Pass(Millis(21'000));
  }

  CHECK(EventOf("VIEW_ADOPTED"));
  CHECK(State() == v1::JOB_STATE_RUNNING);
  CHECK(View() == 1);
  CHECK_FALSE(at({"worker", 1}).start.has_buffers());
}

TEST_CASE_METHOD(Readopted,
                 "a server that is cut off while buffers of a checkpoint are read is waited for",
                 "[coordinator][unit]") {
  Restart(/*folder_hangs=*/true);
  Kill({"ps", 0});
  Pass(Millis(21'000));
  CHECK(job().record().job().reason() == "WAITING_FOR_TASKS");

  checkpoints.hangs = false;
  (void)Join({"ps", 0});
  Pass(Millis(1'000));

  CHECK(EventOf("VIEW_ADOPTED"));
  CHECK(View() == 1);
}

TEST_CASE("an archive whose buffers are constant saves them and evaluates without asking",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.at({"worker", 0}).values = Values("constant");
  v1::VariableLayout& w = *cluster.at({"worker", 0}).check.add_parameters();
  w.set_name("w");
  w.set_dtype(v1::DTYPE_FLOAT32);
  w.add_shape(4);
  v1::JobSpec spec = NormedSpec();
  spec.mutable_model()->clear_buffers();
  REQUIRE(cluster.Submit(spec).ok());
  cluster.TrainAndSave(1, 2);
  REQUIRE(cluster.Schedule(1, 1, v1::CLOSURE_KIND_EVALUATE).ok());

  CHECK(cluster.checkpoints.saved_values[0].buffers().tensors(0).data() == "constant");
  CHECK(cluster.at({"worker", 0}).given[0].buffers() == 0);
}

}  // namespace
}  // namespace muster::coordinator
