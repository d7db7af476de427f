#include "common/config/job_yaml/job_yaml.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/core.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/message_differencer.h>

#include "common/base/job_limits.h"
#include "common/base/utf8.h"
#include "common/config/job_yaml/validate_job.h"

namespace muster::config {
namespace {

namespace fs = std::filesystem;

// Known to the message, not to the author of a job.
const std::vector<std::string>& HiddenFields() {
  static const std::vector<std::string> fields{"muster.v1.ModelSpec.archive_sha256"};
  return fields;
}

// The position of `path`, or of the nearest field around it that was written.
Position Locate(const std::map<std::string, Position>& positions, std::string path) {
  while (true) {
    if (const auto found = positions.find(path); found != positions.end()) return found->second;
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) break;
    path.resize(dot);
  }
  const auto root = positions.find("");
  return root == positions.end() ? Position{} : root->second;
}

// A field that could not be read must not be reported as missing or wrong a second time.
bool ReportedAlready(const WalkResult& walk, const std::string& path) {
  const auto& problems = walk.problems;
  if (std::find(walk.meant.begin(), walk.meant.end(), path) != walk.meant.end()) return true;
  return std::any_of(problems.begin(), problems.end(), [&](const LocatedProblem& known) {
    const std::string& before = known.problem.path;
    return before == path || before.empty() || path.starts_with(before + ".");
  });
}

bool ReportedAlready(const WalkResult& walk, const Problem& problem) {
  return ReportedAlready(walk, problem.path) ||
         std::any_of(problem.lacks.begin(), problem.lacks.end(),
                     [&](const std::string& field) { return ReportedAlready(walk, field); });
}

void Absolute(const std::string& folder, std::string& path) {
  if (!path.empty() && path[0] != '/') path = (fs::path(folder) / path).lexically_normal().string();
}

// The first byte that is not UTF-8, and where it stands. UTF-16 with its mark is YAML, too.
std::optional<LocatedProblem> BadByte(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return std::nullopt;
  const std::size_t at = FirstBadUtf8(text);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 = 0
  const auto characters = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(line_begin),
                                        before.end(), [](char c) { return (c & 0xC0) != 0x80; });
  const auto lines = std::count(before.begin(), before.end(), '\n');
  return LocatedProblem{{"", fmt::format("byte \\x{:02x} is not UTF-8: save the file as UTF-8",
                                         static_cast<unsigned char>(text[at]))},
                        {static_cast<int>(lines) + 1, static_cast<int>(characters) + 1}};
}

// Every `files` below `message`, whatever reader it belongs to.
void AbsoluteFiles(const std::string& folder, google::protobuf::Message& message) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const auto* field : fields) {
    using Field = google::protobuf::FieldDescriptor;
    if (field->type() == Field::TYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        AbsoluteFiles(folder, *reflection->MutableRepeatedMessage(&message, field, i));
      }
    } else if (field->type() == Field::TYPE_MESSAGE) {
      AbsoluteFiles(folder, *reflection->MutableMessage(&message, field));
    } else if (field->name() == "files" && field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        std::string path = reflection->GetRepeatedString(message, field, i);
        Absolute(folder, path);
        reflection->SetRepeatedString(&message, field, i, path);
      }
    }
  }
}

}  // namespace

std::string NameFromFile(const std::string& file) {
  const std::string stem = fs::path(file).stem().string();
  std::string name;
  for (const char c : stem) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0U) == 0x80U) continue;  // of a character that one '-' stands for
    const bool kept = std::isalnum(byte) != 0 || c == '.' || c == '_';
    if (name.empty() && (!kept || c == '.')) continue;  // no name begins so
    name += kept ? c : '-';
  }
  if (name.empty() && !stem.empty()) return "job";
  return name.substr(0, job_limits::kLongestJobName);
}

std::string JobFile::Describe(const LocatedProblem& problem) const {
  const std::string path = problem.problem.path.empty() ? "" : problem.problem.path + ": ";
  return fmt::format("{}:{}:{}: {}{}", file, problem.position.line, problem.position.column, path,
                     problem.problem.message);
}

JobFile ParseJobYaml(std::string_view text, const std::string& file) {
  JobFile job;
  job.file = file;
  job.text = text.substr(0, kMostJobYamlBytes);
  if (text.size() > kMostJobYamlBytes) {
    job.problems.push_back(
        {{"", fmt::format("{} bytes; a job file has at most {}", text.size(), kMostJobYamlBytes)},
         {}});
    return job;
  }
  if (const auto bad = BadByte(text); bad.has_value()) {
    job.problems.push_back(*bad);
    return job;
  }
  WalkResult walk = WalkYaml(text, HiddenFields(), job.spec);
  job.problems = walk.problems;
  job.positions = std::move(walk.positions);
  if (const auto launch = job.positions.find("launch"); launch != job.positions.end()) {
    job.problems = {{{"launch",
                      "a job file trains a model; a command is submitted by itself: muster submit "
                      "--workers 2 -- python3 train.py"},
                     launch->second}};
    return job;
  }
  if (const auto program = job.positions.find("program"); program != job.positions.end()) {
    job.problems = {{{"program",
                      "a job file trains a model; a program is submitted by itself: muster submit "
                      "--strategy parameter_server -- PROGRAM ARGUMENTS"},
                     program->second}};
    return job;
  }
  if (job.spec.name().empty()) job.spec.set_name(NameFromFile(file));

  for (Problem& problem : ValidateJob(job.spec)) {
    if (ReportedAlready(walk, problem)) continue;
    const Position position = Locate(job.positions, problem.path);
    job.problems.push_back({std::move(problem), position});
  }
  std::stable_sort(job.problems.begin(), job.problems.end(), [](const auto& a, const auto& b) {
    return std::pair(a.position.line, a.position.column) <
           std::pair(b.position.line, b.position.column);
  });
  if (job.problems.size() > kMostProblems) {
    const Position next = job.problems[kMostProblems - 1].position;
    job.problems.resize(kMostProblems - 1);
    job.problems.push_back({{"", kTooMany}, next});
  }
  return job;
}

void ResolvePaths(const std::string& folder, v1::JobSpec& spec) {
  if (spec.has_data()) AbsoluteFiles(folder, *spec.mutable_data());
  if (spec.evaluation().has_data()) {
    AbsoluteFiles(folder, *spec.mutable_evaluation()->mutable_data());
  }
  if (spec.has_model()) Absolute(folder, *spec.mutable_model()->mutable_archive());
  if (spec.has_checkpoint()) Absolute(folder, *spec.mutable_checkpoint()->mutable_directory());
}

Result<JobFile> LoadJobYaml(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return NotFound("{} is a folder; expected a job file", path);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return FromErrno(errno, "open " + path);
  // One byte more than allowed tells "too large" without reading the rest.
  std::string text(kMostJobYamlBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) return FromErrno(errno, "read " + path);
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMostJobYamlBytes) {
    return ResourceExhausted("{} has more than {} bytes, the most that a job file may have", path,
                             kMostJobYamlBytes);
  }
  JobFile job = ParseJobYaml(text, path);
  const std::string folder = fs::absolute(path, error).parent_path().string();
  const v1::JobSpec as_written = job.spec;
  ResolvePaths(folder, job.spec);
  // Names of files travel in messages, and those take UTF-8 only.
  if (FirstBadUtf8(folder) != std::string::npos &&
      !google::protobuf::util::MessageDifferencer::Equals(as_written, job.spec)) {
    job.spec = as_written;
    job.problems.push_back(
        {{"", fmt::format("relative paths begin at {}, whose name is not UTF-8: rename the folder, "
                          "or write paths from / on",
                          ToValidUtf8(folder))},
         {1, 1}});
  }
  return job;
}

}  // namespace muster::config
