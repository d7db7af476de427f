#include "tests/cluster/jobs.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace muster::testing {
namespace {

constexpr int kColumns = 8;
constexpr float kStart = 3;

constexpr char kExample[] = "examples/fashion.yaml";
// Its strategy.
constexpr char kServers[] =
    "kind: parameter_server\n  # w1 is split over all parameter servers; the small ones are placed "
    "in turn.\n  partitioner: {kind: min_size, min_shard_bytes: 65536}";

// `where` is what the text is of, for the error.
void Replace(std::string& text, const std::string& where, const std::string& from,
             const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error(where + " has no " + from);
  text.replace(at, from.size(), to);
}

}  // namespace

std::string FashionJob(std::uint64_t steps, const std::string& more) {
  std::string text = ReadAll(fmt::format("{}/{}", MUSTER_SOURCE, kExample));
  Replace(text, kExample, "epochs: 5", fmt::format("steps: {}", steps));
  return text + more;
}

std::string FashionJobUnder(const std::string& strategy, std::uint64_t steps,
                            const std::string& more) {
  std::string text = FashionJob(steps, more);
  Replace(text, kExample, kServers, strategy);
  return text;
}

Work::Work(const TempFolder& folder, int products) : file_(folder / "work") { Set(products); }

// The file's name is a constant, and what it holds must not become one: the size is computed from
// the input.
std::string Work::Lines(const std::string& input) const {
  return fmt::format(R"(        one = 1 + int({}.flatten()[0] * 0)
        products = torch.ones([64, 64])
        for i in range(int(torch.from_file('{}', False, one).item())):
            products = torch.mm(products, products) / 64.0
        slow = products.sum() - products.sum()
)",
                     input, file_);
}

// Replaced whole: no step reads half of it.
void Work::Set(int products) const {
  const std::string staged = file_ + ".new";
  const auto value = static_cast<float>(products);
  std::ofstream(staged, std::ios::binary)
      .write(reinterpret_cast<const char*>(&value), sizeof value);
  if (std::rename(staged.c_str(), file_.c_str()) != 0) {
    throw std::runtime_error("cannot write " + file_);
  }
}

SumJob::SumJob(const TempFolder& folder, int rows, int batch, int epochs, int products,
               const std::string& more)
    : file(folder / "sums.yaml"), expected(kColumns, kStart), work(folder, products) {
  std::mt19937 random(7);
  std::string csv, columns, arguments;
  for (int i = 0; i < kColumns; ++i) {
    csv += fmt::format("{}x{}", i == 0 ? "" : ",", i);
    columns += fmt::format("      x{}: {{dtype: float32}}\n", i);
    arguments += fmt::format("{}x{}", i == 0 ? "" : ", ", i);
  }
  csv += '\n';
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < kColumns; ++i) {
      const int value = static_cast<int>(random() % 10);
      csv += fmt::format("{}{}", i == 0 ? "" : ",", value);
      expected[static_cast<std::size_t>(i)] -= static_cast<float>(value * epochs);
    }
    csv += '\n';
  }
  (void)folder.Write("sums.csv", csv);
  (void)folder.Write("sums.yaml",
                     fmt::format(R"(name: sums
model:
  parameters:
    w: {{shape: [{}], initializer: {{kind: constant, scale: {}}}}}
  forward: |
    def forward(self, {}):
        x = torch.stack([{}], 1)
{}        return (self.w * x).sum() + slow
data:
  csv:
    files: sums.csv
    columns:
{}loss:
  function: |
    def loss(output):
        return output
optimizer: {{kind: sgd, learning_rate: 1}}
batch_size: {}
epochs: {}
seed: 3
strategy:
  kind: parameter_server
  partitioner: {{kind: fixed, num_shards: 2}}
{})",
                                 kColumns, kStart, arguments, arguments,
                                 products == 0 ? "        slow = 0.0\n" : work.Lines("x"), columns,
                                 batch, epochs, more));
  steps =
      static_cast<std::uint64_t>((rows + batch - 1) / batch) * static_cast<std::uint64_t>(epochs);
}

void ReplaceInFile(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = ReadAll(path);
  Replace(text, path, from, to);
  std::ofstream(path, std::ios::binary) << text;
}

std::map<std::string, std::vector<float>> ReadSafetensors(const std::string& path) {
  const std::string bytes = ReadAll(path);
  std::uint64_t header = 0;
  if (bytes.size() < sizeof header) throw std::runtime_error(path + " is too short");
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto json = nlohmann::json::parse(bytes.substr(sizeof header, header));
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::vector<float> values((end - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + sizeof header + header + begin, end - begin);
    tensors[name] = std::move(values);
  }
  return tensors;
}

}  // namespace muster::testing
