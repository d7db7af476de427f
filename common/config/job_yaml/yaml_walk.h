// Fills a protobuf message from YAML by its descriptor: the message is the schema, so a field that
// is added to a .proto is understood here without a line of code.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/job_yaml/problem.h"

namespace google::protobuf {
class Message;
}

namespace muster::config {

// From 1.
struct Position {
  int line = 1;
  int column = 1;
};

struct LocatedProblem {
  Problem problem;
  Position position;
};

struct WalkResult {
  // In the order of the file; at most kMostProblems.
  std::vector<LocatedProblem> problems;
  // Where each field that was given stands, by dotted path (list elements too: files.0).
  std::map<std::string, Position> positions;
  // Fields that unknown keys were probably meant to be, and maps whose keys lack values: their
  // absence is no news.
  std::vector<std::string> meant;
};

inline constexpr int kMostProblems = 50;
// What is said in the place of those beyond.
inline constexpr const char* kTooMany = "too many problems; the rest is not listed";
// Each alias counts as often as it is used, so anchors cannot multiply a small file into a long
// walk.
inline constexpr int kMostValues = 100'000;

// Reads one YAML document into `message`. Rules, docs/formats/job-spec.md:
//   keys are field names; unknown and repeated ones are refused; enum values are written in lower
//   case without their prefix; numbers and booleans are strict (scalar.h) and never quoted; a list
//   of text may be one text; a message with a field `kind` may be that kind alone.
// `hidden` names fields (full names) that no file may set. Collects every problem it finds.
WalkResult WalkYaml(std::string_view text, const std::vector<std::string>& hidden,
                    google::protobuf::Message& message);

}  // namespace muster::config
