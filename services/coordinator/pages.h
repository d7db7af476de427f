// What the coordinator shows to people at its admin port: one page at "/", and the JSON that it is
// made of below "/api/v1/". It is read on the strand and made into text beside it; however many
// look, each of the answers is made once in kPagePause.
//
//   /api/v1/status             ClusterStatus
//   /api/v1/jobs               ListJobsReply: the newest kMostListed
//   /api/v1/jobs/ID            Job, without its spec and without what its processes have printed
//   /api/v1/jobs/ID/curves     {"loss": [[step, value], ...], ...}
//
// Who asks for these, or is refused anything at this port, is in the audit log (audit_trail.h).
// Messages are in protobuf's JSON mapping (proto/muster/v1/jobs.proto).
//
// Threading: any. Lifetime: front and figures outlive the port's Close().
#pragma once

#include "services/admin/admin_port.h"
#include "services/coordinator/front.h"
#include "services/coordinator/job_figures.h"

namespace muster::coordinator {

inline constexpr Millis kPagePause{250};
inline constexpr int kMostListed = 200;
// Who waits for one answer while a disk hangs: as many as the port has connections by default.
inline constexpr std::size_t kMostAtOnePage = 64;

void ServePages(Front& front, const JobFigures& figures, services::AdminPort& port);

}  // namespace muster::coordinator
