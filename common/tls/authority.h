// A small authority for clusters that have none: makes its own certificate, and issues those of
// daemons and people. Keys are EC P-256.
//
// Threading: any thread; functions that take a folder are for one process at a time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tls/certificate.h"

namespace muster::tls {

// Both in PEM form.
struct Issued {
  std::string certificate;
  std::string key;
};

struct Wish {
  Holder holder;
  // Names and numeric addresses that the holder is reached at.
  std::vector<std::string> hosts = {};
  Period period;
};

// A certificate that may issue others. `name` is for people, who see 64 bytes of it.
//   kInvalidArgument: a name that is not UTF-8, a period that ends before it begins.
Result<Issued> MakeAuthority(const std::string& name, const Period& period);

//   kInvalidArgument: a task that is none, a host's name that is none, a period that ends before it
//   begins; the authority is unreadable, or its key is another one's.
Result<Issued> Issue(const Issued& authority, const Wish& wish);

}  // namespace muster::tls
