// What processes of a launched command are told in their environment, for their connections to each
// other.
#pragma once

namespace muster::cluster {

// The key of their job, 64 digits: processes of one job have the same, it opens nothing else of the
// cluster, and its token cannot be told from it.
inline constexpr const char* kJobKeyVariable = "MUSTER_JOB_KEY";
// "1": the cluster encrypts connections between hosts, and so are they to.
inline constexpr const char* kJobTlsVariable = "MUSTER_JOB_TLS";

}  // namespace muster::cluster
