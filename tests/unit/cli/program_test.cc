// A program on the command line: what of it is refused, what is sent, what people see of it.
#include "cli/program.h"

#include <array>
#include <filesystem>
#include <fstream>

#include <elf.h>

#include "cli/progress.h"
#include "cli/upload.h"
#include "common/process/executable.h"
#include "tests/support/catch.h"
#include "tests/support/other_user.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::MakeJob;

struct ProgramFixture : testing::Fixture {
  ProgramFixture() {
    // This test itself is an executable of this machine.
    words = folder / "words";
    std::filesystem::copy_file("/proc/self/exe", words);
    *api.submit->mutable_job() = MakeJob("j-1", v1::JOB_STATE_PENDING);
  }

  // A file of this content that may be run.
  std::string Make(const std::string& name, const std::string& content) {
    const std::string path = folder / name;
    std::ofstream(path, std::ios::binary) << content;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  // The beginning of an ELF file.
  static std::string Elf(unsigned type, unsigned machine) {
    std::string head(64, '\0');
    head.replace(0, SELFMAG, ELFMAG);
    head[16] = static_cast<char>(type);
    head[18] = static_cast<char>(machine & 0xff);
    head[19] = static_cast<char>(machine >> 8);
    return head;
  }

  const muster::testing::TempFolder folder;
  std::string words;
};

TEST_CASE_METHOD(ProgramFixture, "a program is sent by its hash and submitted with its arguments",
                 "[cli][unit]") {
  CHECK(Run({"submit",
             "--strategy",
             "parameter_server",
             "--workers",
             "2:4",
             "--closures-per-worker",
             "3",
             "--ps",
             "2",
             "--memory",
             "2GiB",
             "--evaluator",
             "--restart-policy",
             "on-failure",
             "--max-restarts",
             "5",
             "--",
             words,
             "--epochs",
             "3",
             "--follow",
             "--",
             "-f"}) == ExitCode::kDone);

  CHECK(out.str() == "j-1\n");
  REQUIRE(api.submitted.size() == 1);
  const v1::JobSpec& spec = api.submitted[0].spec();
  CHECK(spec.name() == "words");
  CHECK(spec.strategy().kind() == v1::STRATEGY_KIND_PARAMETER_SERVER);
  CHECK(spec.strategy().workers() == 2);
  CHECK(spec.strategy().max_workers() == 4);
  const v1::ProgramSpec& program = spec.program();
  CHECK(program.name() == "words");
  CHECK(std::vector<std::string>(program.arguments().begin(), program.arguments().end()) ==
        std::vector<std::string>{"--epochs", "3", "--follow", "--", "-f"});
  CHECK(program.closures_per_worker() == 3);
  CHECK(program.parameter_servers() == 2);
  CHECK(program.evaluator());
  CHECK(program.memory_bytes() == std::uint64_t{2} << 30);
  CHECK(program.restart() == v1::RESTART_POLICY_ON_FAILURE);
  CHECK(program.max_restarts() == 5);
  CHECK(program.sha256() == Sha256OfFile(words).value());
  CHECK(api.files.contains(program.sha256()));
  CHECK(Said("sent " + words));

  err.str("");
  CHECK(Run({"submit", "--name", "other", "--", words}) == ExitCode::kDone);
  CHECK_FALSE(Said("sent "));
  CHECK(api.submitted[1].spec().name() == "other");
  CHECK(api.submitted[1].spec().strategy().workers() == 0);
  CHECK(api.submitted[1].spec().program().restart() == v1::RESTART_POLICY_NEVER);
}

TEST_CASE_METHOD(ProgramFixture, "what cannot be a program is refused with the reason",
                 "[cli][unit]") {
  const auto refuses = [this](const std::string& path, const std::string& why) {
    err.str("");
    const ExitCode code = Run({"submit", "--", path});
    CAPTURE(err.str());
    return code == ExitCode::kUsage && Said(why);
  };
  const unsigned other = process::HostMachine() == "aarch64" ? EM_X86_64 : EM_AARCH64;
  const std::string here = process::HostMachine();

  CHECK(refuses(folder / "none", "there is no file " + folder / "none"));
  CHECK(refuses(folder.path(), folder.path() + " is a folder, no program"));
  const std::string script = Make("train.py", "#!/usr/bin/python3\n");
  CHECK(Run({"submit", "--strategy", "parameter_server", "--", script}) == ExitCode::kUsage);
  CHECK(Said("is a script, and --strategy parameter_server runs"));
  CHECK(refuses(Make("notes", "hello"), "is no ELF executable: submit a compiled program"));
  CHECK(refuses(Make("empty", ""), "is no ELF executable"));
  CHECK(refuses(Make("main.o", Elf(ET_REL, EM_X86_64)), "is an object file"));
  CHECK(refuses(Make("arm", Elf(ET_DYN, other)), "and this host is " + here));
  std::filesystem::permissions(words, std::filesystem::perms::owner_read);
  CHECK(refuses(words, "is not executable: chmod +x " + words));
  CHECK(api.submitted.empty());
  CHECK(api.files.empty());
}

TEST_CASE_METHOD(ProgramFixture,
                 "a file that may not be read is a mistake and no question of the token",
                 "[cli][unit]") {
  if (!muster::testing::MayBeOthers()) return;
  namespace fs = std::filesystem;
  fs::permissions(folder.path(), fs::perms(0055), fs::perm_options::add);
  const std::string open = Make("open", "#!/bin/sh\n");
  fs::permissions(open, fs::perms(0055), fs::perm_options::add);
  fs::permissions(words, fs::perms::owner_all);
  const std::string secret = folder.Write("secret", "x = 1");
  const std::string checkpoint = folder / "closed";
  fs::create_directory(checkpoint);
  fs::permissions(checkpoint, fs::perms::owner_all);

  const auto ends_with = [this](const std::vector<std::string>& line) {
    const muster::testing::OtherUser other([this, &line] {
      const int code = static_cast<int>(Run(line));
      return std::to_string(code) + " " + err.str();
    });
    return other.Words();
  };
  const std::string program = ends_with({"submit", "--", words});
  CAPTURE(program);
  CHECK(program.starts_with("2 error: open " + words + ": Permission denied: it is sent"));
  const std::string sent = ends_with({"submit", "--send", secret, "--", open});
  CAPTURE(sent);
  CHECK(sent.starts_with("2 "));
  CHECK(sent.find("open " + secret + ": Permission denied") != std::string::npos);
  const std::string folder_of_another =
      ends_with({"checkpoints", "verify", checkpoint + "/step-000000000020"});
  CAPTURE(folder_of_another);
  CHECK(folder_of_another.starts_with("4 "));
}

TEST_CASE_METHOD(ProgramFixture, "a program of more than 256 MiB is not sent", "[cli][unit]") {
  std::filesystem::resize_file(words, (256 << 20) + 1);
  CHECK(Run({"submit", "--", words}) == ExitCode::kRefused);
  CHECK(Said("at most 256.0 MiB"));
}

TEST_CASE_METHOD(ProgramFixture, "restart with a policy is restart-policy, alone it begins anew",
                 "[cli][unit]") {
  struct Sent {
    v1::RestartPolicy policy;
    bool anew;
  };
  const auto sent = [this](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "submit");
    flags.insert(flags.end(), {"--", words});
    err.str("");
    const ExitCode code = Run(flags);
    INFO(err.str());
    REQUIRE(code == ExitCode::kDone);
    const v1::SubmitJobRequest& request = api.submitted.back();
    return Sent{request.spec().program().restart(), request.restart()};
  };
  const auto is = [](const Sent& given, v1::RestartPolicy policy, bool anew) {
    return given.policy == policy && given.anew == anew;
  };
  CHECK(is(sent({"--restart", "on-failure", "--max-restarts", "5"}), v1::RESTART_POLICY_ON_FAILURE,
           false));
  CHECK(is(sent({"--restart=on-failure"}), v1::RESTART_POLICY_ON_FAILURE, false));
  CHECK(is(sent({"--restart"}), v1::RESTART_POLICY_NEVER, true));
  CHECK(is(sent({"--restart", "--name", "again"}), v1::RESTART_POLICY_NEVER, true));
  CHECK(is(sent({"--restart", "--restart", "on-failure"}), v1::RESTART_POLICY_ON_FAILURE, true));
  CHECK(is(sent({"--restart", "--restart-policy", "on-failure"}), v1::RESTART_POLICY_ON_FAILURE,
           true));
  CHECK(is(sent({"--restart", "never", "--restart-policy", "never"}), v1::RESTART_POLICY_NEVER,
           false));

  const auto refuses = [this](const std::vector<std::string>& line, const std::string& why) {
    err.str("");
    const ExitCode code = Run(line);
    CAPTURE(err.str());
    return code == ExitCode::kUsage && Said(why);
  };
  CHECK(refuses({"submit", "--restart", "always", "--", words},
                "--restart: there is no \"always\"; choose never, on-failure or exit-code"));
  CHECK(refuses({"submit", "--restart", "never", "--restart-policy", "on-failure", "--", words},
                "two different ones"));
  CHECK(refuses({"submit", "-f", "job.yaml", "--restart", "on-failure"},
                "--restart with a policy belongs to a program"));
}

TEST_CASE_METHOD(ProgramFixture, "flags of programs and of job files do not mix", "[cli][unit]") {
  const auto refuses = [this](const std::vector<std::string>& line, const std::string& why) {
    err.str("");
    const ExitCode code = Run(line);
    CAPTURE(err.str());
    return code == ExitCode::kUsage && Said(why);
  };
  CHECK(refuses({"submit"}, "give a job file: -f job.yaml, or a program"));
  CHECK(refuses({"submit", "--"}, "give a job file: -f job.yaml, or a program"));
  CHECK(refuses({"submit", "--", "", "x"}, "the program behind -- is empty"));
  CHECK(refuses({"submit", "-f", "job.yaml", "--", words}, "either a job file (-f) or a program"));
  CHECK(refuses({"submit", "-f", "job.yaml", "--workers", "2"}, "--workers belongs to a program"));
  CHECK(refuses({"submit", "--workers", "0", "--", words},
                "error: --workers: from 1 to 10000; given 0"));
  CHECK(refuses({"submit", "--workers", "4:2", "--", words}, "error: --workers: 4 is more than 2"));
  CHECK(refuses({"submit", "--workers", "two", "--", words}, "neither a number (3) nor a range"));
  CHECK(refuses({"submit", "--workers", "2:", "--", words}, "neither a number (3) nor a range"));
  CHECK(refuses({"submit", "--strategy", "mirrored", "--", words}, "run under parameter_server"));
  CHECK(refuses({"submit", "--restart-policy", "always", "--", words},
                "choose never, on-failure or exit-code"));
  CHECK(refuses({"submit", "--max-restarts", "2", "--", words}, "--restart-policy"));
  CHECK(refuses({"submit", "--restart-policy", "never", "--max-restarts", "2", "--", words},
                "--max-restarts belongs to --restart-policy on-failure"));
  CHECK(refuses({"submit", "-f", "job.yaml", "--ps", "2"}, "--ps belongs to a program"));
  CHECK(refuses({"submit", "--ps", "0", "--", words}, "--ps"));
  CHECK(refuses({"submit", "--memory", "1MiB", "--", words}, "--memory: an executor needs 64 MiB"));
  CHECK(refuses({"submit", "--memory", "much", "--", words}, "--memory: \"much\" is not a size"));
  CHECK(refuses({"submit", "--memory", "0", "--", words}, "--memory: must be above 0"));
  CHECK(refuses({"submit", "--closures-per-worker", "0", "--", words}, "closures-per-worker"));
  CHECK(refuses({"submit", "--name", "a b", "--", words}, "--name: letters, digits"));
}

TEST_CASE_METHOD(ProgramFixture, "sizes of memory count as they do in settings", "[cli][unit]") {
  CHECK(Run({"submit", "--memory", "2GB", "--", words}) == ExitCode::kDone);
  CHECK(api.submitted.back().spec().program().memory_bytes() == 2'000'000'000);
  CHECK(Run({"submit", "--memory", "1.5GiB", "--", words}) == ExitCode::kDone);
  CHECK(api.submitted.back().spec().program().memory_bytes() == 1'610'612'736);
}

TEST_CASE_METHOD(ProgramFixture, "a dry run of a program tells what its probes said",
                 "[cli][unit]") {
  api.submit->mutable_probe()->set_function_count(2);
  api.submit->mutable_probe()->set_abi("muster 0.5 x86_64");
  CHECK(Run({"submit", "--dry-run", "--", words}) == ExitCode::kDone);
  CHECK(api.submitted.back().dry_run());
  CHECK(Said("words can run: 2 registered functions, muster 0.5 x86_64\n"));

  err.str("");
  api.submit->add_problems("worker:1 on b: libgomp.so.1: cannot open shared object file");
  CHECK(Run({"submit", "--dry-run", "--", words}) == ExitCode::kUsage);
  CHECK(Said("worker:1 on b: libgomp.so.1: cannot open"));

  connect = Unavailable("no cluster");
  CHECK(Run({"submit", "--dry-run", "--", words}) == ExitCode::kUnreachable);
  CHECK(programs.empty());
}

v1::Job RunningProgram() {
  v1::Job job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  v1::ProgramReport& report = *job.mutable_program();
  report.set_done(1'200);
  report.set_in_flight(2);
  report.set_queued(40);
  report.set_closures_per_second(4'512.3);
  report.set_phase("epoch 3");
  v1::ProgramSpec& program = *job.mutable_spec()->mutable_program();
  program.set_name("words");
  program.add_arguments("--text");
  program.add_arguments("in the beginning");
  return job;
}

TEST_CASE_METHOD(ProgramFixture, "people see closures, rate and phase of a program",
                 "[cli][unit]") {
  v1::Job job = RunningProgram();
  CHECK(ProgressLine(job, 0) == "1,200 closures  4,512/s  2 in flight  40 queued  epoch 3");

  job.set_restarts(1);
  job.mutable_spec()->mutable_program()->add_arguments("it's; $HOME");
  job.mutable_spec()->mutable_program()->add_arguments("a=b");
  api.job = job;
  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);
  const std::string text = out.str();
  CAPTURE(text);
  CHECK(text.find("Program      words --text 'in the beginning' 'it'\\''s; $HOME' a=b\n") !=
        std::string::npos);
  CHECK(text.find("Closures     1,200 done, 2 in flight, 40 queued, 4,512/s\n") !=
        std::string::npos);
  CHECK(text.find("Phase        epoch 3\n") != std::string::npos);
  CHECK(text.find("Begun anew   1 time\n") != std::string::npos);
  CHECK(text.find("Step time") == std::string::npos);

  job.set_state(v1::JOB_STATE_SUCCEEDED);
  CHECK(ProgressLine(job, 0) == "1,200 closures");
}

}  // namespace
}  // namespace muster::cli
