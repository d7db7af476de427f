// `muster-bench ps`: what a worker gets from a parameter server in another process, beside what the
// machine gives in the same run.
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/core_pass.h"
#include "bench/measure.h"
#include "bench/pin.h"
#include "bench/ps_peer.h"
#include "bench/ps_program_bench.h"
#include "bench/subcommands.h"
#include "ps/apply_pool.h"
#include "ps/client/ps_client.h"
#include "ps/job_shards.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kIdCounts[] = {512, 8192};

constexpr const char* kPsMethod =
    "One client thread in this process, one parameter server in another, one request at a time, on "
    "loopback. Each operation runs for a window of time in each of 5 rounds, all operations taking "
    "turns; a round's figure is its median operation; printed are median, least and most of the "
    "rounds. memcpy: one thread, between two warm buffers of the size. socket: the same bytes over "
    "a "
    "bare blocking TCP connection between the same two processes, at most 1 MiB an operation, into "
    "warm memory. apply: the server's own SGD or Adagrad in this process, without a link. pull: "
    "into "
    "the client's warm buffers, under the shard's lock. push: gradient in place, answered when it "
    "is "
    "applied. rows: 64 floats each, at random in a table of 200,000, ids drawn before the clock "
    "starts. "
    "read and write: the same of a program's variables, from and to memory of the caller's; a "
    "write "
    "set holds one gradient; copy_and_apply: memcpy and apply, added. view: a read that is lent "
    "where "
    "the server has put it, and not copied. 64 reads: as many variables of 4 KB in one call. "
    "GB/s: payload bytes per second (1e9). ratio: this median over the reference's median of the "
    "same "
    "run; tcp (of tls): the same over TCP in the clear; in_series: the reference is the time of a "
    "bare socket's transfer and a bare apply, "
    "added.";

struct PsOptions {
  std::string link = "both";
  int window_ms = 40;
  std::string spin = "adaptive";
  bool pin = false;
};

// The next closure of each variable. All sides push to the same shards, and a closure is applied
// once.
struct Closures {
  std::vector<std::uint64_t> dense = std::vector<std::uint64_t>(std::size(kDense), 1);
  std::uint64_t rows = 1;
};

// Pulls and pushes of one client over one kind of link.
class Side {
 public:
  static Result<std::unique_ptr<Side>> Open(const Peer& peer, const std::string& name,
                                            ps::LinkMode link, net::SpinMode spin,
                                            Closures& closures) {
    std::unique_ptr<Side> side(new Side(closures));
    ps::PsClient::Options options;
    const bool tls = name == "tls";
    if (tls) options.tls = peer.tls();
    options.link = link;
    options.host_id = peer.host_id();
    options.spin = spin;
    v1::JobPlan dense = DensePlan();
    v1::JobPlan rows = RowsPlan();
    peer.Complete(dense, tls);
    peer.Complete(rows, tls);
    options.key = net::JobKey(peer.token(), dense.job_id(), Epoch());
    MUSTER_TRY_ASSIGN(side->dense_, ps::PsClient::Connect(dense, options));
    options.key = net::JobKey(peer.token(), rows.job_id(), Epoch());
    MUSTER_TRY_ASSIGN(side->rows_, ps::PsClient::Connect(rows, options));
    return side;
  }

  Status Pull(std::uint32_t variable) { return dense_->PullDense(std::span(&variable, 1)); }
  Status Push(std::uint32_t variable) {
    return dense_->Push(ClosureId(closures_.dense[variable]++), Attempt(1), std::span(&variable, 1),
                        {});
  }
  Status PullRows(std::span<const std::int64_t> ids) { return rows_->PullRows(0, ids).status(); }
  Status PushRows(std::span<const std::int64_t> ids) {
    MUSTER_TRY_ASSIGN(const auto buffer, rows_->RowGradientBuffer(0, ids.size()));
    const ps::RowGradient gradient{.variable = 0, .ids = ids, .rows = buffer};
    return rows_->Push(ClosureId(closures_.rows++), Attempt(1), {}, std::span(&gradient, 1));
  }
  // Something else than zeros, which a processor may treat better.
  Status FillGradients() {
    for (std::uint32_t v = 0; v < std::size(kDense); ++v) {
      for (float& g : dense_->Gradient(v)) g = 1e-3F;
    }
    MUSTER_TRY_ASSIGN(const auto buffer, rows_->RowGradientBuffer(0, kIdCounts[1]));
    for (float& g : buffer) g = 1e-3F;
    return Ok();
  }
  ps::LinkBytes bytes() const {
    const ps::LinkBytes a = dense_->bytes();
    const ps::LinkBytes b = rows_->bytes();
    return {.tcp = a.tcp + b.tcp, .local = a.local + b.local};
  }

 private:
  explicit Side(Closures& closures) : closures_(closures) {}
  Closures& closures_;
  std::unique_ptr<ps::PsClient> dense_;
  std::unique_ptr<ps::PsClient> rows_;
};

// The apply of the server's own code, here, without a link.
class BareApply {
 public:
  static Result<std::unique_ptr<BareApply>> Create() {
    std::unique_ptr<BareApply> made(new BareApply);
    MUSTER_TRY_ASSIGN(made->dense_, ps::JobShards::Create(DensePlan(), 0, "", made->pool_));
    MUSTER_TRY_ASSIGN(made->rows_, ps::JobShards::Create(RowsPlan(), 0, "", made->pool_));
    made->gradient_.assign(static_cast<std::size_t>(kDense[std::size(kDense) - 1].floats), 1e-3F);
    made->copy_ = made->gradient_;
    made->closures_.assign(std::size(kDense) + 1, 1);
    return made;
  }

  Status Dense(std::uint32_t variable) {
    const auto n = static_cast<std::size_t>(kDense[variable].floats);
    const ps::PushId id{.closure = ClosureId(closures_[variable]++), .attempt = Attempt(1)};
    return dense_->ApplyDense(variable, id, std::span(gradient_).first(n)).status();
  }
  Status Rows(std::span<const std::int64_t> ids) {
    const ps::PushId id{.closure = ClosureId(closures_.back()++), .attempt = Attempt(1)};
    const auto floats = ids.size() * static_cast<std::size_t>(kRowFloats);
    return rows_->ApplyRows(0, id, ids, std::span(gradient_).first(floats)).status();
  }
  Status ReadRows(std::span<const std::int64_t> ids) {
    const auto floats = ids.size() * static_cast<std::size_t>(kRowFloats);
    return rows_->ReadRows(0, ids, std::span(copy_).first(floats)).status();
  }
  Status Memcpy(std::uint32_t variable) {
    const auto bytes = static_cast<std::size_t>(kDense[variable].floats) * sizeof(float);
    std::memcpy(copy_.data(), gradient_.data(), bytes);
    // The copy is used, whatever the compiler thinks.
    asm volatile("" : : "r"(copy_.data()) : "memory");
    return Ok();
  }
  std::span<std::byte> buffer(std::uint32_t variable) {
    const auto n = static_cast<std::size_t>(kDense[variable].floats);
    return std::as_writable_bytes(std::span(copy_).first(n));
  }

 private:
  BareApply() = default;
  ps::ApplyPool pool_{1};
  std::shared_ptr<ps::JobShards> dense_;
  std::shared_ptr<ps::JobShards> rows_;
  std::vector<float> gradient_;
  std::vector<float> copy_;
  std::vector<std::uint64_t> closures_;
};

std::vector<std::int64_t> RandomIds(std::size_t n) {
  std::mt19937_64 random(n);
  std::uniform_int_distribution<std::int64_t> pick(0, kTableRows - 1);
  std::set<std::int64_t> unique;
  while (unique.size() < n) unique.insert(pick(random));
  std::vector<std::int64_t> ids(unique.begin(), unique.end());
  std::ranges::shuffle(ids, random);
  return ids;
}

std::string RowsName(std::size_t n) { return fmt::format("{} rows", n); }

class Report {
 public:
  explicit Report(const Measurements& measured) : measured_(measured) {}

  // `amount` per second, in units of `scale`; against a reference operation that moves the same.
  void Rate(const std::string& name, const std::string& unit, double amount, double scale,
            const std::vector<std::pair<std::string, std::vector<std::string>>>& references) {
    const Spread seconds = measured_.Seconds(name);
    const auto rate = [&](double s) { return Round(amount / s / scale); };
    Json figure = {{"name", name},
                   {"unit", unit},
                   {"median", rate(seconds.median)},
                   {"least", rate(seconds.most)},
                   {"most", rate(seconds.least)}};
    AddRatios(figure, seconds.median, references);
    figures_.push_back(std::move(figure));
  }

  void Latency(const std::string& name,
               const std::vector<std::pair<std::string, std::vector<std::string>>>& references) {
    const Spread seconds = measured_.Seconds(name);
    Json figure = {{"name", name},
                   {"unit", "us"},
                   {"median", Round(seconds.median * 1e6)},
                   {"least", Round(seconds.least * 1e6)},
                   {"most", Round(seconds.most * 1e6)}};
    AddRatios(figure, seconds.median, references);
    figures_.push_back(std::move(figure));
  }

  Json figures() && { return std::move(figures_); }

 private:
  static double Round(double value) { return std::round(value * 1000) / 1000; }

  void AddRatios(Json& figure, double seconds,
                 const std::vector<std::pair<std::string, std::vector<std::string>>>& references) {
    for (const auto& [name, parts] : references) {
      double reference = 0;
      for (const std::string& part : parts) reference += measured_.Seconds(part).median;
      if (reference == 0) continue;  // not measured at this size
      figure["ratio"][name] = Round(reference / seconds);
    }
  }

  const Measurements& measured_;
  Json figures_ = Json::array();
};

// The sizes of a program's variables that are measured, and those that are passed between cores.
constexpr std::array<std::size_t, 4> kReadSizes = {0, 1, 2, 3};
constexpr std::array<std::size_t, 2> kWriteSizes = {2, 3};
constexpr std::array<std::size_t, 3> kPassSizes = {1, 2, 3};

std::size_t BytesOf(std::size_t variable) {
  return static_cast<std::size_t>(kDense[variable].floats) * sizeof(float);
}
std::string PassName(std::size_t variable) { return std::string("pass ") + kDense[variable].name; }

void AddBaselines(Measurements& all, BareApply& bare, Peer& peer,
                  const std::map<std::size_t, std::vector<std::int64_t>>& ids) {
  for (std::uint32_t v = 0; v < std::size(kDense); ++v) {
    const std::string size = kDense[v].name;
    all.Add("memcpy " + size, [&bare, v] { return bare.Memcpy(v); });
    all.Add("apply " + size, [&bare, v] { return bare.Dense(v); });
    all.Add("socket pull " + size, [&bare, &peer, v] { return peer.BarePull(bare.buffer(v)); });
    all.Add("socket push " + size, [&bare, &peer, v] { return peer.BarePush(bare.buffer(v)); });
  }
  for (const auto& [n, list] : ids) {
    all.Add("read " + RowsName(n), [&bare, &l = list] { return bare.ReadRows(l); });
    all.Add("apply " + RowsName(n), [&bare, &l = list] { return bare.Rows(l); });
  }
}

void AddSide(Measurements& all, Side& side, const std::string& link,
             const std::map<std::size_t, std::vector<std::int64_t>>& ids) {
  for (std::uint32_t v = 0; v < std::size(kDense); ++v) {
    const std::string size = kDense[v].name;
    all.Add(link + " pull " + size, [&side, v] { return side.Pull(v); });
    all.Add(link + " push+apply " + size, [&side, v] { return side.Push(v); });
  }
  for (const auto& [n, list] : ids) {
    all.Add(link + " pull " + RowsName(n), [&side, &l = list] { return side.PullRows(l); });
    all.Add(link + " push+apply " + RowsName(n), [&side, &l = list] { return side.PushRows(l); });
  }
}

void AddProgram(Measurements& all, ProgramSide& side, const std::string& link) {
  for (const std::size_t v : kReadSizes) {
    all.Add(link + " read " + kDense[v].name, [&side, v] { return side.Read(v); });
    all.Add(link + " view " + kDense[v].name, [&side, v] { return side.View(v); });
  }
  for (const std::size_t v : kWriteSizes) {
    all.Add(link + " write+apply " + kDense[v].name, [&side, v] { return side.Write(v); });
  }
  all.Add(link + " 64 reads", [&side] { return side.ReadMany(); });
}

void ReportProgram(Report& report, const std::string& link) {
  for (const std::string how : {" read ", " view "}) {
    report.Latency(link + how + "4 KB", {{"pull", {link + " pull 4 KB"}}});
    for (const std::size_t v : kReadSizes) {
      const std::string size = kDense[v].name;
      const double bytes = static_cast<double>(kDense[v].floats) * sizeof(float);
      report.Rate(link + how + size, "GB/s", bytes, 1e9,
                  {{"memcpy", {"memcpy " + size}},
                   {"pass", {PassName(v)}},
                   {"pull", {link + " pull " + size}}});
    }
  }
  for (const std::size_t v : kWriteSizes) {
    const std::string size = kDense[v].name;
    const double bytes = static_cast<double>(kDense[v].floats) * sizeof(float);
    report.Rate(link + " write+apply " + size, "GB/s", bytes, 1e9,
                {{"apply", {"apply " + size}},
                 {"pass_and_apply", {PassName(v), "apply " + size}},
                 {"push", {link + " push+apply " + size}}});
  }
  report.Rate(link + " 64 reads", "M reads/s", static_cast<double>(ProgramSide::kInFlight), 1e6,
              {});
}

void ReportBaselines(Report& report) {
  for (const DenseVariable& variable : kDense) {
    const std::string size = variable.name;
    const double bytes = static_cast<double>(variable.floats) * sizeof(float);
    for (const char* what : {"memcpy ", "apply ", "socket pull ", "socket push "}) {
      report.Rate(what + size, "GB/s", bytes, 1e9, {});
    }
  }
  for (const std::size_t v : kPassSizes) {
    report.Rate(PassName(v), "GB/s", static_cast<double>(BytesOf(v)), 1e9, {});
  }
  for (const std::size_t n : kIdCounts) {
    for (const char* what : {"read ", "apply "}) {
      report.Rate(what + RowsName(n), "M rows/s", static_cast<double>(n), 1e6, {});
    }
  }
}

void ReportSide(Report& report, const std::string& link) {
  using References = std::vector<std::pair<std::string, std::vector<std::string>>>;
  const auto beside = [&link](References references, const std::string& what) {
    if (link == "tls") references.push_back({"tcp", {"tcp " + what}});
    return references;
  };
  report.Latency(link + " pull 4 KB", beside({{"socket", {"socket pull 4 KB"}}}, "pull 4 KB"));
  for (const DenseVariable& variable : kDense) {
    const std::string size = variable.name;
    const double bytes = static_cast<double>(variable.floats) * sizeof(float);
    report.Rate(link + " pull " + size, "GB/s", bytes, 1e9,
                beside({{"memcpy", {"memcpy " + size}}, {"socket", {"socket pull " + size}}},
                       "pull " + size));
    report.Rate(link + " push+apply " + size, "GB/s", bytes, 1e9,
                beside({{"apply", {"apply " + size}},
                        {"in_series", {"socket push " + size, "apply " + size}}},
                       "push+apply " + size));
  }
  for (const std::size_t n : kIdCounts) {
    report.Rate(link + " pull " + RowsName(n), "M rows/s", static_cast<double>(n), 1e6,
                beside({{"read", {"read " + RowsName(n)}}}, "pull " + RowsName(n)));
    report.Rate(link + " push+apply " + RowsName(n), "M rows/s", static_cast<double>(n), 1e6,
                beside({{"apply", {"apply " + RowsName(n)}}}, "push+apply " + RowsName(n)));
  }
}

// TLS is compared with TCP in the clear, in the same run.
bool IsWanted(const std::string& option, const std::string& link) {
  if (option == "all" || option == link) return true;
  return option == "both" ? link != "tls" : option == "tls" && link == "tcp";
}

// Starts the other process, has all operations take turns, and puts the figures together.
Result<Json> MeasurePs(const PsOptions& options) {
  const std::map<std::string, net::SpinMode> spins = {{"off", net::SpinMode::kOff},
                                                      {"adaptive", net::SpinMode::kAdaptive},
                                                      {"always", net::SpinMode::kAlways}};
  const net::SpinMode spin = spins.at(options.spin);
  MUSTER_TRY_ASSIGN(const auto peer, Peer::Start(options.pin));
  MUSTER_TRY_ASSIGN(const auto pass, CorePass::Create(BytesOf(kPassSizes.back()), options.pin));
  if (options.pin) MUSTER_TRY(PinTo(0));
  MUSTER_TRY_ASSIGN(const auto bare, BareApply::Create());
  std::map<std::size_t, std::vector<std::int64_t>> ids;
  for (const std::size_t n : kIdCounts) ids[n] = RandomIds(n);

  Measurements all;
  AddBaselines(all, *bare, *peer, ids);
  for (const std::size_t v : kPassSizes) {
    all.Add(PassName(v), [&pass, v] { return pass->Pass(BytesOf(v)); });
  }
  std::map<std::string, std::unique_ptr<Side>> sides;
  std::map<std::string, std::unique_ptr<ProgramSide>> programs;
  const std::map<std::string, ps::LinkMode> links = {
      {"local", ps::LinkMode::kLocal}, {"tcp", ps::LinkMode::kTcp}, {"tls", ps::LinkMode::kTcp}};
  Closures closures;
  for (const auto& [name, mode] : links) {
    if (!IsWanted(options.link, name)) continue;
    MUSTER_TRY_ASSIGN(sides[name], Side::Open(*peer, name, mode, spin, closures));
    MUSTER_TRY(sides[name]->FillGradients());
    AddSide(all, *sides[name], name, ids);
    MUSTER_TRY_ASSIGN(programs[name], ProgramSide::Open(*peer, name, mode, spin));
    AddProgram(all, *programs[name], name);
  }
  MUSTER_TRY(all.Run(Millis(options.window_ms)));

  Report report(all);
  ReportBaselines(report);
  Json bytes;
  for (const auto& [name, side] : sides) {
    ReportSide(report, name);
    ReportProgram(report, name);
    bytes[name] = {{"tcp", side->bytes().tcp}, {"local", side->bytes().local}};
  }
  return Json{{"benchmark", "ps"},
              {"cores", std::thread::hardware_concurrency()},
              {"link", options.link},
              {"spin", options.spin},
              {"pinned", options.pin},
              {"rounds", kRounds},
              {"window_ms", options.window_ms},
              {"figures", std::move(report).figures()},
              {"bytes_by_link", std::move(bytes)},
              {"method", kPsMethod}};
}

}  // namespace

int RunPs(int argc, char** argv) {
  PsOptions options;
  CLI::App app("Parameter server: pull, push and rows, by link");
  app.add_option("--link", options.link, "local, tcp, both of these, tls (tcp beside it) or all")
      ->check(CLI::IsMember({"local", "tcp", "both", "tls", "all"}))
      ->capture_default_str();
  app.add_option("--spin", options.spin, "off, adaptive or always: the client's waiting")
      ->check(CLI::IsMember({"off", "adaptive", "always"}))
      ->capture_default_str();
  app.add_flag("--pin", options.pin,
               "client and server keep to a processor each: on a busy machine the kernel puts both "
               "on one, and a wait becomes a switch between them");
  app.add_option("--window-ms", options.window_ms, "time for one operation in one round")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Result<Json> result = MeasurePs(options);
  if (!result.ok()) {
    std::fprintf(stderr, "muster-bench: %s\n", ToString(result.status()).c_str());
    return 1;
  }
  std::printf("%s\n", result->dump(2).c_str());
  return 0;
}

}  // namespace muster::bench
