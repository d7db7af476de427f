// What programs should not do, and what is no program for this cluster: each is told with its kind
// of error, and the cluster is as good as before (tests/programs/misuse.cc is what they do).
#include <csignal>
#include <filesystem>
#include <fstream>

#include <elf.h>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"
#include "tests/support/memory_group.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kPrograms = MUSTER_TEST_PROGRAMS;

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Given up after so many executors, as events and the error say alike.
bool IsGivenUpAfter(int ends, const v1::Job& job, const std::string& output) {
  const std::string told = "has ended its executor " + std::to_string(ends) + " times";
  return CountEvents(job, "EXECUTOR_LOST") == ends && Has(output, told);
}

struct Misuse {
  Cluster cluster{{.ps = 1, .workers = 2}};
  const TempFolder folder;
  v1::Job job;

  RunResult Submit(std::vector<std::string> flags, const std::vector<std::string>& arguments,
                   const std::string& program = kPrograms + "/misuse") {
    flags.insert(flags.begin(), "submit");
    flags.insert(flags.end(), {"--strategy", "parameter_server", "--", program});
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    return cluster.Muster(flags);
  }
  // What main() printed, which has to end as it should; `job` is what has run then.
  std::string Output(const std::vector<std::string>& arguments) {
    const std::string id = IdIn(Submit({}, arguments));
    const int code = cluster.Wait(id, seconds(180));
    const std::string output = cluster.Output(id);
    job = cluster.Describe(id);
    CAPTURE(output, Story(job), cluster.up_log());
    CHECK(code == 0);
    CHECK(Has(output, "again 7"));
    return output;
  }
  bool IsUsable() {
    const RunResult run =
        Submit({"--wait", "--name", "afterwards"}, {"sum", "100", "2"}, kPrograms + "/closures");
    return run.code == 0 && Has(cluster.Output(IdIn(run)), "sum 5050");
  }
  // A copy of a program, changed by `change`.
  std::string Changed(const std::string& program, void (*change)(std::fstream& file)) {
    std::string path = folder / "changed";
    std::filesystem::copy_file(kPrograms + "/" + program, path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    change(file);
    return path;
  }
  bool HasNoJobs() { return Has(cluster.Muster({"jobs"}).err, "no jobs"); }
};

TEST_CASE_METHOD(Misuse, "a function that throws UNAVAILABLE runs once, and its error is the job's",
                 "[cluster][program][CCE-01]") {
  const RunResult run = Submit({"--wait"}, {"unavailable", folder / "executions"});
  CAPTURE(run.err, cluster.up_log());
  CHECK(run.code == 1);
  job = cluster.Describe(IdIn(run));
  CHECK(Has(job.error().message(), "UNAVAILABLE"));
  CHECK(Has(job.error().message(), "the user's own server is away"));
  CHECK(ReadAll(folder / "executions") == ".");
  CHECK(FindEvent(job, "EXECUTOR_LOST") == nullptr);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse,
                 "a result of 100 MB arrives, and what is over the limit is refused with it",
                 "[cluster][program]") {
  const std::string output = Output({"results"});
  CAPTURE(output);
  CHECK(Has(output, "100000000 bytes, 100000000 of them 1"));
  CHECK(Has(output, "a result over the limit: RESOURCE_EXHAUSTED"));
  CHECK(Has(output, "its value: RESOURCE_EXHAUSTED"));
  CHECK(Has(output, "at most 134217728 are taken"));
  CHECK(Has(output, "arguments over the limit: INVALID_ARGUMENT"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a function that segfaults is given up after three executors",
                 "[cluster][program]") {
  const std::string output = Output({"segfault"});
  CAPTURE(Story(job), output);
  CHECK(Has(output, "segfault: INTERNAL"));
  CHECK(IsGivenUpAfter(3, job, output));
  CHECK(Has(output, "by signal SIGSEGV: about to read address 0"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a function that is killed each time is given up after six executors",
                 "[cluster][program]") {
  const std::string output = Output({"killed"});
  CAPTURE(Story(job), output);
  CHECK(Has(output, "killed: INTERNAL"));
  CHECK(Has(output, "if nobody kills executors here, it needs more memory than there is"));
  CHECK(IsGivenUpAfter(6, job, output));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse,
                 "a function that takes all memory is ended by the kernel, and nothing else is",
                 "[.][cluster][program][greedy]") {
  const MemoryGroup group(std::uint64_t{256} << 20);
  if (!group.works()) {
    WARN("skipped: no control group of its own with a limit to its memory");
    return;
  }
  const std::string output = Output({"greedy", group.processes()});
  CAPTURE(Story(job), output);
  CHECK(Has(output, "greedy: INTERNAL"));
  CHECK(Has(output, "by signal SIGKILL"));
  CHECK(Has(output, "it needs more memory than there is"));
  CHECK(IsGivenUpAfter(6, job, output));
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a function that loops for ever ends at its deadline, and others go on",
                 "[cluster][program]") {
  const std::string output = Output({"endless"});
  CAPTURE(Story(job), output);
  CHECK(Has(output, "endless: DEADLINE_EXCEEDED"));
  CHECK(Has(output, "loops has run for 200 ms, its deadline"));
  CHECK(CountEvents(job, "EXECUTOR_LOST") == 1);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a dataset's function that throws on one worker fails what uses it there",
                 "[cluster][program][CCE-07]") {
  const std::string output = Output({"dataset"});
  CAPTURE(output);
  CHECK(Has(output, "worker:1: NOT_FOUND"));
  CHECK(Has(output, "no such file on this host"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a result outlives its worker, a lost worker's own value does not",
                 "[cluster][program][CCF-12]") {
  const std::string id = IdIn(Submit({}, {"lost", folder / "enough"}));
  REQUIRE(cluster.HasPrinted(id, "made"));
  for (const std::string worker : {"worker:0", "worker:1"}) {
    REQUIRE(cluster.Kill(worker, SIGKILL));
  }
  CHECK(cluster.HasPrinted(id, "a result of before: 10"));
  CHECK(cluster.HasPrinted(id, "fetched before: 20, as a tensor 20 and 10"));
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const std::string output = cluster.Output(id);
  CAPTURE(output, Story(cluster.Describe(id)));
  CHECK(Has(output, "the worker's value: ABORTED"));
  CHECK(Has(output, "again 7"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a partitioner that answers nonsense is told so in the driver",
                 "[cluster][program][PRT-06]") {
  const RunResult run = Submit({"--wait"}, {"partitioner"});
  const std::string id = IdIn(run);
  const std::string output = cluster.Output(id);
  CAPTURE(run.err, output);
  CHECK(run.code == 1);
  std::size_t refused = 0;
  const std::string line = "nonsense: INVALID_ARGUMENT: variable_partitioner answers [";
  for (std::size_t at = 0; (at = output.find(line, at)) != std::string::npos; ++at) ++refused;
  CHECK(refused == 5);
  CHECK(Has(output, "again 7"));
  CHECK(Has(cluster.Describe(id).error().message(), "variable_partitioner answers [2, 2]"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a checkpoint of another model is refused, and no variable is changed",
                 "[cluster][program]") {
  const std::string output = Output({"checkpoint", folder.path()});
  CAPTURE(output);
  CHECK(Has(output,
            "another model's: INVALID_ARGUMENT: tensor counter of the checkpoint has shape "
            "[4, 3], variable"));
  CHECK(Has(output, "none: NOT_FOUND"));
  CHECK(Has(output, "counter 2\n"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a variable of another job is refused, and that job's stays as it is",
                 "[cluster][program]") {
  const std::string lender = IdIn(Submit({"--name", "lender"}, {"lend", folder / "variable"}));
  REQUIRE(cluster.HasPrinted(lender, "lent"));
  const std::string output = Output({"borrow", folder / "variable"});
  CAPTURE(output);
  CHECK(Has(output, "another job's: INVALID_ARGUMENT"));
  CHECK(Has(output, "variable counter is of " + lender + " (driver "));
  CHECK(Has(output, ", this closure of misuse-"));
  CHECK(cluster.Muster({"stop", lender}).code == 0);
  CHECK(cluster.Wait(lender, seconds(60)) == 8);
  CHECK(Has(cluster.Output(lender), "counter 0\n"));
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "an executable for another architecture is refused with both",
                 "[cluster][program]") {
  const std::string program = Changed("closures", [](std::fstream& file) {
    file.seekp(offsetof(Elf64_Ehdr, e_machine));
    const Elf64_Half other = EM_S390;
    file.write(reinterpret_cast<const char*>(&other), sizeof(other));
  });
  const RunResult run = Submit({}, {"sum", "10"}, program);
  CAPTURE(run.err, run.out);
  CHECK(run.code == 2);
  CHECK(Has(run.err, "is an executable for s390x, and this host is "));
  CHECK(Has(run.err, "build it for the hosts of the cluster"));
  CHECK(HasNoJobs());
  CHECK(IsUsable());
}

TEST_CASE_METHOD(Misuse, "a program of another release of Muster is refused with both",
                 "[cluster][program]") {
  const RunResult run = Submit({}, {"sum", "10"}, kPrograms + "/other_release");
  CAPTURE(run.err, run.out);
  CHECK(run.code == 2);
  CHECK(Has(run.err, "worker:0"));
  CHECK(Has(run.err, "was built with Muster 0.0.1, and this worker is of Muster "));
  CHECK(HasNoJobs());
  CHECK(IsUsable());
}

}  // namespace
}  // namespace muster::testing
