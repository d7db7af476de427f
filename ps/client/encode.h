// A message as a request's meta. Threading: a pure function.
#pragma once

#include <cstddef>
#include <vector>

namespace muster::ps {

template <class Message>
std::vector<std::byte> Encode(const Message& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  (void)message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

}  // namespace muster::ps
