#include "services/common/piped_process.h"

#include <system_error>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include "common/process/no_more.h"
#include "common/telemetry/log.h"

namespace muster::services {

// The thread that reads comes before the process: what a host without threads refuses has begun
// nothing. The child's end of the pair is closed here in any case, or its end would not be seen.
template <class To, class From>
Result<std::unique_ptr<PipedProcess<To, From>>> PipedProcess<To, From>::Start(
    process::Child::Options options, Events events) {
  MUSTER_TRY_ASSIGN(const auto ends, process::MessagePipe::MakePair());
  std::unique_ptr<PipedProcess> made;
  try {
    made.reset(new PipedProcess(ends.first, std::move(events)));
    made->reader_ = std::thread([self = made.get()] { self->Read(); });
  } catch (const std::system_error& error) {
    ::close(ends.second);
    return process::NoMore(error.code().value(), "a thread for " + options.argv.front());
  }
  PipedProcess* self = made.get();
  options.descriptors = {{ends.second, 3}};
  options.on_line = made->events_.on_line;
  options.on_exit = [self](process::Exit exit) {
    // Its end of the pair is closed, but a process that it has left behind may hold it: what has
    // been written is read still, and no more is waited for.
    self->pipe_.Shutdown();
    self->reader_.join();  // the last messages come first
    self->events_.on_exit(exit);
  };
  Result<std::unique_ptr<process::Child>> child = process::Child::Start(std::move(options));
  ::close(ends.second);
  if (!child.ok()) {
    made->pipe_.Shutdown();
    made->reader_.join();
    return child.status();
  }
  made->child_ = *std::move(child);
  return made;
}

template <class To, class From>
PipedProcess<To, From>::~PipedProcess() {
  // First: one that stands still and reads nothing would hold up the writer.
  if (child_ != nullptr) (void)child_->Signal(SIGKILL);
  writer_.Stop();
  child_.reset();
}

template <class To, class From>
void PipedProcess<To, From>::Send(To message) {
  writer_.Post([this, message = std::move(message)] {
    if (const Status status = pipe_.Send(message); !status.ok()) {
      log::Debug("to process {}: {}", pid(), Message(status));
    }
  });
}

template <class To, class From>
void PipedProcess<To, From>::Read() {
  while (true) {
    From message;
    const Status status = pipe_.Receive(message);
    if (!status.ok()) {
      if (status.code() != StatusCode::kUnavailable) {
        log::Warning("from a child: {}", Message(status));
      }
      // Nobody reads any more: who writes is to hear of it.
      pipe_.Shutdown();
      return;
    }
    events_.on_message(std::move(message));
  }
}

template class PipedProcess<v1::ToExecutor, v1::FromExecutor>;
template class PipedProcess<v1::ToProgram, v1::FromProgram>;

}  // namespace muster::services
