# Debian packages: `cpack` in the build folder, when all is built. What belongs to which is the
# COMPONENT of each install(); `cmake --install <build> --component <name>` puts the same elsewhere.
#   cli      muster           the command line, and benchmarks that do without libtorch
#   daemons  muster-daemons   coordinator, parameter server, worker, what they start, other benchmarks, systemd's units
#   library  muster-daemons   libmuster.so, which programs of users are linked with: each host needs it
#   sdk      libmuster-dev    the C++ API
# Settings go to /etc where the prefix is /usr, else to etc below the prefix.

install(FILES deploy/systemd/muster.target deploy/systemd/muster-coordinator.service
  deploy/systemd/muster-ps@.service deploy/systemd/muster-worker@.service deploy/systemd/muster-evaluator.service
  DESTINATION lib/systemd/system COMPONENT daemons)
install(DIRECTORY deploy/systemd/muster-.service.d DESTINATION lib/systemd/system COMPONENT daemons)
install(FILES deploy/systemd/sysusers.d/muster-daemons.conf DESTINATION lib/sysusers.d COMPONENT daemons)
install(FILES deploy/systemd/gpu.conf DESTINATION share/doc/muster-daemons/examples COMPONENT daemons)
install(DIRECTORY deploy/monitoring deploy/kubernetes DESTINATION share/doc/muster-daemons/examples COMPONENT daemons)
install(FILES examples/fashion.yaml examples/fashion_mirrored.yaml examples/fashion_multi_worker.yaml
  examples/fashion_cnn.yaml examples/clicks.yaml
  DESTINATION share/doc/muster/examples COMPONENT cli)
foreach(folder_component "muster cli" "muster-daemons daemons" "libmuster-dev sdk")
  separate_arguments(folder_component)
  list(GET folder_component 0 folder)
  list(GET folder_component 1 component)
  install(FILES LICENSE DESTINATION share/doc/${folder} RENAME copyright COMPONENT ${component})
endforeach()

# muster_says(<component> <path below the prefix> <command>...)
# Installs what the command prints. By way of the build folder: file(INSTALL) gives the modes that install(FILES)
# does, whatever the umask.
set(said ${PROJECT_BINARY_DIR}/said)
function(muster_says component path)
  list(JOIN ARGN "\" \"" command)
  cmake_path(GET path PARENT_PATH folder)
  install(CODE "
    set(root \"\${CMAKE_INSTALL_PREFIX}\")
    if(\"${path}\" MATCHES \"^etc/\")
      string(REGEX REPLACE \"/usr$\" \"\" root \"\${root}\")
    endif()
    execute_process(COMMAND \"${command}\" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE \"${said}/${path}\" \"\${text}\")
    file(INSTALL DESTINATION \"\${root}/${folder}\" TYPE FILE FILES \"${said}/${path}\")"
    COMPONENT ${component})
endfunction()

set(bin ${PROJECT_BINARY_DIR}/bin)
foreach(daemon coordinator ps worker)
  muster_says(daemons etc/muster/${daemon}.yaml ${bin}/muster-${daemon} --example-config)
endforeach()
muster_says(daemons etc/logrotate.d/muster-daemons ${CMAKE_COMMAND} -E cat ${PROJECT_SOURCE_DIR}/deploy/debian/logrotate)
muster_says(cli share/bash-completion/completions/muster ${bin}/muster completion bash)
muster_says(cli share/zsh/vendor-completions/_muster ${bin}/muster completion zsh)
muster_says(cli share/fish/vendor_completions.d/muster.fish ${bin}/muster completion fish)
# Pages of the manual: the programs' own.
muster_says(cli share/man/man1/muster.1 ${bin}/muster manual)
install(CODE "
  execute_process(COMMAND \"${bin}/muster\" manual --list OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL \"[a-z-]+\" commands \"\${commands}\")
  foreach(command IN LISTS commands)
    set(page \"${said}/share/man/man1/muster-\${command}.1\")
    execute_process(COMMAND \"${bin}/muster\" manual \"\${command}\" COMMAND_ERROR_IS_FATAL ANY OUTPUT_FILE \"\${page}\")
    file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/share/man/man1\" TYPE FILE FILES \"\${page}\")
  endforeach()"
  COMPONENT cli)
foreach(daemon coordinator ps worker)
  muster_says(daemons share/man/man1/muster-${daemon}.1 ${bin}/muster-${daemon} --manual)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "The Muster developers")
set(CPACK_PACKAGE_CONTACT "The Muster developers <muster@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_COMPONENTS_ALL cli daemons library sdk)
# A group is one package.
set(CPACK_COMPONENT_DAEMONS_GROUP daemons)
set(CPACK_COMPONENT_LIBRARY_GROUP daemons)
set(CPACK_DEB_COMPONENT_INSTALL ON)
# The builder's umask is the builder's own affair.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/PackageModes.cmake)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Programs without what debuggers read, which is in packages of its own (NAME-dbgsym).
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_CLI_PACKAGE_NAME muster)
set(CPACK_DEBIAN_CLI_PACKAGE_SUGGESTS muster-daemons)
set(CPACK_COMPONENT_CLI_DESCRIPTION "Muster: tf.distribute as a cluster service, the command line
 Submits, watches and stops jobs of a Muster cluster; with muster-daemons,
 `muster up` is a cluster on this machine.")
set(CPACK_DEBIAN_DAEMONS_PACKAGE_NAME muster-daemons)
set(CPACK_DEBIAN_DAEMONS_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles
  ${PROJECT_SOURCE_DIR}/deploy/debian/postinst ${PROJECT_SOURCE_DIR}/deploy/debian/prerm
  ${PROJECT_SOURCE_DIR}/deploy/debian/postrm ${PROJECT_SOURCE_DIR}/deploy/debian/triggers)
# libtorch computes on reference BLAS without it, about 20 times slower.
set(CPACK_DEBIAN_DAEMONS_PACKAGE_RECOMMENDS "libopenblas0-openmp, muster")
set(CPACK_COMPONENT_DAEMONS_DESCRIPTION "Muster: tf.distribute as a cluster service, the daemons
 Coordinator, parameter server and worker, as units of systemd, and the library
 that programs of the C++ API need to run.")
set(CPACK_DEBIAN_SDK_PACKAGE_NAME libmuster-dev)
set(CPACK_DEBIAN_SDK_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_SDK_PACKAGE_DEPENDS "muster-daemons (= ${PROJECT_VERSION}), libtorch-dev")
set(CPACK_COMPONENT_SDK_DESCRIPTION "Muster: tf.distribute as a cluster service, the C++ API
 Strategies, variables, datasets and the coordinator of closures, for programs
 with libtorch.")
include(CPack)
