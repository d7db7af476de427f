// The files of a process's certificate as settings say them, and as a child of ours is told them.
//
// Threading: any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "common/tls/context.h"

namespace muster::services {

// tls-ca, tls-cert, tls-key, tls-allowed.
std::vector<config::Setting> TlsSettings();
tls::Files TlsFilesOf(const config::Values& values);
// What tls::FilesFrom() reads. With absolute paths; nothing where there are no files.
std::map<std::string, std::string> TlsEnvironment(const tls::Files& files);

}  // namespace muster::services
