#include "strategy/input/internal/process_link.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "collectives/group.h"
#include "common/base/words.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/strategy_ref.h"
#include "strategy/core/strategy.h"
#include "strategy/resolver/internal/task_name.h"

namespace muster::internal {
namespace {

using Numbers = std::vector<std::int64_t>;

void Append(Numbers& numbers, const std::string& text) {
  numbers.push_back(static_cast<std::int64_t>(text.size()));
  numbers.insert(numbers.end(), text.begin(), text.end());
}

// Reads what Append() and push_back() have written; the writer is of the same program.
class Reader {
 public:
  explicit Reader(const Numbers& numbers) : numbers_(numbers) {}
  std::int64_t Next() { return numbers_.at(at_++); }
  std::string Text() {
    std::string text(static_cast<std::size_t>(Next()), '\0');
    for (char& c : text) c = static_cast<char>(Next());
    return text;
  }

 private:
  const Numbers& numbers_;
  std::size_t at_ = 0;
};

// The code of an error (0: none) and its text, then how many columns are known and what they are.
Numbers Encode(const InputLink::Report& report) {
  Numbers numbers{report.error ? static_cast<std::int64_t>(report.error->code()) : 0};
  Append(numbers, report.error ? report.error->message() : "");
  numbers.push_back(report.columns ? static_cast<std::int64_t>(report.columns->size()) : -1);
  if (!report.columns) return numbers;
  for (const data::ColumnInfo& info : *report.columns) {
    Append(numbers, info.name);
    numbers.push_back(static_cast<std::int64_t>(info.dtype));
    numbers.push_back(static_cast<std::int64_t>(info.shape.size()));
    numbers.insert(numbers.end(), info.shape.begin(), info.shape.end());
  }
  return numbers;
}

InputLink::Report Decode(const Numbers& numbers) {
  InputLink::Report report;
  Reader reader(numbers);
  const auto code = static_cast<ErrorCode>(reader.Next());
  const std::string text = reader.Text();
  if (code != ErrorCode::kOk) report.error = Error(code, text);
  const std::int64_t count = reader.Next();
  if (count < 0) return report;
  report.columns.emplace();
  for (std::int64_t i = 0; i < count; ++i) {
    data::ColumnInfo& info = report.columns->emplace_back();
    info.name = reader.Text();
    info.dtype = static_cast<DType>(reader.Next());
    info.shape.resize(static_cast<std::size_t>(reader.Next()));
    for (std::int64_t& size : info.shape) size = reader.Next();
  }
  return report;
}

class ProcessSession final : public InputLink::Session {
 public:
  // `processes`: as many as there were when the dataset was distributed.
  ProcessSession(StrategyRef strategy, int processes)
      : strategy_(std::move(strategy)), processes_(processes) {}

  InputLink::Report agree(const InputLink::Report& mine,
                          std::chrono::steady_clock::time_point deadline) override {
    collectives::Group& group = Group();
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const auto patience = std::max(left, std::chrono::milliseconds(1));
    const std::array<std::int64_t, 3> said{mine.has_data, mine.columns.has_value(),
                                           mine.error.has_value()};
    std::array<std::int64_t, 3> all{};
    const collectives::ReduceBuffer buffer{
        .type = DType::kInt64, .shape = {3}, .in = said.data(), .out = all.data()};
    raise_unless_ok(group.AllReduce(collectives::Reduction::kSum, {&buffer, 1}, patience));
    const auto [with_data, with_columns, failed] = all;
    InputLink::Report outcome{.has_data = with_data > 0, .columns = mine.columns};
    const bool some_know = with_columns > 0 && with_columns < group.size();
    if (failed > 0 || some_know) {
      InputLink::Report named = mine;
      if (named.error) {
        const std::string own =
            task_name(strategy_->cluster_resolver(), "worker " + std::to_string(group.rank()));
        named.error = ToError(Annotate(ToStatus(*named.error), own));
      }
      Learn(group, named, patience, outcome);
    }
    return outcome;
  }

 private:
  // In an elastic run others come and go, and this process may be left alone.
  collectives::Group& Group() const {
    collectives::Group* const group = strategy_->collectives();
    const int now = group == nullptr ? 1 : group->size();
    if (group != nullptr && now == processes_) return *group;
    raise(FailedPrecondition(
        "this dataset was distributed over {}, and now there {} {}: distribute it again",
        Counted(processes_, "worker"), Agreeing(now, "is", "are"), now));
  }
  static void Learn(collectives::Group& group, const InputLink::Report& mine,
                    std::chrono::milliseconds patience, InputLink::Report& outcome) {
    const auto details = group.Exchange("input step", Encode(mine), patience);
    raise_unless_ok(details.status());
    for (const Numbers& said : *details) {
      const InputLink::Report one = Decode(said);
      if (!outcome.columns) outcome.columns = one.columns;
      if (!outcome.error) outcome.error = one.error;
    }
  }

  const StrategyRef strategy_;
  const int processes_;
};

class ProcessLink final : public InputLink {
 public:
  explicit ProcessLink(Strategy& strategy)
      : strategy_(strategy.ref()),
        size_(strategy.collectives()->size()),
        rank_(strategy.collectives()->rank()) {}

  int workers() const override { return size_; }
  std::unique_ptr<Session> join(int worker) override {
    if (worker == rank_) return std::make_unique<ProcessSession>(strategy_, size_);
    raise(InvalidArgument("worker {} joins over the link of process {}", worker, rank_));
  }

 private:
  const StrategyRef strategy_;
  const int size_;
  const int rank_;
};

}  // namespace

std::shared_ptr<InputLink> process_link(Strategy& strategy) {
  return std::make_shared<ProcessLink>(strategy);
}

}  // namespace muster::internal
