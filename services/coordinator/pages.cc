#include "services/coordinator/pages.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/util/json_util.h>
#include <nlohmann/json.hpp>

#include "common/base/mutex.h"
#include "common/storage/sha256.h"

namespace muster::coordinator {
namespace {

using services::HttpReply;
using services::HttpRequest;
using services::HttpRespond;

// The file beside this one, as CMake has put it in.
constexpr std::string_view kPage =
#include "services/coordinator/page.inc"
    ;

// 'sha256-...' of what stands between two marks of the page, for its Content-Security-Policy.
std::string HashOf(std::string_view begin, std::string_view end) {
  const std::size_t from = kPage.find(begin) + begin.size();
  const std::string_view text = kPage.substr(from, kPage.find(end, from) - from);
  storage::Sha256 hash;
  hash.Add(text);
  return "'sha256-" + hash.Base64() + "'";
}

// Nothing is loaded from elsewhere, no script runs but the page's own, nobody frames it. Colours of
// lines are set by its script, hence styles on elements.
HttpReply Page() {
  static const std::string policy =
      "default-src 'none'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'; script-src " +
      HashOf("<script>", "</script>") + "; style-src-elem " + HashOf("<style>", "</style>") +
      "; style-src-attr 'unsafe-inline'";
  return {.body = std::string(kPage),
          .type = "text/html; charset=utf-8",
          .fields = {{"Content-Security-Policy", policy}, {"Referrer-Policy", "no-referrer"}}};
}

HttpReply Failure(const Status& status) {
  const int code = status.code() == StatusCode::kNotFound ? 404 : 503;
  return {.status = code, .body = Message(status) + "\n"};
}

HttpReply Json(std::string text) {
  return {.body = std::move(text), .type = "application/json; charset=utf-8"};
}

HttpReply ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!printed.ok()) return {.status = 500, .body = "a message has no JSON\n"};
  return Json(std::move(text));
}

HttpReply ToJson(const JobFigures::Curves& curves) {
  nlohmann::json text = nlohmann::json::object();
  for (const auto& [tag, curve] : curves) {
    nlohmann::json& points = text[tag] = nlohmann::json::array();
    for (const auto& [step, value] : curve.points()) {
      // JSON knows no infinity, and a curve no place for it.
      if (std::isfinite(value)) points.push_back({step, value});
    }
  }
  return Json(text.dump());
}

// What anybody on this machine may see: not how a job is made, nor what it prints.
void Censor(v1::Job& job) {
  job.clear_spec();
  for (v1::Event& event : *job.mutable_events()) event.clear_log_lines();
}

// Who asks, for the audit log.
std::string VisitorName(const HttpRequest& request) {
  return request.visitor && request.visitor->ok() ? (*request.visitor)->ToString() : "somebody";
}

// What a path shows, in the audit log's words: those of the calls that show the same.
struct Deed {
  std::string_view did;
  std::string what;
};
constexpr std::string_view kJobs = "/api/v1/jobs/";
constexpr std::string_view kCurves = "/curves";
Deed DeedOf(const std::string& path) {
  if (path == "/api/v1/status") return {"status", ""};
  if (path == "/api/v1/jobs") return {"jobs", ""};
  if (!path.starts_with(kJobs)) return {"page", path};
  std::string job = path.substr(kJobs.size());
  if (!job.ends_with(kCurves)) return {"describe", std::move(job)};
  job.resize(job.size() - kCurves.size());
  return {"curves", std::move(job)};
}

// `respond`, after who has asked for what has been written down.
HttpRespond Recorded(Front& front, const HttpRequest& request, HttpRespond respond) {
  return [&front, who = VisitorName(request), deed = DeedOf(request.path),
          respond = std::move(respond)](HttpReply reply) {
    const Status outcome = reply.status == 200   ? Ok()
                           : reply.status == 404 ? NotFound("it is not there")
                                                 : Unavailable("it could not be shown");
    front.audit.Look(who, deed.did, deed.what, outcome);
    respond(std::move(reply));
  };
}

class Pages : public std::enable_shared_from_this<Pages> {
 public:
  Pages(Front& front, const JobFigures& figures) : front_(front), figures_(figures) {}

  void Answer(const HttpRequest& request, HttpRespond respond) {
    if (!Join(request.path, std::move(respond))) return;
    front_.strand.Post([self = shared_from_this(), path = request.path] {
      if (self->front_.core == nullptr) return self->Give(path, Failure(Front::Closing()));
      self->Look(*self->front_.core, path);
    });
  }

 private:
  struct Kept {
    TimePoint made;
    HttpReply reply;
    // Those that ask while it is being made.
    std::vector<HttpRespond> waiting;
  };

  // Answered from what was made a moment ago, or with others when it comes. True: the caller makes
  // it.
  bool Join(const std::string& path, HttpRespond respond) {
    const TimePoint now = front_.strand.Now();
    const MutexLock lock(mutex_);
    std::erase_if(kept_, [now](const auto& one) {
      return one.second.waiting.empty() && now - one.second.made > kPagePause;
    });
    Kept& kept = kept_[path];
    if (kept.made != TimePoint() && kept.waiting.empty()) {
      respond(kept.reply);
      return false;
    }
    kept.waiting.push_back(std::move(respond));
    if (kept.waiting.size() > kMostAtOnePage) {
      // Its time has long been over: a server's connections are as many.
      kept.waiting.front()(Failure(Unavailable("what knows it stands still")));
      kept.waiting.erase(kept.waiting.begin());
    }
    return kept.waiting.size() == 1;
  }

  void Give(const std::string& path, const HttpReply& reply) {
    std::vector<HttpRespond> waiting;
    {
      const MutexLock lock(mutex_);
      Kept& kept = kept_[path];
      waiting = std::exchange(kept.waiting, {});
      kept.made = front_.strand.Now();
      kept.reply = reply;
    }
    for (const HttpRespond& respond : waiting) respond(reply);
  }

  // On the strand: what was seen, as text, without the strand.
  template <class Seen>
  void Write(const std::string& path, Seen seen) {
    const auto written = std::make_shared<HttpReply>(Failure(Unavailable("no thread is free")));
    front_.disks.Run(
        "pages", [written, seen = std::move(seen)] { *written = ToJson(seen); },
        [self = shared_from_this(), path, written] { self->Give(path, *written); });
  }

  // On the strand.
  void Look(Coordinator& core, const std::string& path) {
    if (path == "/api/v1/status") return Write(path, core.Status());
    if (path == "/api/v1/jobs") {
      v1::ListJobsReply jobs = core.List();
      if (jobs.jobs_size() > kMostListed) {
        jobs.mutable_jobs()->DeleteSubrange(kMostListed, jobs.jobs_size() - kMostListed);
      }
      return Write(path, std::move(jobs));
    }
    if (!path.starts_with(kJobs)) {
      return Give(path, Failure(NotFound("not here; there are /api/v1/status, jobs, jobs/ID and "
                                         "jobs/ID/curves")));
    }
    std::string id = path.substr(kJobs.size());
    const bool curves = id.ends_with(kCurves);
    if (curves) id.resize(id.size() - kCurves.size());
    const Result<Job*> job = core.Find(id);
    if (!job.ok()) return Give(path, Failure(job.status()));
    if (curves) {
      const JobFigures::Curves* const found = figures_.Find((*job)->id());
      return Write(path, found == nullptr ? JobFigures::Curves() : *found);
    }
    (*job)->Describe([self = shared_from_this(), path](Result<v1::Job> described) {
      if (!described.ok()) return self->Give(path, Failure(described.status()));
      Censor(*described);
      self->Write(path, *std::move(described));
    });
  }

  Front& front_;
  const JobFigures& figures_;
  Mutex mutex_;
  std::map<std::string, Kept> kept_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace

void ServePages(Front& front, const JobFigures& figures, services::AdminPort& port) {
  const auto pages = std::make_shared<Pages>(front, figures);
  port.Serve("/api/v1/", [pages, &front](const HttpRequest& request, HttpRespond respond) {
    pages->Answer(request, Recorded(front, request, std::move(respond)));
  });
  port.OnRefused([&front](const HttpRequest& request, const Status& why) {
    front.audit.Look(VisitorName(request), "page", request.path, why);
  });
  port.Serve("/", [](const HttpRequest& request, const HttpRespond& respond) {
    if (request.path == "/" || request.path == "/index.html") return respond(Page());
    respond({.status = 404, .body = "not here; the page is at /\n"});
  });
}

}  // namespace muster::coordinator
