#include "cli/certs.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/exit_code.h"
#include "cli/flags.h"
#include "cli/format.h"
#include "common/base/folder_lock.h"
#include "common/base/private_directory.h"
#include "common/base/task_name.h"
#include "common/base/wall_time.h"
#include "common/base/whole_file.h"
#include "common/tls/allowed.h"
#include "common/tls/authority.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

// Between two clocks of a cluster: one that is hours behind is still no reason not to talk.
constexpr std::chrono::hours kLeeway{24};
constexpr int kMostDays = 36'500;
// A certificate that ends sooner is told of.
constexpr std::chrono::hours kSoon{24 * 14};

tls::Period PeriodOf(const Context& context, int days) {
  const auto now = context.clock.WallNow();
  return {now - kLeeway, now + std::chrono::hours(24) * days};
}

// Each command that changes the list writes all of it.
Result<FolderLock> Lock(const std::string& folder) {
  return FolderLock::Take(folder, FolderLock::How::kAlone, std::chrono::seconds(10));
}

// What this host refuses to read is no question of a token or a role.
Result<std::string> ReadHere(const std::string& path) {
  Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return OfFiles(text.status());
  return text;
}

std::string InFolder(const Context& context, const std::string& name) {
  return context.options.certs.folder + "/" + name;
}

// The key, then its certificate. Where that cannot be written the key goes back to what it was: a
// daemon does not start with halves of two pairs, and a lone ca.key would be no authority, but in
// the way of one.
Status Store(const Context& context, const std::string& name, const tls::Issued& issued) {
  const std::string key = InFolder(context, name + ".key");
  const std::string certificate = InFolder(context, name + ".pem");
  const Result<std::string> before = ReadWholeFile(key);
  MUSTER_TRY(OfFiles(ReplaceFile(key, issued.key, 0600)));
  const Status stored = OfFiles(ReplaceFile(certificate, issued.certificate, 0644));
  // Where only its folder failed the certificate is there.
  if (stored.ok() || ReadWholeFile(certificate).value_or("") == issued.certificate) return stored;
  if (before.ok()) {
    (void)ReplaceFile(key, *before, 0600);
  } else {
    std::error_code none;
    fs::remove(key, none);
  }
  return stored;
}

Result<tls::Issued> LoadAuthority(const Context& context) {
  tls::Issued authority;
  const auto certificate = ReadHere(InFolder(context, "ca.pem"));
  if (certificate.status().code() == StatusCode::kNotFound) {
    return FailedPrecondition("no authority is in {}: run `muster certs init --dir {}` first",
                              context.options.certs.folder, context.options.certs.folder);
  }
  MUSTER_TRY(certificate.status());
  authority.certificate = *certificate;
  const std::string key = InFolder(context, "ca.key");
  std::error_code unknown;
  const auto others =
      fs::status(key, unknown).permissions() & (fs::perms::group_all | fs::perms::others_all);
  if (!unknown && others != fs::perms::none) {
    return FailedPrecondition(
        "others than its owner may use {}, and who has it is the cluster: chmod 600 it, or make "
        "another authority",
        key);
  }
  MUSTER_TRY_ASSIGN(authority.key, ReadHere(key));
  return authority;
}

// Until when it is asked for, or until its authority ends, after which nobody would believe it.
Result<tls::Period> PeriodOfIssued(const Context& context, const tls::Issued& authority) {
  MUSTER_TRY_ASSIGN(const tls::X509Ptr issuer,
                    tls::ParseCertificate(authority.certificate, InFolder(context, "ca.pem")));
  MUSTER_TRY(tls::CheckPeriod(*issuer, context.clock.WallNow(), InFolder(context, "ca.pem")));
  const int days = context.options.certs.days;
  tls::Period period = PeriodOf(context, days > 0 ? days : 365);
  const auto last = tls::PeriodOf(*issuer).until;
  if (period.until <= last) return period;
  context.terminal.err << fmt::format(
      "warning: it ends with its authority, {} days from now\n",
      std::chrono::floor<std::chrono::days>(last - context.clock.WallNow()).count());
  period.until = last;
  return period;
}

// A renewal takes its place; what is somebody else's is not written over.
Status CheckName(const Context& context, const std::string& name, const tls::Holder& holder) {
  if (name == "ca" || name.find('/') != std::string::npos) {
    return InvalidArgument("--name {}: neither \"ca\" nor a path: the files are in --dir", name);
  }
  const std::string path = InFolder(context, name + ".pem");
  const auto pem = ReadHere(path);
  if (pem.status().code() == StatusCode::kNotFound) return Ok();
  MUSTER_TRY(pem.status());
  MUSTER_TRY_ASSIGN(const tls::X509Ptr there, tls::ParseCertificate(*pem, path));
  const auto other = tls::HolderOf(*there);
  if (other.ok() && other->role == holder.role && other->names.front() == holder.names.front()) {
    return Ok();
  }
  return AlreadyExists("{} is the certificate of {}: give --name for the files of {}", path,
                       tls::WhoseOf(*there), holder.ToString());
}

// They are tasks of a cluster's daemons, as these call themselves, each once.
Status CheckTasks(const std::vector<std::string>& tasks) {
  std::set<std::string_view> seen;
  for (const std::string_view task : tasks) {
    const std::string_view type = task.substr(0, task.find(':'));
    if (type != "chief" && type != "ps" && type != "worker" && type != "evaluator") {
      return InvalidArgument(
          "--node {}: daemons are chief:0 (the coordinator), ps:INDEX, worker:INDEX, evaluator:0",
          task);
    }
    const auto known = TaskIn(task);
    if (!known) {
      return InvalidArgument("--node {}: must be type:index, as ps:0, with an index up to {}", task,
                             std::numeric_limits<int>::max());
    }
    // A certificate of worker:01 would be no daemon's: it is worker:1, and is known by that name.
    if (known->ToString() != task) {
      return InvalidArgument("--node {}: give it as {}, as its daemon calls itself", task,
                             known->ToString());
    }
    if (type == "chief" && task != "chief:0") {
      return InvalidArgument("--node {}: a cluster has one coordinator, chief:0", task);
    }
    if (type == "evaluator" && task != "evaluator:0") {
      return InvalidArgument("--node {}: a cluster has one evaluator, evaluator:0", task);
    }
    if (!seen.insert(task).second) return InvalidArgument("--node {} is given twice", task);
  }
  return Ok();
}

Result<tls::Holder> HolderOf(const Options::Certs& asked) {
  const int kinds = (asked.nodes.empty() ? 0 : 1) + (asked.submitter.empty() ? 0 : 1) +
                    (asked.viewer.empty() ? 0 : 1);
  if (kinds != 1) {
    return InvalidArgument(
        "for whom? Give one of --node TASK (again for each), --submitter NAME, "
        "--viewer NAME");
  }
  if (!asked.nodes.empty()) {
    MUSTER_TRY(CheckTasks(asked.nodes));
    return tls::Holder{.role = tls::Role::kNode, .names = asked.nodes};
  }
  if (!asked.submitter.empty()) {
    return tls::Holder{.role = tls::Role::kSubmitter, .names = {asked.submitter}};
  }
  return tls::Holder{.role = tls::Role::kViewer, .names = {asked.viewer}};
}

std::string ListOf(const Context& context) { return InFolder(context, "allowed"); }

// What stands behind the fingerprint of a line: the holder, two spaces, the end of its time.
constexpr std::string_view kUntil = "  until ";

struct AllowedLine {
  std::string text;
  std::string fingerprint = {};
  std::string holder = {};  // "node ps:0, ps:1"
};

// The lines of the list; none where there is no list yet.
Result<std::vector<AllowedLine>> ReadList(const Context& context) {
  const auto text = ReadHere(ListOf(context));
  if (text.status().code() == StatusCode::kNotFound) return std::vector<AllowedLine>();
  MUSTER_TRY(text.status());
  MUSTER_TRY(tls::ParseAllowed(*text, ListOf(context)).status());
  std::vector<AllowedLine> lines;
  std::istringstream stream(*text);
  for (std::string one; std::getline(stream, one);) {
    AllowedLine& line = lines.emplace_back(AllowedLine{.text = one});
    if (one.empty() || one.front() == '#') continue;
    const std::size_t end = one.find(' ');
    line.fingerprint = one.substr(0, end);
    if (end == std::string::npos) continue;
    const std::size_t from = std::min(one.find_first_not_of(' ', end), one.size());
    line.holder = one.substr(from, one.find(kUntil, from) - from);
  }
  return lines;
}

Status WriteList(const Context& context, const std::vector<AllowedLine>& lines) {
  std::string text;
  for (const AllowedLine& line : lines) text += line.text + "\n";
  return OfFiles(ReplaceFile(ListOf(context), text, 0644));
}

// A certificate before it leaves the folder: it is let in wherever the list is in use. All names of
// its holder stand there, however many: it is revoked by any of them.
Status AddToList(const Context& context, const tls::Issued& issued, const tls::Holder& holder,
                 const tls::Period& period) {
  MUSTER_TRY_ASSIGN(const tls::X509Ptr made, tls::ParseCertificate(issued.certificate, "issued"));
  MUSTER_TRY_ASSIGN(std::vector<AllowedLine> lines, ReadList(context));
  lines.push_back(
      {.text = fmt::format("{}  {} {}{}{}", tls::FingerprintOf(*made), tls::RoleName(holder.role),
                           fmt::join(holder.names, ", "), kUntil, UtcText(period.until))});
  return WriteList(context, lines);
}

// So many digits of a fingerprint: fewer could be anybody's.
constexpr std::size_t kShortest = 8;

// Whether the line is of "ana", of "submitter ana", or of a fingerprint or its beginning.
bool IsOf(const AllowedLine& line, const std::string& who) {
  if (line.fingerprint.empty()) return false;
  if (who.size() >= kShortest && line.fingerprint.starts_with(who)) return true;
  if (line.holder == who) return true;
  const std::size_t space = line.holder.find(' ');
  if (space == std::string::npos) return false;
  const std::string names = ", " + line.holder.substr(space + 1) + ", ";
  return names.find(", " + who + ", ") != std::string::npos;
}

// "ps-1", "ana".
std::string FileNameOf(const tls::Holder& holder) {
  std::string name = holder.names.front();
  for (char& c : name) {
    if (c == ':' || c == '@') c = '-';
  }
  return name;
}

Status Init(const Context& context) {
  const Options::Certs& asked = context.options.certs;
  MUSTER_TRY(OfFiles(MakePrivateDirectory(asked.folder)));
  MUSTER_TRY_ASSIGN([[maybe_unused]] const FolderLock lock, Lock(asked.folder));
  std::error_code unknown;
  if (fs::exists(InFolder(context, "ca.pem"), unknown) ||
      fs::exists(InFolder(context, "ca.key"), unknown)) {
    return AlreadyExists(
        "{} has an authority already: name another --dir, or remove ca.pem and "
        "ca.key from it, with which all of its certificates lose their worth",
        asked.folder);
  }
  const tls::Period period = PeriodOf(context, asked.days > 0 ? asked.days : 3650);
  MUSTER_TRY_ASSIGN(const tls::Issued made, tls::MakeAuthority(asked.name, period));
  MUSTER_TRY(Store(context, "ca", made));
  context.terminal.out << fmt::format(
      "authority \"{}\" until {}\n  {}  give it to every host (--tls-ca)\n  {}  keep it to "
      "yourself: who has it is the cluster\n",
      asked.name, UtcText(period.until), InFolder(context, "ca.pem"), InFolder(context, "ca.key"));
  return Ok();
}

Status IssueOne(const Context& context) {
  const Options::Certs& asked = context.options.certs;
  MUSTER_TRY_ASSIGN(const tls::Holder holder, HolderOf(asked));
  if (holder.role == tls::Role::kNode && asked.hosts.empty()) {
    return InvalidArgument(
        "at which hosts will {} be reached? Give --host NAME-OR-ADDRESS, again "
        "for each",
        holder.ToString());
  }
  MUSTER_TRY_ASSIGN(const tls::Issued authority, LoadAuthority(context));
  MUSTER_TRY_ASSIGN(const tls::Period period, PeriodOfIssued(context, authority));
  MUSTER_TRY_ASSIGN(
      const tls::Issued made,
      tls::Issue(authority, {.holder = holder, .hosts = asked.hosts, .period = period}));
  const std::string name = asked.name.empty() ? FileNameOf(holder) : asked.name;
  MUSTER_TRY_ASSIGN([[maybe_unused]] const FolderLock lock, Lock(asked.folder));
  MUSTER_TRY(CheckName(context, name, holder));
  MUSTER_TRY(AddToList(context, made, holder, period));
  MUSTER_TRY(Store(context, name, made));
  context.terminal.out << fmt::format(
      "{} until {}\n  {}  (--tls-cert)\n  {}  (--tls-key)\n  {}  has its line (--tls-allowed)\n",
      holder.ToString(), UtcText(period.until), InFolder(context, name + ".pem"),
      InFolder(context, name + ".key"), ListOf(context));
  return Ok();
}

Result<tls::X509Ptr> LoadCertificate(const std::string& path) {
  MUSTER_TRY_ASSIGN(const std::string pem, ReadHere(path));
  return tls::ParseCertificate(pem, path);
}

// What of the list is of whom the command names. A holder weighs more than a file that has its
// name by chance: that one is not even read.
Result<std::string> TakeOff(const Context& context, std::vector<AllowedLine>& lines) {
  const std::string& named = context.options.certs.file;
  std::string who = named;
  std::error_code none;
  if (fs::is_regular_file(named, none)) {
    if (std::ranges::any_of(lines, [&](const auto& line) { return IsOf(line, named); })) {
      context.terminal.err << fmt::format(
          "{} is taken for a holder, not for the file of this name: give that one as ./{}\n", named,
          named);
    } else {
      MUSTER_TRY_ASSIGN(const tls::X509Ptr certificate, LoadCertificate(named));
      who = tls::FingerprintOf(*certificate);
    }
  }
  std::string gone;
  for (const AllowedLine& line : lines) {
    if (IsOf(line, who)) gone += "  " + line.text + "\n";
  }
  std::erase_if(lines, [&](const AllowedLine& line) { return IsOf(line, who); });
  if (!gone.empty()) return gone;
  return NotFound(
      "{} has no line of \"{}\": give a holder (ana, ps:1), a certificate's file, or {} or more "
      "digits of its fingerprint",
      ListOf(context), named, kShortest);
}

// Its lines leave the list, which is read and replaced under one lock.
Status RevokeOne(const Context& context) {
  MUSTER_TRY_ASSIGN([[maybe_unused]] const FolderLock lock, Lock(context.options.certs.folder));
  MUSTER_TRY_ASSIGN(std::vector<AllowedLine> lines, ReadList(context));
  MUSTER_TRY_ASSIGN(const std::string gone, TakeOff(context, lines));
  MUSTER_TRY(WriteList(context, lines));
  context.terminal.out << fmt::format(
      "taken off the list {}:\n{}Where another copy is in use (tls-allowed), put this one in "
      "place: it is read within a second.\n",
      ListOf(context), gone);
  return Ok();
}

// One that is not valid is shown all the same. With -o json the error then stands in the one
// document.
ExitCode Show(const Context& context) {
  const std::string& path = context.options.certs.file;
  const Result<tls::X509Ptr> loaded = LoadCertificate(path);
  if (!loaded.ok()) return Fail(context, loaded.status());
  const tls::X509Ptr& certificate = *loaded;
  const auto holder = tls::HolderOf(*certificate);
  const std::string who =
      holder.ok() ? holder->ToString() : tls::SubjectOf(*certificate) + " (no role)";
  const tls::Period period = tls::PeriodOf(*certificate);
  const auto now = context.clock.WallNow();
  const Status valid = tls::CheckPeriod(*certificate, now, path);
  const std::vector<std::string> hosts = tls::HostsOf(*certificate);
  if (context.options.output == Output::kJson) {
    nlohmann::json json{{"holder", who},
                        {"fingerprint", tls::FingerprintOf(*certificate)},
                        {"hosts", hosts},
                        {"issuer", tls::IssuerOf(*certificate)},
                        {"from", UtcText(period.from)},
                        {"until", UtcText(period.until)},
                        {"valid", valid.ok()}};
    if (!valid.ok()) json.update(nlohmann::json::parse(ErrorJson(valid)));
    // What stands in a certificate need not be UTF-8.
    context.terminal.out << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                         << "\n";
  } else {
    context.terminal.out << fmt::format(
        "holder  {}\nhosts   {}\nissuer  {}\nvalid   {} until {}\nsha256  {}\n", who,
        hosts.empty() ? "-" : fmt::format("{}", fmt::join(hosts, ", ")),
        tls::IssuerOf(*certificate), UtcText(period.from), UtcText(period.until),
        tls::FingerprintOf(*certificate));
  }
  if (!valid.ok()) {
    context.terminal.err << "error: " << Message(valid) << '\n';
    return CodeOf(valid);
  }
  if (period.until - now < kSoon) {
    context.terminal.err << fmt::format("warning: {} ends at {}\n", path, UtcText(period.until));
  }
  return ExitCode::kDone;
}

ExitCode Run(const Context& context, Status (*command)(const Context&)) {
  const Status status = command(context);
  return status.ok() ? ExitCode::kDone : Fail(context, status);
}

void AddFolder(CLI::App& command, Options& options) {
  command.add_option("--dir", options.certs.folder, "The authority's folder")
      ->check(CLI::Validator(CheckNotEmpty, ""))
      ->capture_default_str();
}

void AddDays(CLI::App& command, Options& options, int fallback) {
  command
      .add_option("--days", options.certs.days,
                  fmt::format("How long it is valid (default: {})", fallback))
      ->check(CLI::Range(1, kMostDays));
}

}  // namespace

ExitCode CertsInit(const Context& context) { return Run(context, Init); }
ExitCode CertsIssue(const Context& context) { return Run(context, IssueOne); }
ExitCode CertsRevoke(const Context& context) { return Run(context, RevokeOne); }
ExitCode CertsShow(const Context& context) { return Show(context); }

void AddCerts(CLI::App& app, Options& options) {
  Options::Certs& certs = options.certs;
  CLI::App* group =
      app.add_subcommand("certs", "Make certificates for a cluster's daemons and people");
  group->require_subcommand(1);
  CLI::App* init = group->add_subcommand("init", "Make an authority: ca.pem and ca.key");
  AddFolder(*init, options);
  init->add_option_function<std::string>(
      "--name", [&certs](const std::string& name) { certs.name = name; },
      "What it calls itself (default: muster authority)");
  init->callback([&certs] {
    if (certs.name.empty()) certs.name = "muster authority";
  });
  AddDays(*init, options, 3650);

  CLI::App* issue = group->add_subcommand("issue", "Issue a certificate and its key");
  AddFolder(*issue, options);
  issue->add_option("--node", certs.nodes, "A daemon's task, for example ps:0; again for each")
      ->type_name("TASK");
  issue->add_option("--submitter", certs.submitter, "Who submits and stops jobs")
      ->type_name("NAME");
  issue->add_option("--viewer", certs.viewer, "Who looks at jobs")->type_name("NAME");
  issue->add_option("--host", certs.hosts, "Name or address of a node's host; again for each")
      ->type_name("HOST");
  issue->add_option("--name", certs.name, "Of the files (default: the first task's, or NAME)");
  AddDays(*issue, options, 365);

  CLI::App* revoke = group->add_subcommand(
      "revoke", "Take certificates off the list of those that are let in (--dir/allowed)");
  AddFolder(*revoke, options);
  revoke->add_option("WHO", certs.file, "A holder (ana, ps:1), a certificate's file, a fingerprint")
      ->required()
      ->check(CLI::Validator(CheckNotEmpty, ""))
      ->type_name("");

  CLI::App* show = group->add_subcommand("show", "Print what a certificate says");
  show->add_option("FILE", certs.file, "The certificate, in PEM form")->required()->type_name("");
  show->add_option_function<std::string>(
          "-o,--output",
          [&options](const std::string& name) {
            options.output = name == "json" ? Output::kJson : Output::kTable;
          },
          "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("table|json");
}

}  // namespace muster::cli
