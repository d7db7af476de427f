// Workers that are lost while another one joins: in the midst of the state that it is given, or
// with all of it. What is trained is compared, bit for bit, with a run to which nothing happens.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <signal.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/multi_worker_mirrored/elastic_runs.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const Lines kTasks{"worker:0", "worker:1", "worker:2"};

// A killed member is noticed at once, a stopped one in 4 s; the rest is the machine's, which may be
// busy.
seconds others_within(int signal) { return seconds(signal == SIGKILL ? 5 : 10); }

// Three workers of one run. Any of them may be marked: it sends itself the signal when it comes to
// that phase next.
class Run {
 public:
  explicit Run(const Lines& arguments) : options_(elastic_workers(3, arguments)) {
    options_.command.push_back("marks=" + folder_.path());
  }

  void mark(const std::string& task, const std::string& phase, int signal) const {
    const std::string path = folder_ / task + "." + phase;
    std::ofstream(path + ".new") << signal;
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) throw std::runtime_error(path);
  }
  void start() { run_ = std::make_unique<MultiProcessRun>(options_); }
  MultiProcessRun* operator->() const { return run_.get(); }

  void makes_steps_of(const std::string& task, int workers, seconds limit) const {
    testing::makes_steps_of(*run_, task, workers, limit);
  }
  void is_lost(const std::string& victim, int signal) const {
    eventually(victim + " gets its signal", kPatience, [&] {
      return run_->output(victim).find("signal " + std::to_string(signal)) != std::string::npos;
    });
  }
  // The others go on, as `witness` says, and it comes back.
  void is_lost_and_back(const std::string& victim, int signal, const std::string& witness) const {
    is_lost(victim, signal);
    makes_steps_of(witness, 2, others_within(signal));
    if (signal == SIGKILL) {
      (void)run_->wait(victim, kPatience);
      run_->start(victim);
    } else {
      run_->kill(victim, SIGCONT);
    }
    makes_steps_of(witness, 3, kPatience);
  }
  // All end well, those of `whole` having done every step.
  void check_results(const Lines& all, const Lines& whole) const {
    for (const std::string& task : kTasks) {
      const ProcessExit exit = run_->wait(task, kPatience);
      const std::string output = run_->output(task);
      CAPTURE(task, without_results(output));
      CHECK(exit.ok());
      check_parts(all, results(output));
      if (std::find(whole.begin(), whole.end(), task) != whole.end()) {
        CHECK((results(output) == all));
      }
    }
  }

 private:
  TempFolder folder_;
  MultiProcessOptions options_;
  std::unique_ptr<MultiProcessRun> run_;
};

struct Loss {
  std::string victim;
  std::string phase;
};

TEST_CASE(
    "whoever is killed or stopped while a worker joins, the others go on in time, and no bit "
    "changes",
    "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"500", "adam"});
  // The lowest worker that has the state gives it.
  const std::string joins = GENERATE("worker:0", "worker:2");
  const std::string gives = joins == "worker:0" ? "worker:1" : "worker:0";
  const std::string third = joins == "worker:0" ? "worker:2" : "worker:1";
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  const std::vector<Loss> losses{
      {joins, "given"}, {gives, "given"}, {third, "given"}, {joins, "kept"}};
  // Side by side: waiting is most of it.
  std::vector<std::unique_ptr<Run>> runs;
  std::vector<std::future<void>> stories;
  for (const Loss& loss : losses) {
    runs.push_back(std::make_unique<Run>(Lines{"500", "adam", "slow"}));
    stories.push_back(std::async(std::launch::async, [&, one = runs.back().get(), loss] {
      Run& run = *one;
      const std::string witness = loss.victim == third ? gives : third;
      run.start();
      run.makes_steps_of(witness, 3, kPatience);
      run->kill(joins, SIGKILL, true);
      run.makes_steps_of(witness, 2, kPatience);
      run.mark(loss.victim, loss.phase, signal);
      run->start(joins);
      run.is_lost_and_back(loss.victim, signal, witness);
    }));
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CAPTURE(joins, losses[i].victim, losses[i].phase, signal);
    CHECK_NOTHROW(stories[i].get());
    Lines whole;
    for (const std::string& task : {gives, third}) {
      if (task != losses[i].victim) whole.push_back(task);
    }
    runs[i]->check_results(alone, whole);
  }
}

TEST_CASE("a state of which only a part has come when its giver is lost is not used",
          "[strategy][unit][elastic][faults]") {
  // Nobody has trained, so worker:1 begins, with its own first values.
  const Lines alone = without_faults({"300", "adam", "first=1"});
  Run run({"300", "adam", "slow"});
  run.mark("worker:0", "given", SIGKILL);
  run.start();

  run.is_lost_and_back("worker:0", SIGKILL, "worker:1");

  run.check_results(alone, {"worker:1", "worker:2"});
}

TEST_CASE("one that is lost while the first group is given its state costs the others nothing",
          "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"400", "adam"});
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  Run run({"400", "adam", "slow"});
  run.mark("worker:1", "given", signal);
  run.start();

  run.is_lost_and_back("worker:1", signal, "worker:2");

  run.check_results(alone, {"worker:0", "worker:2"});
}

TEST_CASE("while the only one that has the first values stands still the others wait for it",
          "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"100", "adam"});
  Run run({"100", "adam", "slow"});
  run.mark("worker:0", "given", SIGSTOP);
  run.start();
  run.is_lost("worker:0", SIGSTOP);
  // They have noticed, and look for another group, which it may be in.
  CHECK_THROWS(run.makes_steps_of("worker:1", 2, others_within(SIGSTOP)));

  run->kill("worker:0", SIGCONT);

  run.makes_steps_of("worker:1", 3, kPatience);
  run.check_results(alone, kTasks);
}

}  // namespace
}  // namespace muster::testing
