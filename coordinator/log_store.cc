#include "coordinator/log_store.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/utf8.h"
#include "common/base/words.h"

namespace muster::coordinator {
namespace {

// Every so many lines the offset of one is remembered, so that a reader need not start at the top.
constexpr std::uint64_t kIndexEvery = 256;

// Beyond that the clock of a line's host is not ours, or the line was kept there for long.
constexpr std::int64_t kMostApartUs = 60'000'000;

// `a` - `b`, round the end where it must be: a damaged file may say anything.
std::int64_t Apart(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

struct Parsed {
  std::int64_t time_us = 0;
  // From then until it came, where that is beyond kMostApartUs, by our clock.
  std::int64_t late_us = 0;
  std::string_view task;
  std::string_view text;
};

// A line that a crash cut short parses to what there is.
Parsed Parse(std::string_view line) {
  Parsed parsed;
  const std::size_t first = line.find('\t');
  const std::size_t second =
      first == std::string_view::npos ? std::string_view::npos : line.find('\t', first + 1);
  if (second == std::string_view::npos) {
    parsed.text = line;
    return parsed;
  }
  const char* const end = line.data() + first;
  const char* late = std::from_chars(line.data(), end, parsed.time_us).ptr;
  if (late != end && *late == '+') ++late;
  std::from_chars(late, end, parsed.late_us);
  parsed.task = line.substr(first + 1, second - first - 1);
  parsed.text = line.substr(second + 1);
  return parsed;
}

std::string SegmentName(std::uint64_t first) { return fmt::format("{:020}.log", first); }

}  // namespace

struct LogStore::Segment {
  std::uint64_t first = 1;  // cursor of its first line
  std::uint64_t lines = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> offsets;  // of lines 0, kIndexEvery, 2 kIndexEvery, ...

  void Count(std::size_t line_bytes) {
    if (lines % kIndexEvery == 0) offsets.push_back(bytes);
    ++lines;
    bytes += line_bytes;
  }
};

struct LogStore::JobLog {
  std::string directory;
  // Why it is not known yet what its files hold: then none of them is read or written.
  Status unread = Unknown("not read yet");
  std::chrono::steady_clock::time_point read_from;
  std::deque<Segment> segments;
  int fd = -1;
  std::uint64_t dropped = 0;
  std::uint64_t used = 0;
  std::map<std::string, std::deque<std::string>> last;

  std::uint64_t next() const {
    return segments.empty() ? 1 : segments.back().first + segments.back().lines;
  }
  void Remember(std::string_view task, std::string_view text) {
    std::deque<std::string>& lines = last[std::string(task)];
    lines.emplace_back(text);
    if (lines.size() > kNewest) lines.pop_front();
  }
  ~JobLog() {
    if (fd >= 0) close(fd);
  }
};

LogStore::LogStore(Options options) : options_(std::move(options)) {}
LogStore::~LogStore() = default;

void LogStore::CloseOne() {
  // Readers come and go: who writes, or has lines to account for, stays as long as it can.
  const auto key = [](const auto& one) {
    return std::pair(one.second->fd >= 0 || one.second->dropped > 0, one.second->used);
  };
  const auto oldest = std::min_element(
      jobs_.begin(), jobs_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  if (oldest != jobs_.end()) jobs_.erase(oldest);
}

void LogStore::Forget(const std::string& job) {
  jobs_.erase(job);
  std::error_code error;
  std::filesystem::remove_all(options_.directory + "/" + job, error);
}

LogStore::JobLog& LogStore::Open(const std::string& job) {
  auto found = jobs_.find(job);
  if (found == jobs_.end()) {
    if (jobs_.size() >= options_.open_jobs) CloseOne();
    found = jobs_.emplace(job, std::make_unique<JobLog>()).first;
    found->second->directory = options_.directory + "/" + job;
  }
  JobLog& log = *found->second;
  log.used = ++uses_;
  if (!log.unread.ok()) Reread(log);
  return log;
}

void LogStore::Reread(JobLog& log) {
  const auto now = std::chrono::steady_clock::now();
  if (now < log.read_from) return;
  log.unread = Load(log);
  log.read_from = now + options_.reread_after;
}

// All of the job's segments, or nothing of them: a log of which a part cannot be read is left as it
// was, and read again by the next caller.
Status LogStore::Load(JobLog& log) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(log.directory, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (at->path().extension() == ".log" && !at->is_directory(ignored))
      names.push_back(at->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return FromErrno(error.value(), "list " + log.directory);
  }
  std::sort(names.begin(), names.end());
  JobLog loaded;
  for (const std::string& name : names) {
    Segment& segment = loaded.segments.emplace_back();
    std::from_chars(name.data(), name.data() + name.size(), segment.first);
    const std::string path = log.directory + "/" + name;
    std::ifstream file(path);
    if (!file.is_open()) return FromErrno(errno, "read " + path);
    for (std::string line; std::getline(file, line);) {
      segment.Count(line.size() + 1);
      const Parsed parsed = Parse(line);
      loaded.Remember(parsed.task, ToValidUtf8(parsed.text));
    }
    if (file.bad()) return FromErrno(errno, "read " + path);
  }
  log.segments = std::move(loaded.segments);
  // Lines that came while it could not be read are newer.
  std::swap(log.last, loaded.last);
  for (const auto& [task, lines] : loaded.last) {
    for (const std::string& text : lines) log.Remember(task, text);
  }
  return Ok();
}

Status LogStore::OpenToWrite(JobLog& log) {
  if (!log.segments.empty() && log.segments.back().bytes < options_.segment_bytes) {
    if (log.fd >= 0) return Ok();
    MUSTER_TRY_ASSIGN(const bool reopened, Reopen(log));
    if (reopened) return Ok();
  }
  return StartSegment(log);
}

// A log in many short files would lose its oldest lines early. False: there is no such file, or it
// is not the one that was read.
Result<bool> LogStore::Reopen(JobLog& log) {
  const Segment& segment = log.segments.back();
  const std::string path = log.directory + "/" + SegmentName(segment.first);
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return false;
    return FromErrno(errno, "open " + path);
  }
  struct stat now = {};
  bool done = fstat(fd, &now) == 0;
  const auto bytes = static_cast<std::uint64_t>(now.st_size);
  const bool known = bytes + 1 >= segment.bytes;
  if (done && bytes + 1 == segment.bytes) {
    // A crash has cut its last line short, which readers may have seen: it stays, and ends here.
    done = write(fd, "\n", 1) == 1;
  } else if (done && bytes > segment.bytes) {
    // Half a line that no cursor counts.
    done = ftruncate(fd, static_cast<off_t>(segment.bytes)) == 0;
  }
  if (done && known) {
    log.fd = fd;
    return true;
  }
  const int error = errno;
  close(fd);
  if (done) return false;
  return FromErrno(error, "go on in " + path);
}

Status LogStore::StartSegment(JobLog& log) {
  std::error_code error;
  std::filesystem::create_directories(log.directory, error);
  if (error) return FromErrno(error.value(), "make " + log.directory);
  if (log.fd >= 0) close(log.fd);
  const std::string path = log.directory + "/" + SegmentName(log.next());
  log.fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log.fd < 0) return FromErrno(errno, "open " + path);
  Segment segment;
  segment.first = log.next();
  // A segment that a restart left empty has this very name.
  if (!log.segments.empty() && log.segments.back().first == segment.first) log.segments.pop_back();
  log.segments.push_back(segment);
  while (log.segments.size() > options_.segments_per_job) {
    std::filesystem::remove(log.directory + "/" + SegmentName(log.segments.front().first), error);
    log.segments.pop_front();
  }
  return Ok();
}

std::string LogStore::Cut(const std::string& text) const {
  // A driver writes what it likes, and a line may be cut within a character.
  std::string cut = ToValidUtf8(std::string_view(text).substr(0, options_.line_bytes));
  if (text.size() > options_.line_bytes) cut += fmt::format(" [cut: {} bytes]", text.size());
  std::replace(cut.begin(), cut.end(), '\n', ' ');
  return cut;
}

// A line is remembered first (Newest()), then written whole or not at all; what could not be
// written is counted, and the next line that can says so.
Status LogStore::Append(const std::string& job, const std::string& task,
                        const google::protobuf::RepeatedPtrField<v1::LogLine>& lines,
                        std::int64_t came_us) {
  JobLog& log = Open(job);
  Status written = Ok();
  for (const v1::LogLine& line : lines) {
    std::string text = Cut(line.text());
    log.Remember(task, text);
    const std::int64_t late_us = came_us == 0 ? 0 : Apart(came_us, line.time_us());
    std::string time = std::to_string(line.time_us());
    if (late_us > kMostApartUs || late_us < -kMostApartUs) time += fmt::format("{:+}", late_us);
    // A disk that refuses one refuses those after it, too.
    if (written.ok()) written = Write(log, task, time, std::move(text));
    if (!written.ok()) ++log.dropped;
  }
  return Annotate(written, "the log of " + job);
}

Status LogStore::Write(JobLog& log, const std::string& task, const std::string& time,
                       std::string text) {
  MUSTER_TRY(log.unread);
  MUSTER_TRY(OpenToWrite(log));
  if (log.dropped > 0) {
    text += fmt::format(" [{} before this one {} lost]", Counted(log.dropped, "line"),
                        Agreeing(log.dropped, "was", "were"));
  }
  const std::string row = fmt::format("{}\t{}\t{}\n", time, task, text);
  const ssize_t written = write(log.fd, row.data(), row.size());
  if (written != static_cast<ssize_t>(row.size())) {
    const int error = written < 0 ? errno : ENOSPC;
    // Half a line would shift every cursor after it.
    if (written > 0 && ftruncate(log.fd, static_cast<off_t>(log.segments.back().bytes)) != 0) {
      close(std::exchange(log.fd, -1));
    }
    return FromErrno(error, "write a line");
  }
  log.dropped = 0;
  log.segments.back().Count(row.size());
  return Ok();
}

// Begins in the segment that has the cursor, at the last mark before it. With a tail all is read
// and the last matching lines are kept.
Result<LogStore::Page> LogStore::Read(const std::string& job, const Query& query) {
  const JobLog& log = Open(job);
  MUSTER_TRY(log.unread);
  Page page;
  page.cursor = query.cursor;
  std::deque<v1::LogRecord> kept;
  for (const Segment& segment : log.segments) {
    const std::uint64_t after = segment.first + segment.lines;
    // One has no lines when the first could not be written.
    if (segment.lines == 0 || after <= query.cursor + 1) continue;
    const std::uint64_t start = std::max(segment.first, query.cursor + 1);
    const std::uint64_t mark = (start - segment.first) / kIndexEvery;
    const std::string path = log.directory + "/" + SegmentName(segment.first);
    std::ifstream file(path);
    // Somebody may have removed it.
    if (!file.is_open() && errno != ENOENT) return FromErrno(errno, "read " + path);
    file.seekg(static_cast<std::streamoff>(segment.offsets[mark]));
    std::uint64_t cursor = segment.first + mark * kIndexEvery;
    for (std::string line; cursor < after && std::getline(file, line); ++cursor) {
      if (cursor < start) continue;
      if (query.tail == 0 && kept.size() >= query.limit) {
        page.end = false;
        break;
      }
      page.cursor = cursor;
      const Parsed parsed = Parse(line);
      if (!query.task.empty() && parsed.task != query.task) continue;
      if (Apart(parsed.late_us, Apart(0, parsed.time_us)) < query.since_us) continue;
      v1::LogRecord& record = kept.emplace_back();
      record.set_cursor(cursor);
      record.set_task(std::string(parsed.task));
      record.mutable_line()->set_time_us(parsed.time_us);
      record.mutable_line()->set_text(ToValidUtf8(parsed.text));
      if (query.tail > 0 && kept.size() > query.tail) kept.pop_front();
    }
    if (file.bad()) return FromErrno(errno, "read " + path);
    if (!page.end) break;
  }
  page.records.assign(std::make_move_iterator(kept.begin()), std::make_move_iterator(kept.end()));
  return page;
}

const std::map<std::string, std::deque<std::string>>& LogStore::Newest(const std::string& job) {
  return Open(job).last;
}

void LogStore::NoteLost(const std::string& job, std::uint64_t lines) { Open(job).dropped += lines; }

}  // namespace muster::coordinator
