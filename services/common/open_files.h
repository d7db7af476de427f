// How many files and connections this process may have open, and who may take how many of them.
#pragma once

#include <cstddef>

namespace muster::services {

// Raises the soft limit to the hard one (a soft limit of 1,024 is for programs that use select(2),
// which ours do not); children inherit it. The limit that holds now.
std::size_t RaiseOpenFiles();

// A share of `limit` for connections, at most `enough`: what is left is for files, pipes and
// sockets of our own.
std::size_t ConnectionsFor(std::size_t limit, double share, std::size_t enough);

}  // namespace muster::services
