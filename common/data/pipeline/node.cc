#include "common/data/pipeline/node.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <xxhash.h>

#include "common/base/split_mix.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/nodes.h"
#include "common/process/no_more.h"

namespace muster::data {
namespace {

void Visit(const Node& node, int depth, const std::function<void(const Node&, int)>& see) {
  see(node, depth);
  for (const NodePtr& input : node.inputs()) Visit(*input, depth + 1, see);
}

}  // namespace

Item NodeIterator::NextBatch(std::int64_t rows) {
  std::vector<Element> elements;
  // Nobody's batch size may decide how much is reserved.
  elements.reserve(static_cast<std::size_t>(std::min<std::int64_t>(rows, 4096)));
  while (static_cast<std::int64_t>(elements.size()) < rows) {
    MUSTER_TRY_ASSIGN(std::optional<Element> element, Next());
    if (!element) break;
    elements.push_back(*std::move(element));
  }
  if (elements.empty()) return std::nullopt;
  MUSTER_TRY_ASSIGN(Element batch, Stack(elements));
  return batch;
}

Result<std::int64_t> NodeIterator::Skip(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    MUSTER_TRY_ASSIGN(const std::optional<Element> element, Next());
    if (!element) return i;
  }
  return count;
}

std::string ToText(const Node& node) {
  std::string text;
  Visit(node, 0, [&](const Node& one, int depth) {
    text.append(2 * static_cast<std::size_t>(depth), ' ');
    text += one.Describe() + one.Tuning() + "\n";
  });
  return text;
}

std::uint64_t Fingerprint(const Node& node) {
  std::string text;
  Visit(node, 0, [&](const Node& one, int) {
    if (one.kind() == NodeKind::kPrefetch || one.kind() == NodeKind::kOptions) return;
    text += fmt::format("{}/{}\n", one.Describe(), one.inputs().size());
  });
  return XXH3_64bits(text.data(), text.size());
}

std::vector<const Node*> DrawnNodes(const Node& node) {
  std::vector<const Node*> drawn;
  Visit(node, 0, [&](const Node& one, int) {
    if (one.drawn_seed()) drawn.push_back(&one);
  });
  return drawn;
}

std::uint64_t SeedOf(const Node& node, const IteratorContext& context) {
  if (context.seeds) {
    const auto found = context.seeds->find(&node);
    if (found != context.seeds->end()) return found->second;
  }
  return node.drawn_seed().value_or(0);
}

IteratorContext NestedContext(const IteratorContext& outer, const Node& inner, std::uint64_t base) {
  IteratorContext context = outer;
  const std::vector<const Node*> drawn = DrawnNodes(inner);
  auto seeds = std::make_shared<SeedTable>();
  for (std::size_t i = 0; i < drawn.size(); ++i) seeds->emplace(drawn[i], Mix(base + Mix(i)));
  context.seeds = std::move(seeds);
  return context;
}

std::uint64_t DrawSeed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// An exception would end the process where it is a thread of the pipeline that starts another.
Status StartThread(std::thread& thread, std::function<void()> work) {
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return process::NoMore(error.code().value(), "a thread that reads a dataset");
  }
  return Ok();
}

Status FromException(const std::exception& error, const std::string& where) {
  const std::string text = fmt::format("{}: {}", where, error.what());
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) {
    return InvalidArgument("{}", text);
  }
  if (dynamic_cast<const std::out_of_range*>(&error) != nullptr) return OutOfRange("{}", text);
  return Unknown("{}", text);
}

}  // namespace muster::data
