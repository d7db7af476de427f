#include "collectives/elastic/messages.h"

namespace muster::collectives {
namespace {

v1::ElasticName ToMessage(const WorkerName& name) {
  v1::ElasticName message;
  message.set_worker(name.worker);
  message.set_incarnation(name.incarnation.value());
  return message;
}

WorkerName FromMessage(const v1::ElasticName& message) {
  return {.worker = message.worker(), .incarnation = Incarnation(message.incarnation())};
}

v1::ElasticLeaving ToMessage(const Leaving& leaving) {
  v1::ElasticLeaving message;
  *message.mutable_who() = ToMessage(leaving.who);
  message.set_generation(leaving.generation.value());
  for (const WorkerName& one : leaving.with) *message.add_with() = ToMessage(one);
  return message;
}

Leaving FromMessage(const v1::ElasticLeaving& message) {
  Leaving leaving{.who = FromMessage(message.who()),
                  .generation = Generation(message.generation()),
                  .with = {}};
  for (const v1::ElasticName& one : message.with()) leaving.with.push_back(FromMessage(one));
  return leaving;
}

v1::ElasticSight ToMessage(const Sight& sight) {
  v1::ElasticSight message;
  *message.mutable_name() = ToMessage(sight.name);
  message.set_generation(sight.generation.value());
  message.mutable_unreached()->Assign(sight.unreached.begin(), sight.unreached.end());
  return message;
}

Sight FromMessage(const v1::ElasticSight& message) {
  return {.name = FromMessage(message.name()),
          .generation = Generation(message.generation()),
          .unreached = {message.unreached().begin(), message.unreached().end()}};
}

}  // namespace

v1::ElasticReport ToMessage(const WorkerReport& report) {
  v1::ElasticReport message;
  *message.mutable_name() = ToMessage(report.name);
  message.set_phase(static_cast<v1::ElasticReport::Phase>(static_cast<int>(report.phase) + 1));
  message.set_generation(report.generation.value());
  for (const WorkerName& member : report.members) *message.add_members() = ToMessage(member);
  for (const WorkerName& other : report.unseen) *message.add_unseen() = ToMessage(other);
  message.set_committed(report.committed);
  message.set_prepared(report.prepared);
  message.set_promised(report.promised.value());
  message.set_promised_target(report.promised_target);
  if (report.leaving.generation != Generation())
    *message.mutable_leaving() = ToMessage(report.leaving);
  for (const Leaving& one : report.told) *message.add_told() = ToMessage(one);
  message.mutable_unreached()->Assign(report.unreached.begin(), report.unreached.end());
  message.set_settled(report.settled);
  for (const Sight& one : report.sees) *message.add_sees() = ToMessage(one);
  for (const WorkerName& one : report.choice) *message.add_choice() = ToMessage(one);
  message.set_signature(report.signature);
  message.set_address(report.address);
  return message;
}

// What members go by, and no more: with what each says of all others a message would grow with the
// square of their number.
v1::ElasticFormation ToMessage(const Formation& formation) {
  v1::ElasticFormation message;
  message.set_generation(formation.generation.value());
  for (const WorkerReport& one : formation.members) {
    WorkerReport brief;
    brief.name = one.name;
    brief.phase = one.phase;
    brief.generation = one.generation;
    brief.committed = one.committed;
    brief.prepared = one.prepared;
    brief.signature = one.signature;
    brief.address = one.address;
    *message.add_members() = ToMessage(brief);
  }
  message.set_target(formation.target);
  message.set_donor(formation.donor);
  return message;
}

Result<WorkerReport> FromMessage(const v1::ElasticReport& message) {
  const int phase = static_cast<int>(message.phase()) - 1;
  if (phase < 0 || phase > static_cast<int>(WorkerReport::Phase::kFinished) ||
      message.prepared() < message.committed() || message.name().incarnation() == 0) {
    return InvalidArgument("worker {} sent no sound report", message.name().worker());
  }
  WorkerReport report{.name = FromMessage(message.name()),
                      .phase = static_cast<WorkerReport::Phase>(phase),
                      .generation = Generation(message.generation()),
                      .members = {},
                      .committed = message.committed(),
                      .prepared = message.prepared(),
                      .promised = Generation(message.promised()),
                      .promised_target = message.promised_target(),
                      .unseen = {},
                      .leaving = FromMessage(message.leaving()),
                      .told = {},
                      .unreached = {message.unreached().begin(), message.unreached().end()},
                      .settled = message.settled(),
                      .sees = {},
                      .choice = {},
                      .signature = message.signature(),
                      .address = message.address()};
  for (const v1::ElasticName& member : message.members()) {
    report.members.push_back(FromMessage(member));
  }
  for (const v1::ElasticLeaving& one : message.told()) report.told.push_back(FromMessage(one));
  for (const v1::ElasticName& other : message.unseen()) {
    report.unseen.push_back(FromMessage(other));
  }
  for (const v1::ElasticSight& one : message.sees()) report.sees.push_back(FromMessage(one));
  for (const v1::ElasticName& one : message.choice()) report.choice.push_back(FromMessage(one));
  return report;
}

Result<Formation> FromMessage(const v1::ElasticFormation& message) {
  Formation formation{.generation = Generation(message.generation()),
                      .members = {},
                      .target = message.target(),
                      .donor = message.donor()};
  for (const v1::ElasticReport& one : message.members()) {
    MUSTER_TRY_ASSIGN(WorkerReport report, FromMessage(one));
    formation.members.push_back(std::move(report));
  }
  if (formation.donor < 0 || formation.donor >= static_cast<int>(formation.members.size())) {
    return InvalidArgument("a group of {} members has no member {}", formation.members.size(),
                           formation.donor);
  }
  return formation;
}

}  // namespace muster::collectives
