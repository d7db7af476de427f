// Figures, states and tables as people read them; messages as programs do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/jobs.pb.h"

namespace google::protobuf {
class Message;
}

namespace muster::cli {

// Why it is in its state; empty where the reason is the state's own name.
std::string Reason(const v1::Job& job);
// "worker:1"; "" without a task.
std::string TaskName(const v1::Task& task);
// "http://127.0.0.1:9400/" of ClusterStatus.page_address.
std::string PageUrl(const std::string& page_address);
// "12 s", "3 min", "2.5 h", "4 d"
std::string Seconds(double seconds);
// "12,345"
std::string Thousands(std::uint64_t number);
// "14:03:09.120", local time, of milliseconds since 1970.
std::string ClockTime(std::int64_t ms);
// "2026-11-21 14:03:09", local time.
std::string DateTime(std::int64_t ms);

// The first `columns` characters of a line of UTF-8; 0: all.
std::string_view Cut(std::string_view line, int columns);

// Columns of equal width, two spaces between; the first row is the head.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// Protobuf's JSON mapping, indented, with a newline at the end. Fields that are zero or empty are
// there; messages that are absent are not.
std::string Json(const google::protobuf::Message& message);
// The same in one line.
std::string JsonLine(const google::protobuf::Message& message);

// With -o json an error is data, too: {"error": {"code": 5, "name": "NOT_FOUND", "message":
// "..."}}; `problems` of a job file are listed, where there are any. One line, as everything that
// `logs` prints.
std::string ErrorJson(const Status& status, const std::vector<std::string>& problems = {});

}  // namespace muster::cli
