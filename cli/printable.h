// What others wrote (jobs, their processes, daemons), made safe to show: on a terminal a control
// character may move the cursor over what stands there, and a mark of writing direction turn a
// text around.
#pragma once

#include <string>
#include <string_view>

namespace google::protobuf {
class Message;
}

namespace muster::cli {

// Control characters other than tab and newline, marks of direction and bytes that are no UTF-8 as
// "\x1b", "\u202e"; the rest as it is.
std::string Printable(std::string_view text);

// The same for every text in a message; raw bytes are left alone.
void MakePrintable(google::protobuf::Message& message);

}  // namespace muster::cli
