#include "strategy/input/graph.h"

#include <ostream>
#include <utility>

#include <ATen/Parallel.h>

#include "common/data/pipeline/iterator.h"
#include "common/data/pipeline/pipeline.h"
#include "common/data/pipeline/rewrite.h"
#include "strategy/base/error.h"
#include "strategy/base/internal/raise.h"
#include "strategy/input/dataset.h"
#include "strategy/input/element_codec.h"
#include "strategy/input/internal/pipelines.h"

namespace muster::internal {
namespace {

data::ExpandFunction expanding(Graph::ExpandFunction function) {
  return [function = std::move(function)](const data::Element& element) {
    return call_user<data::Pipeline>([&] { return function(element).pipeline(); });
  };
}

}  // namespace

struct Graph::State {
  explicit State(data::Pipeline p) : pipeline(std::move(p)) {}
  const data::Pipeline pipeline;
  mutable Passes passes;
};

void Passes::go_on(std::uint64_t pass) {
  std::uint64_t next = next_;
  while (next <= pass && !next_.compare_exchange_weak(next, pass + 1)) {
  }
}

Graph::Graph(data::Pipeline pipeline) : state_(std::make_shared<State>(std::move(pipeline))) {
  raise_unless_ok(state_->pipeline.status());
}

Graph Graph::range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  return Graph(data::Pipeline::Range(start, stop, step));
}
Graph Graph::slices(data::Element rows) { return Graph(data::Pipeline::Slices(std::move(rows))); }
Graph Graph::of(std::vector<data::Element> elements) {
  return Graph(data::Pipeline::Of(std::move(elements)));
}
Graph Graph::generator(Generator start, std::int64_t cardinality) {
  data::Pipeline::GeneratorOptions options;
  options.cardinality = cardinality;
  const auto begin = [start = std::move(start)]() -> data::GeneratorPass {
    return [start, pass = GeneratorPass()](const std::stop_token&) mutable -> data::Item {
      return call_user<std::optional<data::Element>>([&] {
        if (!pass) pass = start();
        return pass();
      });
    };
  };
  return Graph(data::Pipeline::Generator(begin, std::move(options)));
}
Graph Graph::file_names(std::vector<std::string> names) {
  return Graph(data::Pipeline::FileNames(std::move(names)));
}
Graph Graph::list_files(const std::vector<std::string>& patterns) {
  return Graph(data::Pipeline::ListFiles(patterns));
}
Graph Graph::zip(const std::vector<Graph>& inputs) {
  std::vector<data::Pipeline> pipelines;
  for (const Graph& input : inputs) pipelines.push_back(input.pipeline());
  return Graph(data::Pipeline::Zip(pipelines));
}

Graph Graph::map(MapFunction function, int num_parallel_calls) const {
  data::Pipeline::MapOptions options;
  options.parallel = num_parallel_calls;
  const auto call = [function = std::move(function)](const data::Element& element,
                                                     const std::stop_token& stop) {
    return call_user<data::Element>([&] { return function(element, stop); });
  };
  return Graph(pipeline().Map(call, std::move(options)));
}
Graph Graph::filter(FilterFunction function) const {
  return Graph(pipeline().Filter([function = std::move(function)](const data::Element& element) {
    return call_user<bool>([&] { return function(element); });
  }));
}
Graph Graph::flat_map(ExpandFunction function) const {
  return Graph(pipeline().FlatMap(expanding(std::move(function))));
}
Graph Graph::interleave(ExpandFunction function, std::int64_t cycle_length,
                        std::int64_t block_length, bool parallel) const {
  data::Pipeline::InterleaveOptions options;
  options.cycle_length = cycle_length;
  options.block_length = block_length;
  options.parallel = parallel;
  return Graph(pipeline().Interleave(expanding(std::move(function)), std::move(options)));
}
Graph Graph::shuffle(std::int64_t buffer_size, std::optional<std::uint64_t> seed,
                     bool reshuffle) const {
  return Graph(
      pipeline().Shuffle(buffer_size, {.seed = seed, .reshuffle_each_iteration = reshuffle}));
}
Graph Graph::repeat(std::optional<std::int64_t> count) const {
  return Graph(pipeline().Repeat(count));
}
Graph Graph::batch(std::int64_t batch_size, bool drop_remainder) const {
  return Graph(pipeline().Batch(batch_size, drop_remainder));
}
Graph Graph::shard(std::int64_t num_shards, std::int64_t index) const {
  return Graph(pipeline().Shard(num_shards, index));
}
Graph Graph::shard_placeholder() const { return Graph(pipeline().ShardPlaceholder()); }
Graph Graph::concatenate(const Graph& next) const {
  return Graph(pipeline().Concatenate(next.pipeline()));
}
Graph Graph::take(std::int64_t count) const { return Graph(pipeline().Take(count)); }
Graph Graph::skip(std::int64_t count) const { return Graph(pipeline().Skip(count)); }
Graph Graph::prefetch(std::int64_t buffer_size) const {
  return Graph(pipeline().Prefetch(buffer_size));
}
Graph Graph::cache() const { return Graph(pipeline().Cache()); }
Graph Graph::with_policy(data::AutoShardPolicy policy) const {
  return Graph(pipeline().WithPolicy(policy));
}

std::int64_t Graph::cardinality() const { return pipeline().node()->cardinality(); }
std::optional<std::vector<TensorSpec>> Graph::element_spec() const {
  return tensor_specs(pipeline().node()->spec());
}
std::string Graph::to_string() const { return data::ToText(*pipeline().node()); }
Graph Graph::indexed() const { return Graph(value_of(data::Indexed(pipeline()))); }
std::string Graph::start() const { return value_of(data::Iterator::Make(pipeline()))->Position(); }
const data::Pipeline& Graph::pipeline() const { return state_->pipeline; }
Passes& Graph::passes() const { return state_->passes; }

Cursor::Cursor(const Graph& graph, std::optional<std::string> position) {
  const bool goes_on = position.has_value();
  iterator_ =
      value_of(data::Iterator::Make(graph.pipeline(), {.pass = goes_on ? 0 : graph.passes().begin(),
                                                       .position = std::move(position),
                                                       .on_thread_start = on_pipeline_thread}));
  if (goes_on) graph.passes().go_on(iterator_->pass());
}
Cursor::~Cursor() = default;
Cursor::Cursor(Cursor&&) noexcept = default;
Cursor& Cursor::operator=(Cursor&&) noexcept = default;

std::optional<data::Element> Cursor::next() { return value_of(iterator_->Next()); }
std::optional<data::Element> Cursor::next(std::chrono::steady_clock::time_point deadline) {
  return value_of(iterator_->Next(deadline));
}
std::string Cursor::save_position() const { return iterator_->Position(); }
void Cursor::seek(std::int64_t number) { raise_unless_ok(iterator_->Seek(number)); }

std::optional<std::vector<TensorSpec>> tensor_specs(const data::ElementSpec& spec) {
  if (!spec) return std::nullopt;
  std::vector<TensorSpec> specs;
  for (const data::ColumnInfo& info : *spec) {
    specs.push_back({.name = info.name, .dtype = scalar_type(info.dtype), .shape = info.shape});
  }
  return specs;
}

void on_pipeline_thread() { at::set_num_threads(1); }

}  // namespace muster::internal

namespace muster {

std::ostream& operator<<(std::ostream& out, const TensorSpec& spec) {
  out << spec.name << ' ' << torch::toString(spec.dtype) << " [";
  for (std::size_t d = 0; d < spec.shape.size(); ++d) {
    out << (d == 0 ? "" : ", ");
    if (spec.shape[d] < 0) {
      out << '?';
    } else {
      out << spec.shape[d];
    }
  }
  return out << ']';
}

bool dataset::wait_for(const std::stop_token& stop, std::chrono::nanoseconds length) {
  return data::WaitFor(stop, length);
}

}  // namespace muster
