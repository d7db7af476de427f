#include "services/executor/check_command.h"

#include <cstdio>
#include <iostream>
#include <iterator>

#include <fmt/core.h>
#include <google/protobuf/util/json_util.h>

#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/whole_file.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "worker/engine/check.h"
#include "worker/engine/runtime.h"

namespace muster::executor {
namespace {

Result<v1::JobSpec> ReadSpec(const std::string& path) {
  std::string text;
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    MUSTER_TRY_ASSIGN(text, ReadWholeFile(path));
  }
  v1::JobSpec spec;
  // A binary spec never begins with '{': that would be a field of a wire type that has gone.
  if (const auto first = text.find_first_not_of(" \t\r\n");
      first != std::string::npos && text[first] == '{') {
    const auto status = google::protobuf::util::JsonStringToMessage(text, &spec);
    if (status.ok()) return spec;
    return InvalidArgument("{}: not a JobSpec: {}", path, std::string(status.message()));
  }
  if (!spec.ParseFromString(text)) return InvalidArgument("{}: not a JobSpec", path);
  return spec;
}

}  // namespace

int RunCheck(const CheckCommand& command) {
  const auto spec = ReadSpec(command.spec_path);
  if (!spec.ok()) {
    fmt::print(stderr, "muster-executor: {}\n", Message(spec.status()));
    return 2;
  }
  engine::SetThreads(1);
  engine::CheckOptions options;
  options.memory_bytes = AvailableMemory();
  options.archive_path = command.archive_path;
  options.data =
      command.data ? engine::CheckOptions::Data::kRequired : engine::CheckOptions::Data::kNone;
  const v1::CheckReport report = engine::CheckJob(*spec, options);

  google::protobuf::util::JsonPrintOptions json;
  json.add_whitespace = true;
  json.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(report, &text, json).ok()) {
    fmt::print(stderr, "muster-executor: the report is not valid UTF-8\n");
    return 2;
  }
  fmt::print("{}", text);
  return report.problems().empty() ? 0 : 2;
}

}  // namespace muster::executor
