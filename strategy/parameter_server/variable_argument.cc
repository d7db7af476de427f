#include "strategy/parameter_server/variable_argument.h"

#include <memory>
#include <string>

#include "strategy/base/internal/raise.h"
#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/parameter_server/internal/connection.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/parameter_server/internal/strategies.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster {
namespace {

using internal::PsConnection;

void RequireJob(const std::string& name, const std::string& variables, const std::string& ours) {
  if (variables == ours) return;
  raise(
      InvalidArgument("variable {} is of {}, this closure of {}: a function is given variables of "
                      "its own job",
                      name, variables, ours));
}

// The one that the closure works with.
std::shared_ptr<PsConnection> ConnectionHere(const std::string& name) {
  if (auto current = PsConnection::Current()) return current;
  raise(FailedPrecondition("variable {} as an argument: this process has no parameter servers",
                           name));
}

}  // namespace

void Codec<Variable>::write(const Variable& variable, Bytes& to) {
  const internal::RemoteComponent& remote = internal::remote_component(variable);
  (void)remote.placed();
  const std::string job = remote.connection()->job();
  RequireJob(variable.name(), job, ConnectionHere(variable.name())->job());
  Codec<std::string>::write(variable.container().name(), to);
  Codec<std::string>::write(job, to);
  internal::append_value(to, internal::NumberOf(variable.strategy()));
  internal::append_value(to, variable.component_index());
  internal::append_value(to, variable.synchronization());
  internal::append_value(to, variable.aggregation());
  internal::append_value(to, variable.trainable());
}

Variable Codec<Variable>::read(ByteReader& from) {
  const std::string name = Codec<std::string>::read(from);
  const std::string job = Codec<std::string>::read(from);
  Strategy& strategy = internal::StrategyOfNumber(from.value<std::uint64_t>());
  const auto component = from.value<int>();
  VariableOptions options{.initialize = false};
  options.synchronization = from.value<VariableSynchronization>();
  options.aggregation = from.value<VariableAggregation>();
  options.trainable = from.value<bool>();
  RequireJob(name, job, ConnectionHere(name)->job());
  const Variable made =
      internal::MakeVariable(strategy, {.name = name, .initial_value = 0, .options = options});
  // A driver may have more replicas than its workers, and a component for each.
  if (component >= made.state()->size()) {
    raise(
        InvalidArgument("component {} of variable {} as an argument: this process has {} of them, "
                        "one for each replica; give the whole variable",
                        component, name, made.state()->size()));
  }
  const Writes writes = internal::remote_component(made).writes();
  // Found by name, also in a driver's own process.
  for (auto& one : made.state()->components) {
    one = std::make_unique<internal::RemoteComponent>(one->name(), one->place(), nullptr, nullptr,
                                                      std::vector<std::uint32_t>(), writes);
  }
  return Variable(made.state(), component);
}

}  // namespace muster
