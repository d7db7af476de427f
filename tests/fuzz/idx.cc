// IDX files, plain or compressed: header, sizes, values.
#include <filesystem>
#include <fstream>

#include "common/data/cache.h"
#include "common/data/open_reader.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_folder.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  static const testing::TempFolder folder;
  const std::string file = folder / "input.idx";
  const std::string cached = folder / "cache";
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto cache = data::Cache::Open({.directory = cached, .limit_bytes = 1 << 20});
  fuzz::Require(cache.ok(), "a cache can be opened");

  v1::DataSpec spec;
  (*spec.mutable_idx()->mutable_columns())["x"].add_files(file);
  const auto reader = data::OpenReader(spec, *cache);
  if (reader.ok() && (*reader)->records() > 0) {
    const std::uint64_t last = (*reader)->records() - 1;
    (void)(*reader)->Read(std::array<std::uint64_t, 2>{0, last});
  }
  std::filesystem::remove_all(cached);
  return 0;
}
