// What can be said of an exception that is no std::exception.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include <cxxabi.h>

namespace muster {

// Says of the exception that is handled now, after "what is no std::exception": its text if it is a
// string, else its type. ": no such file", " (int)".
[[nodiscard]] inline std::string TextOfThrown() {
  try {
    throw;
  } catch (const std::string& text) {
    return ": " + text;
  } catch (const char* text) {
    if (text != nullptr) return std::string(": ") + text;
    return " (char const*)";
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    if (type == nullptr) return "";  // of another language
    int failed = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(type->name(), nullptr, nullptr, &failed), &std::free);
    return std::string(" (") + (name == nullptr ? type->name() : name.get()) + ")";
  }
}

}  // namespace muster
