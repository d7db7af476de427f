#include "common/data/decompress.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "common/base/host_name.h"
#include "common/base/words.h"

namespace muster::data {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

Status CutShort(std::string_view path, std::size_t size, std::string_view format) {
  return DataLoss("{} on host {}: cut short: its {} stream does not end within its {}", path,
                  HostName(), format, Counted(size, "byte"));
}

Status Damaged(std::string_view path, std::size_t offset, std::string_view format,
               std::string_view problem) {
  return DataLoss("{} on host {}: damaged {} stream near byte {}: {}", path, HostName(), format,
                  offset, problem);
}

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

Status Gunzip(std::span<const std::byte> input, std::string_view path, const ByteSink& sink) {
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) return ResourceExhausted("zlib: out of memory");
  const std::unique_ptr<z_stream, void (*)(z_stream*)> guard(&stream,
                                                             [](z_stream* s) { inflateEnd(s); });
  std::vector<std::byte> out(kPiece);
  std::size_t taken = 0;
  while (true) {
    const std::size_t left = input.size() - taken;
    const auto give =
        static_cast<uInt>(std::min<std::size_t>(left, std::numeric_limits<uInt>::max()));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data() + taken));
    stream.avail_in = give;
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    const int rc = inflate(&stream, Z_NO_FLUSH);
    taken += give - stream.avail_in;
    const std::size_t made = out.size() - stream.avail_out;
    if (made > 0) MUSTER_TRY(sink({out.data(), made}));
    if (rc == Z_STREAM_END) {
      // Another member may follow, or the padding that tape and block tools add.
      if (AllZero(input.subspan(taken))) return Ok();
      if (inflateReset(&stream) != Z_OK) return Internal("zlib: inflateReset");
      continue;
    }
    if (rc != Z_OK && rc != Z_BUF_ERROR) {
      return Damaged(path, taken, "gzip", stream.msg != nullptr ? stream.msg : "unknown");
    }
    if (taken == input.size() && made == 0) return CutShort(path, input.size(), "gzip");
  }
}

Status Unzstd(std::span<const std::byte> input, std::string_view path, const ByteSink& sink) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (stream == nullptr) return ResourceExhausted("zstd: out of memory");
  // Files of `zstd --long=31` too: of a window of 2 GiB only what the file fills is ever touched.
  const ZSTD_bounds window = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
  (void)ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, window.upperBound);
  std::vector<std::byte> out(kPiece);
  ZSTD_inBuffer in{input.data(), input.size(), 0};
  std::size_t hint = 1;  // 0 when a frame has just ended
  while (true) {
    ZSTD_outBuffer piece{out.data(), out.size(), 0};
    hint = ZSTD_decompressStream(stream.get(), &piece, &in);
    if (ZSTD_isError(hint) != 0 && ZSTD_getErrorCode(hint) == ZSTD_error_memory_allocation) {
      return ResourceExhausted(
          "{} on host {}: no memory for its zstd window (of zstd --long): compress it without "
          "--long",
          path, HostName());
    }
    if (ZSTD_isError(hint) != 0) return Damaged(path, in.pos, "zstd", ZSTD_getErrorName(hint));
    if (piece.pos > 0) MUSTER_TRY(sink({out.data(), piece.pos}));
    if (in.pos < in.size) continue;
    if (hint == 0) return Ok();
    if (piece.pos == 0) return CutShort(path, input.size(), "zstd");
  }
}

}  // namespace

Status Decompress(Compression compression, std::span<const std::byte> input, std::string_view path,
                  const ByteSink& sink) {
  switch (compression) {
    case Compression::kGzip:
      return Gunzip(input, path, sink);
    case Compression::kZstd:
      return Unzstd(input, path, sink);
    case Compression::kNone:
      break;
  }
  return sink(input);
}

}  // namespace muster::data
