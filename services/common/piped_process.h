// A child that speaks messages with its daemon: the process, the socket pair to it at descriptor 3,
// and the threads that serve them.
//
// Threading: Send() from any thread, never blocks; events come from threads of its own, lines and
// messages in their order, the exit last. Destruction kills the process and waits for its threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/process/child.h"
#include "common/process/message_pipe.h"
#include "muster/v1/executor.pb.h"
#include "muster/v1/program.pb.h"

namespace muster::services {

template <class To, class From>
class PipedProcess {
 public:
  struct Events {
    std::function<void(std::chrono::system_clock::time_point, std::string)> on_line;
    std::function<void(From)> on_message;
    std::function<void(process::Exit)> on_exit;
  };

  // Its descriptors, lines and exit are this class's to set. Errors of process::Child::Start.
  static Result<std::unique_ptr<PipedProcess>> Start(process::Child::Options child, Events events);
  ~PipedProcess();

  int pid() const { return child_->pid(); }
  // To the whole process group; kNotFound once it has ended.
  Status Signal(int signal) { return child_->Signal(signal); }
  void Send(To message);

 private:
  PipedProcess(int descriptor, Events events) : pipe_(descriptor), events_(std::move(events)) {}
  void Read();

  process::MessagePipe pipe_;
  const Events events_;
  std::thread reader_;
  std::unique_ptr<process::Child> child_;
  // Writes, so that a child that does not read holds up nobody else.
  ThreadScheduler writer_;
};

// muster-executor, and a user's program in any role.
using ExecutorProcess = PipedProcess<v1::ToExecutor, v1::FromExecutor>;
using ProgramProcess = PipedProcess<v1::ToProgram, v1::FromProgram>;

}  // namespace muster::services
