# What `cmake --install` gives besides the programs: one shared library (component library), its headers
# and the package that find_package(muster) reads (component sdk). Everything below strategy/ is inside the
# library, so a program needs libtorch and nothing else to build. Hosts that run programs need the library
# alone: it comes with the daemons (cmake/Packages.cmake).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The objects of what its headers call into; the archives behind them give what these need.
set(objects)
foreach(library strategy_multi_worker_mirrored strategy_parameter_server strategy_train strategy_pickle strategy_kinds strategy_tpu strategy_cluster strategy_input
        strategy_variables strategy_reduce strategy_core strategy_values strategy_workers strategy_resolver strategy_testing strategy_base device collectives data base)
  list(APPEND objects $<TARGET_OBJECTS:muster_${library}>)
endforeach()
add_library(muster_sdk SHARED ${objects})
# Another minor version is another release, whose library is another one: muster-config.cmake.in, and
# SameRelease() in common/base/version_skew.h.
set_target_properties(muster_sdk PROPERTIES OUTPUT_NAME muster VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINKER_LANGUAGE CXX)
target_link_libraries(muster_sdk PRIVATE muster::strategy muster::strategy_testing)

install(TARGETS muster_sdk LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT sdk)
# The folders keep their names below include/muster, where the package's include path points.
install(FILES strategy/muster.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/muster COMPONENT sdk)
install(DIRECTORY strategy DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/muster COMPONENT sdk
  FILES_MATCHING PATTERN "*.h" PATTERN internal EXCLUDE)
# What public headers take from below; nothing of it needs another library.
foreach(header common/base/arrivals.h common/base/dtype.h common/base/mutex.h common/base/thread_annotations.h common/cluster/cluster_task.h common/data/auto_shard_policy.h common/data/element.h
        common/torch/torch_macros_begin.inc common/torch/torch_macros_end.inc device/place.h device/random.h)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/muster/${folder} COMPONENT sdk)
endforeach()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
configure_package_config_file(cmake/muster-config.cmake.in ${PROJECT_BINARY_DIR}/sdk/muster-config.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sdk/muster-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sdk/muster-config.cmake
  ${PROJECT_BINARY_DIR}/sdk/muster-config-version.cmake cmake/MusterTorch.cmake DESTINATION ${package} COMPONENT sdk)
