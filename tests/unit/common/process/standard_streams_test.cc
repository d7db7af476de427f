#include "common/process/standard_streams.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::process {
namespace {

// What a process ends with that began with 0, 1 and 2 closed.
int WithoutStreams() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int stream : {0, 1, 2}) (void)::close(stream);
    FillStandardStreams();
    if (::open("/dev/null", O_RDWR | O_CLOEXEC) < 3) ::_exit(1);
    char byte = 'x';
    for (const int stream : {1, 2}) {
      if (::write(stream, &byte, 1) != -1 || errno != EBADF) ::_exit(2);
    }
    if (::read(0, &byte, 1) != -1 || errno != EBADF) ::_exit(3);
    ::_exit(0);
  }
  int how = -1;
  if (child < 0 || ::waitpid(child, &how, 0) != child || !WIFEXITED(how)) return -1;
  return WEXITSTATUS(how);
}

TEST_CASE("what is opened first does not become a stream that was closed", "[process][unit]") {
  CHECK(WithoutStreams() == 0);
}

TEST_CASE("streams that are open stay what they are", "[process][unit]") {
  std::array<int, 2> before{};
  for (const int stream : {1, 2}) before.at(stream - 1) = ::fcntl(stream, F_GETFL);
  FillStandardStreams();
  for (const int stream : {1, 2}) CHECK(::fcntl(stream, F_GETFL) == before.at(stream - 1));
}

}  // namespace
}  // namespace muster::process
