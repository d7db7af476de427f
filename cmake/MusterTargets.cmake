# The functions that every folder's CMakeLists.txt uses. They carry the architecture: a library names
# its layer, and configuring stops when it depends on a layer that is not below it.
#
#   layer  what
#   0      common/base
#   1      proto common/torch
#   2      common/messages common/telemetry common/process common/tls
#   3      common/config common/cluster common/storage common/partition common/rpc
#   4      common/data common/net
#   9      ps_wire, what ps and its clients agree on
#   10     ps collectives device dispatch/core
#   11     ps/client ps/server dispatch collectives/process collectives/nccl
#   12     collectives/elastic
#   20     coordinator worker worker/engine
#   21     program
#   30-36  the rooms of strategy, then strategy
#   39-41  services cli bench

# What no keyword takes would be left out in silence.
function(muster_all_parsed name unparsed)
  if(unparsed)
    message(FATAL_ERROR "${name}: \"${unparsed}\" stands behind no keyword (SRCS, DEPS, ...)")
  endif()
endfunction()

# muster_library(<name> LAYER <n> SRCS <files> DEPS <libraries>)
# Declares the static library muster_<name>, alias muster::<name>. Sources may be empty (headers only).
function(muster_library name)
  cmake_parse_arguments(ARG "" "LAYER" "SRCS;DEPS" ${ARGN})
  muster_all_parsed(${name} "${ARG_UNPARSED_ARGUMENTS}")
  if(NOT DEFINED ARG_LAYER)
    message(FATAL_ERROR "muster_library(${name}): LAYER is required")
  endif()
  foreach(dep IN LISTS ARG_DEPS)
    if(dep MATCHES "^muster::")
      get_target_property(theirs ${dep} MUSTER_LAYER)
      if(NOT theirs LESS ARG_LAYER)
        message(FATAL_ERROR "${name} may not use ${dep}; see docs/ARCHITECTURE.md, Layers")
      endif()
    endif()
  endforeach()
  if(ARG_SRCS)
    add_library(muster_${name} STATIC ${ARG_SRCS})
    set(scope PUBLIC)
    target_link_libraries(muster_${name} PRIVATE muster_warnings)
  else()
    add_library(muster_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(muster::${name} ALIAS muster_${name})
  set_target_properties(muster_${name} PROPERTIES MUSTER_LAYER ${ARG_LAYER})
  target_include_directories(muster_${name} ${scope} ${PROJECT_SOURCE_DIR})
  target_link_libraries(muster_${name} ${scope} ${ARG_DEPS})
endfunction()

# muster_program(<target> OUTPUT <file name> COMPONENT <cli|daemons|peers> SRCS <files> DEPS <libraries>)
# Declares an executable that belongs to a package (cmake/Packages.cmake; peers to none); all programs land in <build>/bin, as they do when installed, so that one
# program finds the next beside itself.
add_custom_target(programs COMMENT "What ./muster-demo needs: everything but the tests")
function(muster_program target)
  cmake_parse_arguments(ARG "" "OUTPUT;COMPONENT" "SRCS;DEPS" ${ARGN})
  muster_all_parsed(${target} "${ARG_UNPARSED_ARGUMENTS}")
  if(NOT ARG_COMPONENT MATCHES "^(cli|daemons|peers)$")
    message(FATAL_ERROR "muster_program(${target}): COMPONENT is cli, daemons or peers")
  endif()
  add_executable(${target} ${ARG_SRCS})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT}
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} muster_warnings)
  install(TARGETS ${target} RUNTIME DESTINATION bin COMPONENT ${ARG_COMPONENT})
  add_dependencies(programs ${target})
endfunction()

# muster_links(<target> <library> <variable>): whether target links library, directly or through others.
function(muster_links target library result)
  set(open ${target})
  set(seen "")
  while(open)
    list(POP_FRONT open next)
    if(TARGET ${next})
      get_target_property(original ${next} ALIASED_TARGET)
      if(original)
        set(next ${original})
      endif()
    endif()
    if(next STREQUAL library)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
    if(TARGET ${next} AND NOT next IN_LIST seen)
      list(APPEND seen ${next})
      foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
        get_target_property(deps ${next} ${property})
        if(deps)
          list(APPEND open ${deps})
        endif()
      endforeach()
    endif()
  endwhile()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# muster_test(<name> [WHOLE] [LONG] [LABEL <unit|spec|cluster>] [TIMEOUT <s>] SRCS <files> DEPS <libraries>)
# Declares a Catch2 program. Every test case becomes one ctest entry; with WHOLE the program is one
# entry (for programs that link libtorch: each start costs 0.4 s). What is LONG begins early, so that it is not
# alone at the end. Those of the public API are compiled against one precompiled header: a third of the time.
function(muster_test name)
  cmake_parse_arguments(ARG "WHOLE;LONG" "LABEL;TIMEOUT" "SRCS;DEPS" ${ARGN})
  muster_all_parsed(${name} "${ARG_UNPARSED_ARGUMENTS}")
  if(NOT MUSTER_TESTS)
    return()
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(properties LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LONG)
    list(APPEND properties COST 1500)
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} muster_catch_main muster_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  muster_links(${name} muster_strategy uses_strategy)
  if(uses_strategy)
    target_precompile_headers(${name} REUSE_FROM muster_torch_pch)
  endif()
  if(ARG_WHOLE)
    # Where all of its cases are skipped it has not passed.
    add_test(NAME ${name} COMMAND ${name} --skip-code 77)
    set_tests_properties(${name} PROPERTIES ${properties} SKIP_RETURN_CODE 77)
  else()
    # A name that matches no case would pass (Catch2 3 fails by itself). CMake's lists cut a name at a
    # semicolon, so none has one.
    if(Catch2_VERSION VERSION_LESS 3)
      set(strict EXTRA_ARGS --warn NoTests)
    endif()
    catch_discover_tests(${name} ${strict} TEST_PREFIX "${name}: " PROPERTIES ${properties})
  endif()
  set_property(GLOBAL APPEND PROPERTY MUSTER_TEST_PROGRAMS ${name})
endfunction()
