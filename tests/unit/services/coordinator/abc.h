// A file's text and its SHA-256.
#pragma once

#include <string>

namespace muster::coordinator {

// The SHA-256 of "abc"; FIPS 180-2, appendix B.1.
inline const std::string kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

}  // namespace muster::coordinator
