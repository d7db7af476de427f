#include "common/data/pipeline/iterator.h"

#include <condition_variable>
#include <cstring>
#include <thread>
#include <vector>

#include <xxhash.h>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/words.h"
#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

// magic, version, fingerprint, pass, taken, number of seeds, seeds, hash of all before; each 8
// bytes, little-endian.
constexpr std::uint64_t kMagic = 0x736f5072657473'4d;  // "MsterPos"
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kFixedWords = 6;

struct Place {
  std::uint64_t fingerprint = 0;
  std::uint64_t pass = 0;
  std::uint64_t taken = 0;
  std::vector<std::uint64_t> seeds;
};

void AppendWord(std::string& bytes, std::uint64_t word) {
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(word >> shift));
}

std::uint64_t WordAt(std::string_view bytes, std::size_t index) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    word |= std::uint64_t{static_cast<unsigned char>(bytes[8 * index + i])} << (8 * i);
  }
  return word;
}

std::string Encode(const Place& place) {
  std::string bytes;
  for (const std::uint64_t word : {kMagic, kVersion, place.fingerprint, place.pass, place.taken,
                                   std::uint64_t{place.seeds.size()}}) {
    AppendWord(bytes, word);
  }
  for (const std::uint64_t seed : place.seeds) AppendWord(bytes, seed);
  AppendWord(bytes, XXH3_64bits(bytes.data(), bytes.size()));
  return bytes;
}

Result<Place> Decode(std::string_view bytes) {
  const std::size_t words = bytes.size() / 8;
  if (bytes.size() % 8 != 0 || words < kFixedWords + 1 || WordAt(bytes, 0) != kMagic) {
    return InvalidArgument("{} that {} no position of an iterator", Counted(bytes.size(), "byte"),
                           Agreeing(bytes.size(), "is", "are"));
  }
  if (WordAt(bytes, 1) != kVersion) {
    return InvalidArgument("a position of version {}; this build reads {}", WordAt(bytes, 1),
                           kVersion);
  }
  const std::size_t hashed = 8 * (words - 1);
  if (WordAt(bytes, 5) != words - kFixedWords - 1 ||
      WordAt(bytes, words - 1) != XXH3_64bits(bytes.data(), hashed) ||
      static_cast<std::int64_t>(WordAt(bytes, 4)) < 0) {
    return InvalidArgument("the position of an iterator is damaged: {}",
                           Counted(bytes.size(), "byte"));
  }
  Place place{.fingerprint = WordAt(bytes, 2),
              .pass = WordAt(bytes, 3),
              .taken = WordAt(bytes, 4),
              .seeds = {}};
  for (std::size_t i = kFixedWords; i + 1 < words; ++i) place.seeds.push_back(WordAt(bytes, i));
  return place;
}

}  // namespace

// The consumer calls the pipeline itself until it asks with a deadline; from then on a thread does.
struct Iterator::State {
  explicit State(NodePtr graph) : node(std::move(graph)) {}
  ~State() {
    stop.request_stop();
    if (asker.joinable()) asker.join();
  }

  void Ask() {
    if (on_thread_start) on_thread_start();
    MutexLock lock(mutex);
    while (changed.wait(mutex, stop.get_token(),
                        [this]() MUSTER_REQUIRES(mutex) { return asked && !answer; })) {
      lock.unlock();
      Item item = root->Next();
      lock.lock();
      answer = std::move(item);
      changed.notify_all();
    }
  }

  // Nothing when the deadline passes first.
  std::optional<Item> Await(std::optional<std::chrono::steady_clock::time_point> deadline) {
    if (!asker.joinable()) {
      if (!deadline) return root->Next();
      if (const Status none = StartThread(asker, [this] { Ask(); }); !none.ok()) return Item(none);
    }
    const MutexLock lock(mutex);
    asked = true;
    changed.notify_all();
    const auto there = [this]() MUSTER_REQUIRES(mutex) { return answer.has_value(); };
    if (!deadline) {
      if (!changed.wait(mutex, stop.get_token(), there)) return Item(Stopped());
    } else if (!changed.wait_until(mutex, stop.get_token(), *deadline, there)) {
      if (stop.stop_requested()) return Item(Stopped());
      return std::nullopt;
    }
    Item item = *std::move(answer);
    answer.reset();
    asked = false;
    return item;
  }

  Item Next(std::optional<std::chrono::steady_clock::time_point> deadline) {
    if (stop.stop_requested()) return Stopped();
    if (!failure.ok()) return failure;
    if (over) return std::nullopt;
    std::optional<Item> item = Await(deadline);
    if (!item) return DeadlineExceeded("element {} of the dataset is not there yet", place.taken);
    if (!item->ok()) {
      failure = item->status();
    } else if (!(*item)->has_value()) {
      over = true;
    } else {
      ++place.taken;
    }
    return *std::move(item);
  }

  Status Seek(std::uint64_t taken) {
    if (asker.joinable()) {
      return FailedPrecondition("an iterator that was asked with a deadline goes on in order only");
    }
    if (taken < place.taken || over || !failure.ok()) {
      MUSTER_TRY_ASSIGN(root, node->MakeIterator(context));
      place.taken = 0;
      over = false;
      failure = Ok();
    }
    const auto passed = root->Skip(static_cast<std::int64_t>(taken - place.taken));
    if (!passed.ok()) return failure = passed.status();
    place.taken += static_cast<std::uint64_t>(*passed);
    over = place.taken < taken;
    return Ok();
  }

  static Status Stopped() { return Cancelled("the iterator was cancelled"); }

  const NodePtr node;
  std::stop_source stop;
  std::function<void()> on_thread_start;
  IteratorContext context;
  Place place;
  Status failure;
  bool over = false;
  std::unique_ptr<NodeIterator> root;

  Mutex mutex;
  std::condition_variable_any changed;
  bool asked MUSTER_GUARDED_BY(mutex) = false;
  std::optional<Item> answer MUSTER_GUARDED_BY(mutex);
  std::thread asker;  // the consumer's; ends before `root`
};

Iterator::Iterator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Iterator::~Iterator() = default;

// From the pass's beginning, or from a position: its seeds take the place of those that would be
// drawn, and what it had taken is skipped.
Result<std::unique_ptr<Iterator>> Iterator::Make(const Pipeline& pipeline, Options options) {
  MUSTER_TRY(pipeline.status());
  auto state = std::make_unique<State>(pipeline.node());
  const std::vector<const Node*> drawn = DrawnNodes(*state->node);
  const std::uint64_t fingerprint = Fingerprint(*state->node);
  if (options.position) {
    MUSTER_TRY_ASSIGN(state->place, Decode(*options.position));
    if (state->place.fingerprint != fingerprint || state->place.seeds.size() != drawn.size()) {
      return FailedPrecondition(
          "the position belongs to another pipeline (fingerprint {:016x}, this one has {:016x}): "
          "steps, their numbers and files must be as they were. This one is\n{}",
          state->place.fingerprint, fingerprint, ToText(*state->node));
    }
  } else {
    state->place = {.fingerprint = fingerprint, .pass = options.pass, .taken = 0, .seeds = {}};
    for (const Node* node : drawn) state->place.seeds.push_back(*node->drawn_seed());
  }
  auto seeds = std::make_shared<SeedTable>();
  for (std::size_t i = 0; i < drawn.size(); ++i) seeds->emplace(drawn[i], state->place.seeds[i]);
  state->on_thread_start = options.on_thread_start;
  state->context = {.stop = state->stop.get_token(),
                    .pass = state->place.pass,
                    .seeds = std::move(seeds),
                    .on_thread_start = std::move(options.on_thread_start)};
  MUSTER_TRY_ASSIGN(state->root, state->node->MakeIterator(state->context));
  if (state->place.taken > 0) {
    const auto taken = static_cast<std::int64_t>(state->place.taken);
    const Result<std::int64_t> skipped = state->root->Skip(taken);
    if (!skipped.ok()) return Annotate(skipped.status(), "going back to the position");
    if (*skipped != taken) {
      return DataLoss("the position is after element {}, but the data has only {}", taken,
                      *skipped);
    }
  }
  return std::unique_ptr<Iterator>(new Iterator(std::move(state)));
}

Item Iterator::Next() { return state_->Next(std::nullopt); }
Item Iterator::Next(std::chrono::steady_clock::time_point deadline) {
  return state_->Next(deadline);
}
Status Iterator::Seek(std::int64_t taken) {
  if (taken < 0) return InvalidArgument("element {} of a dataset: the first one is 0", taken);
  return state_->Seek(static_cast<std::uint64_t>(taken));
}
void Iterator::Cancel() { state_->stop.request_stop(); }
std::string Iterator::Position() const { return Encode(state_->place); }
std::int64_t Iterator::taken() const { return static_cast<std::int64_t>(state_->place.taken); }
std::uint64_t Iterator::pass() const { return state_->place.pass; }

bool WaitFor(const std::stop_token& stop, std::chrono::nanoseconds length) {
  Mutex mutex;
  std::condition_variable_any never;
  const auto now = std::chrono::steady_clock::now();
  // Somebody's "for ever" may be later than the clock goes.
  const auto until = length < TimePoint::max() - now ? now + length : TimePoint::max();
  const MutexLock lock(mutex);
  never.wait_until(mutex, stop, until, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace muster::data
