// `muster certs`: a small authority for clusters that have none. It works on files alone, and asks
// no cluster.
#pragma once

#include "cli/context.h"
#include "cli/options.h"

namespace CLI {
class App;
}

namespace muster::cli {

void AddCerts(CLI::App& app, Options& options);

// Makes the authority in --dir. Refused where there is one.
ExitCode CertsInit(const Context& context);
// Issues a certificate and its key; an existing one of that name is replaced, each file in one
// step.
ExitCode CertsIssue(const Context& context);
// Takes the lines of a holder, or of one certificate, out of the list in --dir.
ExitCode CertsRevoke(const Context& context);
// Prints whose certificate a file has, for which hosts, and until when.
ExitCode CertsShow(const Context& context);

}  // namespace muster::cli
