// A folder of its own for each test case, and files in it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "common/data/batch_source.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::data::testing {

class TempFiles {
 public:
  std::string Path(std::string_view name) const { return folder_ / std::string(name); }
  std::string CacheDirectory() const { return Path("cache"); }

  std::string Write(std::string_view name, std::string_view content) const {
    return folder_.Write(std::string(name), std::string(content));
  }

  // Options for `batch_size` over the cache in this folder.
  BatchSource::Options Options(std::uint32_t batch_size, std::uint64_t seed = 1) const {
    return {.cache_directory = CacheDirectory(), .seed = seed, .batch_size = batch_size};
  }

 private:
  const muster::testing::TempFolder folder_;
};

inline std::string Gzip(std::string_view content) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, content.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

inline std::string Zstd(std::string_view content) {
  std::string out(ZSTD_compressBound(content.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 3));
  return out;
}

// An IDX file with the given type byte and dimensions; `values` are the bytes after the header.
inline std::string Idx(char type, const std::vector<std::uint32_t>& sizes,
                       std::string_view values) {
  std::string out = {'\0', '\0', type, static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(size >> shift));
  }
  return out.append(values);
}

// Opens, and fails the test with the error if that fails.
inline std::unique_ptr<BatchSource> MustOpen(const v1::DataSpec& spec,
                                             BatchSource::Options options) {
  auto source = BatchSource::Open(spec, std::move(options));
  INFO(ToString(source.status()));
  REQUIRE(source.ok());
  return *std::move(source);
}

// "CODE: message" of opening it, "OK" when that works.
inline std::string OpenError(const v1::DataSpec& spec, const TempFiles& files) {
  return ToString(BatchSource::Open(spec, files.Options(2)).status());
}

inline bool Contains(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return true;
  UNSCOPED_INFO("\"" << text << "\" does not contain \"" << part << '"');
  return false;
}

// The values of a column of the batch of `closure`.
template <class T>
std::vector<T> Values(BatchSource& source, std::uint64_t closure, std::string_view name) {
  const auto batch = source.Batch(closure);
  INFO(ToString(batch.status()));
  REQUIRE(batch.ok());
  const Column* const column = batch->Find(name);
  REQUIRE(column != nullptr);
  return {column->as<T>(), column->as<T>() + column->elements()};
}

// `count` records of int32, the values 0, 1, 2...
inline std::string IdxNumbers(std::uint32_t count, std::uint32_t first = 0) {
  std::string values;
  for (std::uint32_t i = first; i < first + count; ++i) {
    for (int shift = 24; shift >= 0; shift -= 8) values.push_back(static_cast<char>(i >> shift));
  }
  return Idx(0x0C, {count}, values);
}

}  // namespace muster::data::testing
