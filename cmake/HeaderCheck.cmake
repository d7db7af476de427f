# header-check: does each header compile alone? Not part of the default build:
#   cmake --build --preset release --target header-check
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  collectives/*.h device/*.h common/*.h dispatch/*.h program/*.h ps/*.h coordinator/*.h worker/*.h strategy/*.h services/*.h cli/*.h bench/*.h)
set(header_sources)
foreach(header IN LISTS headers)
  set(source ${PROJECT_BINARY_DIR}/header-check/${header}.cc)
  if(NOT EXISTS ${source})
    # Twice: `#pragma once` is checked too.
    file(WRITE ${source} "#include \"${header}\"\n#include \"${header}\"\n")
  endif()
  list(APPEND header_sources ${source})
endforeach()
add_library(header-check OBJECT EXCLUDE_FROM_ALL ${header_sources})
set_target_properties(header-check PROPERTIES UNITY_BUILD OFF)
target_include_directories(header-check PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(header-check PRIVATE muster_grpc muster_base muster_torch muster_warnings
  fmt::fmt spdlog::spdlog Boost::boost yaml-cpp)
