// The cluster's token: a secret in a file that only its owner can read. Every RPC carries it as
// metadata "authorization: Bearer <token>".
//
// Threading: a value; const calls from any thread.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster::services {

class Token {
 public:
  // Reads the first line. kPermissionDenied: the file is not ours alone (mode 0600 or 0400, owned
  // by this user; or root's, for a group of this user to read: a secret of Kubernetes, or a
  // systemd credential, in CREDENTIALS_DIRECTORY). kInvalidArgument: not a
  // regular file, shorter than 16 or longer than 4096 characters, or not printable. kNotFound: no
  // such file.
  static Result<Token> Read(const std::string& path);

  const std::string& value() const { return value_; }
  // "Bearer <token>".
  std::string Header() const { return "Bearer " + value_; }
  // Whether `header` is Header(), in a time that depends on its length alone.
  bool Accepts(std::string_view header) const;

 private:
  static Result<Token> FromFile(int fd, const std::string& path);
  explicit Token(std::string value) : value_(std::move(value)) {}
  std::string value_;
};

}  // namespace muster::services
