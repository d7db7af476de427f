#include "strategy/input/step_reader.h"

#include <algorithm>
#include <utility>

#include "common/base/time_left.h"
#include "common/base/words.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/iterator.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/strategy.h"
#include "strategy/input/input_link.h"
#include "strategy/input/internal/input_plan.h"

namespace muster::internal {
namespace {

using Elements = std::vector<std::optional<data::Element>>;

// No rows of `columns`; what is a single value becomes a list of none.
data::Element empty_element(const std::vector<data::ColumnInfo>& columns) {
  data::Element empty = data::EmptyRows(columns);
  for (data::Column& column : empty.columns) {
    if (column.info.shape.empty()) column.info.shape = {0};
  }
  return empty;
}

// Each position with its length before it, 8 bytes, little-endian.
void append_position(std::string& bytes, const std::string& position) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(std::uint64_t{position.size()} >> shift));
  }
  bytes += position;
}
std::string take_position(std::string_view& bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8 && bytes.size() >= 8; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  if (bytes.size() < 8 || bytes.size() - 8 < length) {
    raise(InvalidArgument("these bytes are no position of a distributed iterator"));
  }
  const std::string position(bytes.substr(8, length));
  bytes.remove_prefix(8 + length);
  return position;
}

}  // namespace

struct StepReader::State {
  InputPlanPtr plan;
  std::vector<std::unique_ptr<data::Iterator>> iterators;
  std::unique_ptr<InputLink::Session> session;  // null: nothing to agree on
  // The columns of the last element that any worker has seen; what empty ones are made of.
  std::optional<std::vector<data::ColumnInfo>> columns;
  bool over = false;
  std::optional<Error> failure;
  // Before the step that failed: some of its elements may have been read.
  std::string before_failure;

  // What the pipelines have for this step, nothing for replicas beyond the end.
  Elements Read();
  // The elements of all replicas; nothing when the data is over.
  std::optional<std::vector<data::Element>> Step();
  std::string Position() const;
  data::Element Empty(std::size_t replica) const;
};

Elements StepReader::State::Read() {
  Elements elements;
  const bool one = iterators.size() == 1;
  for (int replica = 0; replica < plan->replicas; ++replica) {
    data::Iterator& from = *iterators[one ? 0 : static_cast<std::size_t>(replica)];
    std::optional<data::Element> element = value_of(from.Next());
    if (element) {
      columns.emplace();
      for (const data::Column& column : element->columns) columns->push_back(column.info);
    }
    elements.push_back(std::move(element));
  }
  return elements;
}

std::optional<std::vector<data::Element>> StepReader::State::Step() {
  Elements elements;
  std::optional<Error> failed;
  try {
    elements = Read();
  } catch (const Error& error) {
    failed = error;
  }
  const auto here = [](const auto& element) { return element.has_value(); };
  bool go_on = std::any_of(elements.begin(), elements.end(), here);
  if (session) {
    const InputLink::Report all = session->agree(
        {.has_data = go_on, .columns = columns, .error = failed}, After(plan->workers.patience));
    if (!failed) failed = all.error;
    if (!columns) columns = all.columns;
    go_on = all.has_data;
  }
  if (failed) throw Error(*failed);
  if (!go_on) return std::nullopt;
  if (!plan->partial && !std::all_of(elements.begin(), elements.end(), here)) return std::nullopt;
  std::vector<data::Element> step;
  for (std::size_t replica = 0; replica < elements.size(); ++replica) {
    step.push_back(elements[replica] ? *std::move(elements[replica]) : Empty(replica));
  }
  return step;
}

std::string StepReader::State::Position() const {
  std::string position;
  for (const auto& iterator : iterators) append_position(position, iterator->Position());
  return position;
}

data::Element StepReader::State::Empty(std::size_t replica) const {
  data::Element empty = empty_element(columns.value_or(std::vector<data::ColumnInfo>()));
  if (plan->devices.empty()) return empty;
  return value_of(on_device(std::move(empty), plan->devices[replica]));
}

StepReader::StepReader(InputPlanPtr plan, std::uint64_t pass,
                       const std::optional<std::string>& position)
    : state_(std::make_unique<State>()) {
  if (const Strategy* const strategy = plan->strategy.get()) strategy->require_iteration();
  state_->plan = std::move(plan);
  state_->columns = state_->plan->spec;
  std::string_view left = position ? std::string_view(*position) : std::string_view();
  for (const data::Pipeline& pipeline : state_->plan->pipelines) {
    data::Iterator::Options options{.pass = pass, .on_thread_start = on_pipeline_thread};
    if (position) options.position = take_position(left);
    state_->iterators.push_back(value_of(data::Iterator::Make(pipeline, std::move(options))));
  }
  if (!left.empty()) {
    raise(
        FailedPrecondition("the position has {} more than this dataset's: was it made with "
                           "another replication mode, or more replicas?",
                           Counted(left.size(), "byte")));
  }
  const InputWorkers& workers = state_->plan->workers;
  if (state_->plan->agrees) state_->session = workers.link->join(workers.index);
}
StepReader::~StepReader() = default;
StepReader::StepReader(StepReader&&) noexcept = default;
StepReader& StepReader::operator=(StepReader&&) noexcept = default;

std::optional<std::vector<data::Element>> StepReader::next() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame != nullptr && frame->kind == Frame::Kind::kReplica) {
    raise(
        InvalidArgument("next() of a distributed iterator was called in a replica function; it "
                        "should be called from outside of replica_fn"));
  }
  if (state_->failure) throw Error(*state_->failure);
  if (state_->over) return std::nullopt;
  std::string before = state_->Position();
  try {
    auto step = state_->Step();
    state_->over = !step.has_value();
    return step;
  } catch (const Error& error) {
    state_->failure = error;
    state_->before_failure = std::move(before);
    throw;
  }
}

std::string StepReader::save_position() const {
  return state_->failure ? state_->before_failure : state_->Position();
}

std::uint64_t StepReader::pass() const { return state_->iterators.front()->pass(); }

const InputPlan& StepReader::plan() const { return *state_->plan; }

void raise_empty_optional() {
  raise(InvalidArgument("an empty optional has no value: the data has ended"));
}
void raise_end_of_data() { raise(OutOfRange("end of the distributed dataset")); }

}  // namespace muster::internal
