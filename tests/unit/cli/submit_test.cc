#include <filesystem>
#include <fstream>

#include "cli/upload.h"
#include "tests/support/catch.h"
#include "tests/support/environment_variables.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"
#include "tests/unit/common/config/job_yaml/good_job.h"

namespace muster::cli {
namespace {

using testing::MakeJob;

struct SubmitFixture : testing::Fixture {
  SubmitFixture() {
    file = folder / "job.yaml";
    Write(config::testing::kGoodJob);
    *api.submit->mutable_job() = MakeJob("j-1", v1::JOB_STATE_PENDING);
  }
  void Write(const std::string& text) { std::ofstream(file) << text; }

  const muster::testing::TempFolder folder;
  std::string file;
};

TEST_CASE_METHOD(SubmitFixture, "the id stands alone on stdout, hints on stderr", "[cli][unit]") {
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);

  CHECK(out.str() == "j-1\n");
  CHECK(Said("next: muster wait j-1"));
  REQUIRE(api.submitted.size() == 1);
  CHECK(api.submitted[0].spec().name() == "digits");
  CHECK(api.submitted[0].spec().data().idx().columns().at("image").files(0) ==
        folder / "train-images.gz");
}

TEST_CASE_METHOD(SubmitFixture, "following ends with the job's code", "[cli][unit]") {
  api.watches = {MakeJob("j-1", v1::JOB_STATE_RUNNING, 2), MakeJob("j-1", v1::JOB_STATE_FAILED, 3)};

  CHECK(Run({"submit", "-f", file, "--follow"}) == ExitCode::kJobFailed);

  CHECK(out.str() == "j-1\n");
  CHECK(api.watched == std::vector<std::string>{"j-1", "j-1"});
}

TEST_CASE_METHOD(SubmitFixture, "who is interrupted before an answer hears that the job may run",
                 "[cli][unit]") {
  api.submit = Cancelled("CANCELLED");
  interrupted = true;
  CHECK(Run({"submit", "-f", file, "--follow"}) == ExitCode::kInterrupted);
  CHECK(Said("it may take the job digits all the same; `muster jobs` tells"));
}

TEST_CASE_METHOD(SubmitFixture, "a name given by flag names the job, and is checked",
                 "[cli][unit]") {
  CHECK(Run({"submit", "-f", file, "--name", "other"}) == ExitCode::kDone);
  CHECK(api.submitted[0].spec().name() == "other");
  CHECK(Run({"submit", "-f", file, "--name", "a/b"}) == ExitCode::kUsage);
  CHECK(api.submitted.size() == 1);
}

TEST_CASE_METHOD(SubmitFixture, "what a job file has for the terminal does not reach it",
                 "[cli][unit]") {
  Write(config::testing::kGoodJob + "\"\\e[2J\": 1\n");

  CHECK(Run({"submit", "-f", file}) == ExitCode::kUsage);

  CHECK(Said("\\x1b[2J: unknown key"));
}

TEST_CASE_METHOD(SubmitFixture, "a job that is there already is the same job", "[cli][unit]") {
  api.submit->set_existing(true);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK(out.str() == "j-1\n");
  CHECK(Said("digits is there already: job j-1, PENDING\n"));

  api.submit->mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK(Said("digits is there already: job j-1, SUCCEEDED (--restart runs it again, --name"));

  // Nothing was begun: before and now it is on its way to its end.
  api.submit->mutable_job()->set_state(v1::JOB_STATE_STOPPING);
  api.submit->set_before(v1::JOB_STATE_STOPPING);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK(Said("job j-1, STOPPING (submitted again when it has ended, it goes on)\n"));

  api.submit = AlreadyExists("digits is there with another spec");
  CHECK(Run({"submit", "-f", file}) == ExitCode::kRefused);
}

TEST_CASE_METHOD(SubmitFixture, "a job that had ended is said to go on, or to begin anew",
                 "[cli][unit]") {
  api.submit->set_existing(true);
  api.submit->set_before(v1::JOB_STATE_CANCELLED);
  api.submit->mutable_job()->set_state(v1::JOB_STATE_RESTORING);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK(
      Said("digits was CANCELLED and goes on from its newest checkpoint: job j-1, RESTORING "
           "now\n"));
  CHECK_FALSE(Said("there already"));

  CHECK(Run({"submit", "-f", file, "--restart"}) == ExitCode::kDone);
  CHECK(Said("digits was CANCELLED and begins anew: job j-1, RESTORING now\n"));
  // What a program or a command goes on from is its own.
  (void)api.submit->mutable_job()->mutable_spec()->mutable_launch();
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK(Said("digits was CANCELLED and begins anew: job j-1, RESTORING now\n"));
}

TEST_CASE_METHOD(SubmitFixture, "every problem of a bad file is told, nothing is sent",
                 "[cli][unit]") {
  Write(config::testing::GoodJobBut("batch_size: 128", "batch_sise: 128") + "colour: red\n");

  CHECK(Run({"submit", "-f", file}) == ExitCode::kUsage);

  CHECK(Said(file + ":17:1: batch_sise: unknown key; did you mean \"batch_size\"?"));
  CHECK(Said(file + ":19:1: colour: unknown key"));
  CHECK(Said("error: 2 problems in " + file));
  CHECK(out.str().empty());
  CHECK(api.submitted.empty());
  CHECK(Run({"submit", "-f", folder / "none.yaml"}) == ExitCode::kUsage);
}

TEST_CASE_METHOD(SubmitFixture, "a dry run tells problems by exit code 2", "[cli][unit]") {
  api.submit->add_problems("model.forward: line 2: unknown name reluu");

  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kUsage);

  CHECK(api.submitted[0].dry_run());
  CHECK(Said("model.forward: line 2: unknown name reluu"));
  CHECK(out.str().empty());

  api.submit->clear_problems();
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("digits can run"));
}

TEST_CASE_METHOD(SubmitFixture, "a dry run is refused as the submission would be", "[cli][unit]") {
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK_FALSE(api.submitted.back().restart());

  api.submit = FailedPrecondition("job j-1 (RUNNING) runs");
  CHECK(Run({"submit", "-f", file, "--dry-run", "--restart"}) == ExitCode::kRefused);
  CHECK(api.submitted.back().restart());
  CHECK(Said("error: job j-1 (RUNNING) runs"));
}

TEST_CASE_METHOD(SubmitFixture, "a dry run says whom the job would wait for", "[cli][unit]") {
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK_FALSE(Said("would wait"));

  api.submit->set_waits_for("6 more workers (3 of 9 are there)");
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("  submitted now it would wait for 6 more workers (3 of 9 are there)\n"));
}

TEST_CASE_METHOD(SubmitFixture, "a dry run says when checkpoints will be saved", "[cli][unit]") {
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("  checkpoints: at the end and on stop\n"));

  api.submit->mutable_plan()->set_checkpoint_seconds(60);
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("  checkpoints: every 60 s (default), at the end and on stop\n"));
}

TEST_CASE_METHOD(SubmitFixture, "a dry run says how far batches may run ahead of each other",
                 "[cli][unit]") {
  v1::JobPlan& plan = *api.submit->mutable_plan();
  plan.set_total_steps(10);
  plan.add_ps();
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("  consistency: async\n"));

  plan.mutable_steps()->set_gradients(4);
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("  consistency: synchronous, steps of 4 batches: 3 updates\n"));

  plan.mutable_steps()->set_gradients(1);
  plan.mutable_steps()->set_staleness(2);
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  CHECK(Said("  consistency: staleness 2\n"));
}

TEST_CASE_METHOD(SubmitFixture, "a dry run says how many workers make the steps", "[cli][unit]") {
  const auto told = [this](const std::string& strategy) {
    err.str("");
    Write(std::string(config::testing::kGoodJob) + strategy);
    CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
    const std::string all = err.str();
    const std::size_t at = all.find("  workers: ");
    REQUIRE(at != std::string::npos);
    return all.substr(at, all.find('\n', at) - at);
  };
  CHECK(told("strategy: {kind: parameter_server}\n") == "  workers: all that are there");
  CHECK(told("strategy: {kind: parameter_server, workers: 2, max_workers: 4}\n") ==
        "  workers: 2 to 4");
  CHECK(told("strategy: {kind: multi_worker_mirrored, workers: 2, devices: 2}\n") ==
        "  workers: 2, in step, with 2 devices each");
  CHECK(told("strategy: {kind: mirrored, devices: 4}\n") == "  workers: 1, with 4 devices each");
  CHECK(told("strategy: {kind: tpu, topology: 2x2x1x2}\n") ==
        "  workers: 1, with the cores of 2x2x1x2");
}

TEST_CASE_METHOD(SubmitFixture, "a dry run without a cluster asks an executor here",
                 "[cli][unit]") {
  connect = Unavailable("no cluster");
  program_code = 2;
  program_output = "[W] a warning\n{\n \"problems\": [\"model.forward: line 2\"]\n}\n";

  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kUsage);

  REQUIRE(programs.size() == 1);
  CHECK(programs[0][0] == "muster-executor");
  CHECK(programs[0][1] == "--check");
  CHECK_FALSE(std::filesystem::exists(programs[0][2]));
  CHECK(Said(file + ": model.forward: line 2\n"));
  program_output = "{\"torchVersion\": \"1.13\"}";
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  program_output = "crash";
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kBug);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kUnreachable);
}

TEST_CASE_METHOD(SubmitFixture, "what a dry run gives an executor here is in the temporary folder",
                 "[cli][unit]") {
  connect = Unavailable("no cluster");
  program_output = "{\"torchVersion\": \"1.13\"}";
  {
    const muster::testing::EnvironmentVariables own({{"TMPDIR", folder.path()}});
    CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kDone);
  }
  REQUIRE(programs.size() == 1);
  CHECK(programs[0][2].starts_with(folder / "muster-spec-"));

  const muster::testing::EnvironmentVariables none({{"TMPDIR", folder / "none"}});
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kUsage);
  CHECK(Said("TMPDIR"));
  CHECK(programs.size() == 1);
}

TEST_CASE_METHOD(SubmitFixture, "an archive is sent once, under its hash", "[cli][unit]") {
  std::string text = config::testing::kGoodJob;
  const std::size_t begin = text.find("  parameters:");
  text.replace(begin, text.find("data:") - begin, "  archive: model.pt\n");
  Write(text);
  std::ofstream(folder / "model.pt") << "abc";
  const std::string sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK(api.files[sha] == "abc");
  CHECK(api.submitted[0].spec().model().archive_sha256() == sha);
  CHECK(Said("sent "));
  err.str("");
  CHECK(Run({"submit", "-f", file}) == ExitCode::kDone);
  CHECK_FALSE(Said("sent "));

  std::filesystem::resize_file(folder / "model.pt", (256 << 20) + 1);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kRefused);
  CHECK(Said("has 256.0 MiB; at most 256.0 MiB"));
  std::filesystem::remove(folder / "model.pt");
  CHECK(Run({"submit", "-f", file}) == ExitCode::kUsage);
}

TEST_CASE_METHOD(SubmitFixture, "errors of TorchScript have the job file's line and column",
                 "[cli][unit]") {
  // Line 8 of the file is line 2 of forward, indented by 4.
  const std::string problem =
      "forward, line 2, column 27: undefined value imagee\n  excerpt\n  ~~~";
  const std::string located = file + ":8:31: forward: undefined value imagee\n  excerpt\n  ~~~\n";
  api.submit->add_problems(problem);
  CHECK(Run({"submit", "-f", file, "--dry-run"}) == ExitCode::kUsage);
  CHECK(Said("\n" + located) != err.str().starts_with(located));

  api.submit = InvalidArgument("{}", problem);
  CHECK(Run({"submit", "-f", file}) == ExitCode::kUsage);
  CHECK(Said("error: " + located));

  api.submit = v1::SubmitJobReply();
  v1::Job failed = MakeJob("j-1", v1::JOB_STATE_FAILED, 3);
  failed.mutable_error()->set_message(
      "closure 1 on worker:0: step 1: forward, line 1, column 5: shapes differ");
  api.watches = {failed};
  CHECK(Run({"submit", "-f", file, "--follow"}) == ExitCode::kJobFailed);
  CHECK(Said(file + ":7:9: closure 1 on worker:0: step 1: forward: shapes differ"));
}
}  // namespace
}  // namespace muster::cli
