// From a job's spec to where its variables live, and what is wrong with a spec.
//
// Threading: free functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "muster/v1/checkpoint.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "muster/v1/journal.pb.h"

namespace muster::coordinator {

// Everything that the coordinator can find wrong with a spec by looking at it; empty: nothing.
std::vector<std::string> FindProblems(const v1::JobSpec& spec);

// Number of steps: `steps`, or `epochs` times the batches of an epoch. kInvalidArgument: there is
// not one whole batch.
Result<std::uint64_t> TotalSteps(const v1::JobSpec& spec, std::uint64_t training_examples);

// Whether parameter servers hold the variables; else one worker's executor does, under a strategy
// of one machine.
bool NeedsPs(const v1::JobSpec& spec);

// Its checkpoint.directory without a slash at the end; empty: the spec names none.
std::string CheckpointFolder(const v1::JobSpec& spec);
// How many stay: `checkpoint.keep`, or 3.
std::uint32_t KeptCheckpoints(const v1::JobSpec& spec);

// Parameters (of the spec, or else of the archive) and embeddings, with their initializers written
// out, placed over the servers in `ps`; whole and without a place where the job needs none.
Result<v1::JobPlan> MakePlan(const v1::JobRecord& record, const std::vector<v1::PsAddress>& ps);

// xxh3-64 in hex of a spec; equal for equal specs, whatever the order of their maps.
std::string SpecHash(const v1::JobSpec& spec);

// The same of what decides how parameters change, which is all but the job's name and where and how
// often it saves: a checkpoint of this hash is good for every job that has it.
std::string TrainingHash(const v1::JobSpec& spec);

// Whether a job of this spec may go on from that checkpoint. Manifests of before TrainingHash()
// carry the whole spec's hash, name included.
bool GoesOnFrom(const v1::JobSpec& spec, const v1::CheckpointManifest& manifest);

}  // namespace muster::coordinator
