// A command on the command line: when it is launched, what of it is sent.
#include "cli/launch.h"

#include <filesystem>
#include <fstream>

#include <sys/stat.h>

#include "cli/upload.h"
#include "tests/support/catch.h"
#include "tests/support/other_user.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using testing::MakeJob;

// Runs in a folder of its own, where relative paths begin.
struct LaunchFixture : testing::Fixture {
  LaunchFixture() {
    before = fs::current_path();
    fs::current_path(folder.path());
    *api.submit->mutable_job() = MakeJob("j-1", v1::JOB_STATE_PENDING);
  }
  ~LaunchFixture() { fs::current_path(before); }
  void Make(const std::string& path, const std::string& content) const {
    if (fs::path(path).has_parent_path()) fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    fs::permissions(path, fs::perms::owner_all);
  }
  v1::JobSpec Submitted(const std::vector<std::string>& line) {
    err.str("");
    const ExitCode code = Run(line);
    CAPTURE(err.str());
    REQUIRE(code == ExitCode::kDone);
    return api.submitted.back().spec();
  }
  bool Refuses(const std::vector<std::string>& line, const std::string& why) {
    err.str("");
    const ExitCode code = Run(line);
    CAPTURE(err.str());
    CHECK(err.str().find(why) != std::string::npos);
    return code == ExitCode::kUsage;
  }
  static std::vector<std::string> Paths(const v1::JobSpec& spec) {
    std::vector<std::string> paths;
    for (const v1::LaunchFile& file : spec.launch().files()) paths.push_back(file.path());
    return paths;
  }

  const muster::testing::TempFolder folder;
  fs::path before;
};

using Words = std::vector<std::string>;

TEST_CASE_METHOD(LaunchFixture, "a variable that is not UTF-8 is refused here", "[cli][unit]") {
  CHECK(Refuses({"submit", "--env", "A=caf\xe9", "--", "sh"}, "--env A=caf\\xe9: not UTF-8"));
  CHECK(Refuses({"submit", "--env", "\xe9=1", "--", "sh"}, "--env \\xe9=1: not UTF-8"));
  CHECK(api.submitted.empty());
}

TEST_CASE_METHOD(LaunchFixture, "a command in PATH is launched, and its script is sent",
                 "[cli][unit]") {
  Make("src/train.py", "print(1)");
  Make("data.csv", "1,2");
  const v1::JobSpec spec =
      Submitted({"submit", "--workers", "2:4", "--processes-per-worker", "2", "--restart-policy",
                 "exit-code", "--max-restarts", "7", "--send", "data.csv", "--send",
                 folder / "data.csv", "--", "python3", "src/train.py", "--data", "data.csv"});
  CHECK(spec.name() == "train");
  CHECK(spec.strategy().kind() == v1::STRATEGY_KIND_UNSPECIFIED);
  CHECK(spec.strategy().workers() == 2);
  CHECK(spec.strategy().max_workers() == 4);
  const v1::LaunchSpec& launch = spec.launch();
  CHECK(launch.command() == "python3");
  CHECK(launch.sha256().empty());
  CHECK(Words(launch.arguments().begin(), launch.arguments().end()) ==
        Words{"src/train.py", "--data", "data.csv"});
  CHECK(launch.restart() == v1::RESTART_POLICY_EXIT_CODE);
  CHECK(launch.max_restarts() == 7);
  CHECK(launch.processes_per_worker() == 2);
  CHECK(Paths(spec) == Words{"src/train.py", "data.csv"});
  CHECK(launch.files(0).sha256() == Sha256OfFile("src/train.py").value());
  CHECK(api.files.contains(launch.files(1).sha256()));
}

TEST_CASE_METHOD(LaunchFixture, "folders are sent with all that is in them, and variables go along",
                 "[cli][unit]") {
  Make("src/train.py", "print(1)");
  Make("src/lib/deep/net.py", "x = 1");
  Make("src/lib/util.py", "y = 1");
  const v1::JobSpec spec =
      Submitted({"submit", "--send", "src/lib/", "--send", folder / "src/lib/deep", "--env",
                 "A=1=2", "--env", "EMPTY=", "--end-grace", "2s", "--", "python3", "src/train.py"});
  CHECK(Paths(spec) ==
        Words{"src/train.py", "src/lib/deep/net.py", "src/lib/util.py", "deep/net.py"});
  CHECK(spec.launch().environment().at("A") == "1=2");
  CHECK(spec.launch().environment().at("EMPTY").empty());
  CHECK(spec.launch().grace_ms() == 2'000);
  CHECK_FALSE(spec.launch().elastic());
}

TEST_CASE_METHOD(LaunchFixture, "processes are told which TPU cores they have", "[cli][unit]") {
  const v1::JobSpec spec = Submitted({"submit", "--tpu-topology", "2x2x1x2", "--", "python3"});
  CHECK(spec.launch().environment().at("MUSTER_TPU_TOPOLOGY") == "2x2x1x2");
  CHECK(Submitted({"submit", "--env", "MUSTER_TPU_TOPOLOGY=1x1x1x2", "--", "python3"})
            .launch()
            .environment()
            .at("MUSTER_TPU_TOPOLOGY") == "1x1x1x2");
}

TEST_CASE_METHOD(LaunchFixture, "processes of MultiWorkerMirroredStrategy come and go in MIN:MAX",
                 "[cli][unit]") {
  const Words start{"submit", "--strategy", "multi_worker_mirrored", "--workers", "1:3"};
  const auto with = [&](const Words& more) {
    Words line = start;
    line.insert(line.end(), more.begin(), more.end());
    line.insert(line.end(), {"--", "python3"});
    return Submitted(line).launch();
  };
  CHECK(with({}).elastic());
  CHECK(with({}).restart() == v1::RESTART_POLICY_ON_FAILURE);
  CHECK(with({"--max-restarts", "9"}).max_restarts() == 9);
  CHECK(with({"--restart-policy", "never"}).restart() == v1::RESTART_POLICY_NEVER);
  CHECK_FALSE(Submitted({"submit", "--strategy", "multi_worker_mirrored", "--workers", "2", "--",
                         "python3"})
                  .launch()
                  .elastic());
}

TEST_CASE_METHOD(LaunchFixture, "a script that is a file here is sent and launched",
                 "[cli][unit]") {
  Make("run.sh", "#!/bin/sh\n");
  Make("other.sh", "#!/bin/sh\n");
  // Its arguments are its own affair.
  const v1::JobSpec spec = Submitted({"submit", "--", "./run.sh", "other.sh"});
  CHECK(spec.name() == "run");
  CHECK(spec.launch().command() == "run.sh");
  CHECK(spec.launch().sha256() == Sha256OfFile("run.sh").value());
  CHECK(Paths(spec).empty());
}

TEST_CASE_METHOD(LaunchFixture, "an executable is launched when its strategy says so",
                 "[cli][unit]") {
  fs::copy_file("/proc/self/exe", "words");
  CHECK(Submitted({"submit", "--", "./words"}).has_program());
  CHECK(Submitted({"submit", "--", "words"}).has_program());
  CHECK(Submitted({"submit", "--strategy", "none", "--", "./words"}).has_launch());
  const v1::JobSpec spec = Submitted(
      {"submit", "--strategy", "multi_worker_mirrored", "--workers", "2", "--", "./words", "-x"});
  CHECK(spec.strategy().kind() == v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
  CHECK(spec.launch().sha256() == Sha256OfFile("words").value());
}

TEST_CASE_METHOD(LaunchFixture,
                 "what of a folder is not sent is said, and what cannot be read is refused",
                 "[cli][unit]") {
  Make("src/train.py", "print(1)");
  Make("elsewhere/net.py", "x = 1");
  const Words line{"submit", "--send", "src", "--", "python3"};
  fs::create_symlink("../elsewhere/net.py", "src/net.py");
  CHECK(Paths(Submitted(line)) == Words{"src/net.py", "src/train.py"});
  api.submitted.clear();

  fs::create_symlink("nothing", "src/gone.py");
  fs::create_directory_symlink("../elsewhere", "src/lib");
  REQUIRE(::mkfifo("src/pipe", 0600) == 0);
  CHECK(Paths(Submitted(line)) == Words{"src/net.py", "src/train.py"});
  CHECK(err.str().find("--send: src/gone.py is a link that leads nowhere: not sent\n"
                       "--send: src/lib is a link to a folder: not sent\n"
                       "--send: src/pipe is no file (a pipe, a socket or a device): not sent\n") !=
        std::string::npos);

  if (!muster::testing::MayBeOthers()) return;
  fs::create_directory("src/closed");
  fs::permissions("src/closed", fs::perms::owner_all);
  for (const std::string& open : {folder.path(), std::string("src")}) {
    fs::permissions(open, fs::perms(0055), fs::perm_options::add);
  }
  const muster::testing::OtherUser other([this, &line] {
    (void)Run(line);
    return err.str();
  });
  const std::string words = other.Words();
  CAPTURE(words);
  CHECK(words.find("--send src: the folder src/closed cannot be read: ") != std::string::npos);
}

TEST_CASE_METHOD(LaunchFixture, "a folder that changes while it is sent is refused as a whole",
                 "[cli][unit]") {
  Make("src/b.py", "b");
  Make("src/c.py", "c");
  const auto parsed = ParseCommandLine({"submit", "--send", "src", "--", "python3"});
  const Options& options = std::get<Options>(parsed);
  Result<v1::JobSpec> spec = LaunchJob(options);
  REQUIRE(spec.ok());
  const Terminal terminal{.out = out, .err = err};

  SECTION("a file has come") { Make("src/a.py", "a"); }
  SECTION("a file has gone") { fs::remove("src/c.py"); }
  SECTION("one has come and another gone") {
    Make("src/a.py", "a");
    fs::remove("src/b.py");
  }

  const Status sent = UploadLaunch(terminal, api, options, *spec);
  CHECK(sent.code() == StatusCode::kAborted);
  CHECK(Message(sent) == "the files of --send changed while they were sent; try again");
}

TEST_CASE_METHOD(LaunchFixture, "what cannot be launched is refused with the reason",
                 "[cli][unit]") {
  Make("notes", "hello");
  Make("a/x.csv", "1");
  Make("b/x.csv", "2");
  CHECK(Refuses({"submit", "--strategy", "none", "--", "./notes"},
                "submit a compiled program, or a script that begins with #!"));
  CHECK(Refuses({"submit", "--send", "none.csv", "--", "python3"},
                "--send none.csv: there is no such file"));
  fs::create_directory("empty");
  CHECK(Refuses({"submit", "--send", "empty", "--", "python3"},
                "--send empty: no file is in this folder"));
  CHECK(Refuses({"submit", "--env", "=x", "--", "python3"}, "\"=x\" is not NAME=VALUE"));
  CHECK(Refuses({"submit", "--env", "MUSTER_ROLE=driver", "--", "python3"},
                "MUSTER_ROLE is the launcher's to set"));
  for (const std::string mesh : {"2x2", "0x1x1x1", "2x2x1x2x", "8x8x8x2"}) {
    const std::string why = fmt::format("TPU topology \"{}\" is not chips along x, y and z", mesh);
    CHECK(Refuses({"submit", "--tpu-topology", mesh, "--", "python3"}, why));
    CHECK(Refuses({"submit", "--env", "MUSTER_TPU_TOPOLOGY=" + mesh, "--", "python3"}, why));
  }
  CHECK(Refuses({"submit", "-f", "job.yaml", "--tpu-topology", "2x2x1x2"},
                "--tpu-topology belongs to a program (behind --)"));
  CHECK(Refuses({"submit", "--env", "RANK=3", "--", "python3"}, "RANK is the launcher's to set"));
  // 50 days would be 7 hours in 32 bits of milliseconds.
  for (const std::string grace : {"2h", "50d"}) {
    CHECK(Refuses({"submit", "--end-grace", grace, "--", "python3"},
                  "--end-grace: at most 1h; given " + grace));
  }
  CHECK(Refuses({"submit", "--strategy", "multi_worker_mirrored", "--workers", "1:2",
                 "--processes-per-worker", "2", "--", "python3"},
                "one on each worker"));
  CHECK(Refuses(
      {"submit", "--send", folder / "a/x.csv", "--send", folder / "b/x.csv", "--", "python3"},
      "two files would be x.csv in the working folder"));
  CHECK(Refuses({"submit", "--ps", "2", "--", "python3"},
                "--ps belongs to programs of --strategy parameter_server"));
  CHECK(Refuses({"submit", "--strategy", "parameter_server", "--send", "notes", "--", "./notes"},
                "--send belongs to commands"));
  CHECK(Refuses({"submit", "--strategy", "parameter_server", "--restart-policy", "exit-code", "--",
                 "./notes"},
                "--restart-policy exit-code belongs to commands: --strategy none, or"));
  CHECK(Refuses({"submit", "-f", "job.yaml", "--send", "notes"}, "--send belongs to a program"));
  CHECK(api.submitted.empty());
}

}  // namespace
}  // namespace muster::cli
