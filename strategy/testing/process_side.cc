// What a process of a run does with the run.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "strategy/testing/internal/protocol.h"
#include "strategy/testing/multi_process.h"

namespace muster {
namespace {

using Functions = std::map<std::string, std::string (*)()>;

// Made when the first function is registered, whichever file's globals come first.
Functions& RegisteredFunctions() {
  static Functions functions;
  return functions;
}

int Descriptor() {
  const char* text = std::getenv(internal::kProcessDescriptor);
  if (text == nullptr) {
    raise(ErrorCode::kFailedPrecondition,
          "this process was not started by a muster::MultiProcessRun");
  }
  return std::atoi(text);
}

// One text after the other, whichever threads say them: the kernel takes a long one in pieces, with
// those of others in between.
void Write(const std::string& text) {
  static Mutex mutex;
  const int fd = Descriptor();
  const MutexLock lock(mutex);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) raise(ErrorCode::kUnavailable, "the run that started this process is gone");
    done += static_cast<std::size_t>(written);
  }
}

std::string ReadLine() {
  const int fd = Descriptor();
  std::string line;
  char letter = 0;
  while (true) {
    const ssize_t got = ::read(fd, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) raise(ErrorCode::kUnavailable, "the run that started this process is gone");
    if (letter == '\n') return line;
    line += letter;
  }
}

}  // namespace

namespace internal {

ProcessFunction::ProcessFunction(const char* name, std::string (*function)()) {
  RegisteredFunctions()[name] = function;
}

}  // namespace internal

void process_result(const std::string& value) {
  Write(std::string(internal::kResult) + " " + std::to_string(value.size()) + "\n" + value);
}

void process_barrier() {
  Write(std::string(internal::kBarrier) + "\n");
  const std::string answer = ReadLine();
  if (answer == internal::kGo) return;
  raise(ErrorCode::kUnavailable,
        "barrier: " + answer.substr(answer.find(' ') + 1) + " has ended and does not come");
}

std::optional<int> process_function_main() {
  const char* name = std::getenv(internal::kProcessFunction);
  if (name == nullptr) return std::nullopt;
  const auto found = RegisteredFunctions().find(name);
  if (found == RegisteredFunctions().end()) {
    std::fprintf(stderr, "no function \"%s\" is registered: MUSTER_PROCESS_FUNCTION(%s)\n", name,
                 name);
    return 2;
  }
  (void)std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  try {
    process_result(found->second());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
  } catch (...) {
    std::fprintf(stderr, "%s: an exception that is no std::exception\n", name);
  }
  return 1;
}

}  // namespace muster
