#include "coordinator/spec_check.h"

#include <deque>
#include <set>
#include <utility>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/plan.h"

namespace muster::coordinator {
namespace {

// First use decodes compressed files and indexes records. While files are on their way to the
// worker it does not count.
constexpr Millis kLimit{110'000};

}  // namespace

// Answers of several workers on their way.
struct SpecChecker::Gathering {
  v1::JobSpec spec;
  CheckOutcome outcome;
  Status lost;
  int waiting = 0;
  std::string counted_by;
  // What kept a host from looking: a problem only when no other host could.
  std::vector<std::string> troubles;
  // One of them that is no mistake of the spec's either: a disk that is full or fails.
  Status disk;
  // Those that have not been asked to check yet.
  std::deque<SessionId> others;
  std::function<void(Result<CheckOutcome>)> then;

  void Done() {
    if (--waiting > 0) return;
    if (!lost.ok()) return then(lost);
    if (counted_by.empty() && !disk.ok()) return then(disk);
    if (counted_by.empty() && outcome.problems.empty()) outcome.problems = troubles;
    then(std::move(outcome));
  }
  // Whether it is the cluster's trouble (a worker's full disk too), not the spec's. A deadline is
  // the spec's: a forward that never ends would be tried for ever.
  bool IsLoss(const Status& status) {
    const StatusCode code = status.code();
    return code == StatusCode::kUnavailable || code == StatusCode::kAborted ||
           code == StatusCode::kCancelled || IsDiskTrouble(code);
  }
  void Fail(const std::string& who, const Status& status) {
    if (IsLoss(status)) {
      if (lost.ok()) lost = Annotate(status, who);
    } else {
      outcome.problems.push_back(fmt::format("{}: {}", who, Message(status)));
    }
  }
};

namespace {

// A program that is missing, too: another worker may be able to.
bool IsHostsTrouble(const Status& status) {
  return IsDiskTrouble(status.code()) || status.code() == StatusCode::kPermissionDenied ||
         status.code() == StatusCode::kNotFound;
}

std::string NameOf(const Member& member) {
  return fmt::format("{} on {}", member.task.ToString(), member.info.hostname());
}

// The first file in which two hosts differ, or empty.
std::string Difference(const google::protobuf::RepeatedPtrField<v1::DataFile>& ours,
                       const google::protobuf::RepeatedPtrField<v1::DataFile>& theirs) {
  if (ours.size() != theirs.size()) {
    return fmt::format("{} files and {} files", ours.size(), theirs.size());
  }
  for (int i = 0; i < ours.size(); ++i) {
    const v1::DataFile &a = ours[i], &b = theirs[i];
    if (a.path() == b.path() && a.size() == b.size() && a.records() == b.records() &&
        a.index_hash() == b.index_hash()) {
      continue;
    }
    const auto describe = [](const v1::DataFile& file) {
      return fmt::format("{} of {} bytes, {} records, index {:016x}", file.path(), file.size(),
                         file.records(), file.index_hash());
    };
    return fmt::format("{} and {}", describe(a), describe(b));
  }
  return {};
}

}  // namespace

void SpecChecker::OnChecked(Gathering& all, const std::string& who,
                            const Result<v1::CommandResult>& result) {
  if (!result.ok()) return all.Fail(who, result.status());
  const v1::CheckReport& report = result->check();
  for (const std::string& problem : report.problems()) all.outcome.problems.push_back(problem);
  all.outcome.parameters.assign(report.parameters().begin(), report.parameters().end());
}

// The first host's counts are the job's, others are compared with them. A host that cannot look now
// is a trouble, not a mistake of the job.
void SpecChecker::OnProbed(Gathering& all, const std::string& who, const std::string& host,
                           const Result<v1::CommandResult>& result) {
  if (!result.ok() && IsHostsTrouble(result.status())) {
    all.troubles.push_back(fmt::format("{}: {}", who, Message(result.status())));
    if (IsDiskTrouble(result.status().code())) all.disk = Annotate(result.status(), who);
    return;
  }
  if (!result.ok()) return all.Fail(who, result.status());
  const v1::ProbeReport& report = result->probe();
  for (const std::string& problem : report.problems()) {
    all.outcome.problems.push_back(fmt::format("{}: {}", who, problem));
  }
  if (!report.problems().empty()) return;
  CheckOutcome& outcome = all.outcome;
  if (all.counted_by.empty()) {
    all.counted_by = who;
    outcome.training_examples = report.training_examples();
    outcome.evaluation_examples = report.evaluation_examples();
  } else if (outcome.training_examples != report.training_examples() ||
             outcome.evaluation_examples != report.evaluation_examples()) {
    outcome.problems.push_back(fmt::format(
        "the data differs between hosts: {} finds {} training and {} evaluation examples, {} finds "
        "{} and {}",
        all.counted_by, outcome.training_examples, outcome.evaluation_examples, who,
        report.training_examples(), report.evaluation_examples()));
  } else {
    const v1::DataFiles& first = outcome.data.begin()->second;
    std::string difference = Difference(first.training(), report.data().training());
    if (difference.empty()) {
      difference = Difference(first.evaluation(), report.data().evaluation());
    }
    if (!difference.empty()) {
      outcome.problems.push_back(fmt::format("the data differs between hosts: {} and {} have {}",
                                             outcome.data.begin()->first, host, difference));
    }
  }
  outcome.data[host] = report.data();
}

// The first host's report counts; others are compared with it.
void SpecChecker::OnProgramProbed(Gathering& all, const std::string& who,
                                  const Result<v1::CommandResult>& result) {
  if (!result.ok()) return all.Fail(who, result.status());
  const v1::CheckReport& report = result->check();
  for (const std::string& problem : report.problems()) {
    all.outcome.problems.push_back(fmt::format("{}: {}", who, problem));
  }
  // A launched command is there, or it is not: there is nothing to compare.
  if (!report.problems().empty() || all.spec.has_launch()) return;
  v1::CheckReport& first = all.outcome.program;
  if (all.counted_by.empty()) {
    all.counted_by = who;
    first = report;
    return;
  }
  const auto differs = [&](const std::string& ours, const std::string& theirs) {
    all.outcome.problems.push_back(
        fmt::format("the program differs between hosts: {} has {}, {} has {}", all.counted_by, ours,
                    who, theirs));
  };
  if (first.abi() != report.abi()) return differs(first.abi(), report.abi());
  if (first.functions() == report.functions()) return;
  const auto table = [](const v1::CheckReport& one) {
    return fmt::format("{} (table {:016x})", Counted(one.function_count(), "registered function"),
                       one.functions());
  };
  differs(table(first), table(report));
}

// One worker compiles the model, one on each host looks at the data (or starts the program); `then`
// runs when all have answered.
void SpecChecker::Check(const v1::JobSpec& spec, std::function<void(Result<CheckOutcome>)> then) {
  const std::vector<const Member*> workers = members_.Up("worker");
  if (workers.empty()) return then(Unavailable("no worker is up to check the job"));
  auto all = std::make_shared<Gathering>();
  std::vector<const Member*> probes;
  std::set<std::string> hosts;
  for (const Member* worker : workers) {
    if (hosts.insert(worker->info.hostname()).second) probes.push_back(worker);
    all->others.push_back(worker->session);
  }
  all->spec = spec;
  all->then = std::move(then);
  if (spec.has_program() || spec.has_launch()) {
    all->waiting = static_cast<int>(probes.size());
    for (const Member* worker : probes) {
      v1::Command check;
      *check.mutable_check_job()->mutable_spec() = spec;
      commands_.Send(*worker, check, kLimit, [all, who = NameOf(*worker)](auto result) {
        OnProgramProbed(*all, who, result);
        all->Done();
      });
    }
    return;
  }
  all->waiting = 1 + static_cast<int>(probes.size());

  SendCheck(all);
  for (const Member* worker : probes) {
    v1::Command probe;
    *probe.mutable_probe_data()->mutable_spec() = spec;
    commands_.Send(*worker, probe, kLimit,
                   [all, who = NameOf(*worker), host = worker->info.hostname()](auto result) {
                     OnProbed(*all, who, host, result);
                     all->Done();
                   });
  }
}

// To the first worker that is there and can.
void SpecChecker::SendCheck(const std::shared_ptr<Gathering>& all) {
  const Member* worker = nullptr;
  while (worker == nullptr && !all->others.empty()) {
    worker = members_.Find(all->others.front());
    all->others.pop_front();
  }
  if (worker == nullptr) {
    all->Fail("the check", Unavailable("its workers were lost"));
    return all->Done();
  }
  v1::Command check;
  *check.mutable_check_job()->mutable_spec() = all->spec;
  commands_.Send(*worker, check, kLimit,
                 [this, all, who = NameOf(*worker)](Result<v1::CommandResult> result) {
                   if (!result.ok() && IsHostsTrouble(result.status()) && !all->others.empty()) {
                     return SendCheck(all);
                   }
                   OnChecked(*all, who, result);
                   all->Done();
                 });
}

}  // namespace muster::coordinator
