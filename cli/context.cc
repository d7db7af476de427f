#include "cli/context.h"

#include "cli/format.h"

namespace muster::cli {

ExitCode Fail(const Context& context, const Status& status,
              const std::vector<std::string>& problems) {
  if (context.options.output == Output::kJson) {
    context.terminal.out << ErrorJson(status, problems);
  }
  context.terminal.err << "error: " << Message(status) << '\n';
  return CodeOf(status);
}

}  // namespace muster::cli
