#include "cli/upload.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include <fmt/core.h>

#include "common/base/byte_count.h"
#include "common/rpc/transfer.h"
#include "common/storage/sha256.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

// Who names a file that they may not read has made a mistake: that is no question of a token.
Status CannotOpen(int error, const std::string& path) {
  const Status status = FromErrno(error, "open " + path);
  if (status.code() != StatusCode::kPermissionDenied) return status;
  return InvalidArgument("{}", Message(status));
}

// Reads a file piece by piece; an empty piece is its end.
class PieceReader {
 public:
  static Result<PieceReader> Open(const std::string& path) {
    PieceReader reader(path);
    if (!reader.stream_) return CannotOpen(errno, path);
    return reader;
  }

  Result<std::string> Next() {
    std::string piece(rpc::kPieceBytes, '\0');
    stream_.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (stream_.bad()) return FromErrno(errno, "read " + path_);
    piece.resize(static_cast<std::size_t>(stream_.gcount()));
    return piece;
  }

 private:
  explicit PieceReader(const std::string& path) : path_(path), stream_(path, std::ios::binary) {}
  std::string path_;
  std::ifstream stream_;
};

// `what` begins the messages: "model.archive".
Status CheckFile(const std::string& what, const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return InvalidArgument("{}: {} is no file", what, path);
  }
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) return InvalidArgument("{}: {}: {}", what, path, error.message());
  if (bytes > kMostFileBytes) {
    return ResourceExhausted("{}: {} has {}; at most {}", what, path, ByteCount(bytes),
                             ByteCount(kMostFileBytes));
  }
  return Ok();
}

// Sends it unless the coordinator has it; its SHA-256.
Result<std::string> Send(const Terminal& terminal, JobApi& api, const std::string& path) {
  MUSTER_TRY_ASSIGN(std::string sha256, Sha256OfFile(path));
  v1::HasFileRequest request;
  request.set_sha256(sha256);
  MUSTER_TRY_ASSIGN(const v1::HasFileReply has, api.HasFile(request));
  if (has.present()) return sha256;

  MUSTER_TRY_ASSIGN(PieceReader reader, PieceReader::Open(path));
  std::error_code unknown;
  const std::uintmax_t size = fs::file_size(path, unknown);
  const auto reply = api.Upload(sha256, unknown ? 0 : size, [&reader] { return reader.Next(); });
  if (reply.status().code() == StatusCode::kDataLoss) {
    return Aborted("{} changed while it was sent; try again", path);
  }
  if (!reply.ok()) return Annotate(reply.status(), "send " + path);
  terminal.err << fmt::format("sent {} ({})\n", path, ByteCount(reply->bytes()));
  return sha256;
}

}  // namespace

Result<std::string> Sha256OfFile(const std::string& path) {
  storage::Sha256 hash;
  MUSTER_TRY_ASSIGN(PieceReader reader, PieceReader::Open(path));
  while (true) {
    MUSTER_TRY_ASSIGN(const std::string piece, reader.Next());
    if (piece.empty()) break;
    hash.Add(piece);
  }
  return hash.Hex();
}

Status UploadArchive(const Terminal& terminal, JobApi& api, v1::JobSpec& spec) {
  const std::string& path = spec.model().archive();
  MUSTER_TRY(CheckFile("model.archive", path));
  MUSTER_TRY_ASSIGN(const std::string sha256, Send(terminal, api, path));
  spec.mutable_model()->set_archive_sha256(sha256);
  return Ok();
}

Result<std::string> UploadFile(const Terminal& terminal, JobApi& api, const std::string& what,
                               const std::string& path) {
  MUSTER_TRY(CheckFile(what, path));
  return Send(terminal, api, path);
}

Status UploadProgram(const Terminal& terminal, JobApi& api, const std::string& path,
                     v1::JobSpec& spec) {
  MUSTER_TRY_ASSIGN(const std::string sha256, UploadFile(terminal, api, "the program", path));
  spec.mutable_program()->set_sha256(sha256);
  return Ok();
}

}  // namespace muster::cli
