// The files of a process's certificate as settings say them.
//
// Threading: any thread.
#pragma once

#include <vector>

#include "common/config/settings.h"
#include "common/tls/context.h"

namespace muster::services {

// tls-ca, tls-cert, tls-key, tls-allowed.
std::vector<config::Setting> TlsSettings();
tls::Files TlsFilesOf(const config::Values& values);

}  // namespace muster::services
