#include "common/tls/allowed.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/whole_file.h"

namespace muster::tls {
namespace {

constexpr std::size_t kDigits = 64;

Result<std::set<std::string>> Load(const std::string& path) {
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return InvalidArgument("tls-allowed: {}", Message(text.status()));
  auto fingerprints = ParseAllowed(*text, path);
  // Whoever writes the file in place has emptied it first; and nobody means to shut out all, this
  // process too.
  if (fingerprints.ok() && fingerprints->empty()) {
    return InvalidArgument("tls-allowed: {}: holds no fingerprint (muster certs show prints them)",
                           path);
  }
  return fingerprints;
}

Status NotAllowed(const std::string& whose, const std::string& fingerprint,
                  const std::string& path) {
  return Unauthenticated(
      "the certificate of {} (fingerprint {}...) is not on the list {} (tls-allowed): it has been "
      "revoked, or its line is missing. Issue another one (muster certs issue) and put the list in "
      "place",
      whose, fingerprint.substr(0, 16), path);
}

}  // namespace

Result<std::set<std::string>> ParseAllowed(std::string_view text, const std::string& path) {
  std::set<std::string> fingerprints;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (one.find_first_not_of(" \t\r") == std::string_view::npos || one.front() == '#') continue;
    const std::size_t digits = std::min(one.find_first_of(" \t\r"), one.size());
    const bool good = digits == kDigits && std::ranges::all_of(one.substr(0, digits), [](char c) {
                        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                      });
    if (!good) {
      return InvalidArgument(
          "tls-allowed: {}:{}: must begin with a SHA-256 fingerprint of {} digits (muster certs "
          "show prints it), or with #",
          path, line, kDigits);
    }
    fingerprints.emplace(one.substr(0, digits));
  }
  return fingerprints;
}

Status CheckAllowed(const x509_st& certificate, const std::string& path) {
  MUSTER_TRY_ASSIGN(const auto fingerprints, Load(path));
  const std::string fingerprint = FingerprintOf(certificate);
  if (fingerprints.contains(fingerprint)) return Ok();
  return NotAllowed(WhoseOf(certificate), fingerprint, path);
}

Result<std::shared_ptr<Allowed>> Allowed::Open(std::string path, OnWarning on_warning) {
  std::shared_ptr<Allowed> made(new Allowed(std::move(path), std::move(on_warning)));
  {
    const MutexLock lock(made->mutex_);
    made->reload_ = Reload(StampOf(made->path_));
    MUSTER_TRY_ASSIGN(made->fingerprints_, Load(made->path_));
  }
  return made;
}

Allowed::~Allowed() = default;

void Allowed::Look() {
  const auto now = std::chrono::steady_clock::now();
  if (!reload_.Due(StampOf(path_), now)) return;
  auto loaded = Load(path_);
  if (loaded.ok()) {
    reload_.Succeeded();
    fingerprints_ = *std::move(loaded);
  } else if (reload_.Failed(loaded.status().code(), now) && on_warning_) {
    on_warning_(fmt::format("{}; the list from before stays in use", Message(loaded.status())));
  }
}

Status Allowed::Check(const std::string& fingerprint, const std::string& whose) {
  const MutexLock lock(mutex_);
  Look();
  if (fingerprints_.contains(fingerprint)) return Ok();
  return NotAllowed(whose, fingerprint, path_);
}

Status CheckAllowed(const x509_st& certificate, Allowed* list) {
  if (list == nullptr) return Ok();
  return list->Check(FingerprintOf(certificate), WhoseOf(certificate));
}

}  // namespace muster::tls
