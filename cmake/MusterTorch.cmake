# muster_torch: libtorch as one target. Debian's by default; -DMUSTER_TORCH=<dir> takes another
# (pip's torch 2.x: the folder that holds lib/libtorch_cpu.so and include/). Muster's build and the
# package that it installs both include this file.
set(MUSTER_TORCH "" CACHE PATH "A libtorch other than Debian's")
add_library(muster_torch INTERFACE)
if(MUSTER_TORCH)
  # The wheel's TorchConfig.cmake would pick up Debian's libtorch.so where both are installed, so the
  # two libraries are named by their absolute paths.
  find_library(MUSTER_TORCH_CPU torch_cpu PATHS ${MUSTER_TORCH}/lib NO_DEFAULT_PATH REQUIRED)
  find_library(MUSTER_TORCH_C10 c10 PATHS ${MUSTER_TORCH}/lib NO_DEFAULT_PATH REQUIRED)
  set(muster_torch_includes ${MUSTER_TORCH}/include ${MUSTER_TORCH}/include/torch/csrc/api/include)
  target_link_libraries(muster_torch INTERFACE ${MUSTER_TORCH_CPU} ${MUSTER_TORCH_C10})
  target_link_options(muster_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${MUSTER_TORCH}/lib)
else()
  find_package(Torch REQUIRED)
  set(muster_torch_includes ${TORCH_INCLUDE_DIRS})
  target_link_libraries(muster_torch INTERFACE ${TORCH_LIBRARIES})
endif()
target_include_directories(muster_torch SYSTEM INTERFACE ${muster_torch_includes})

# MUSTER_TORCH_VERSION: "1.13.0", from libtorch's own header.
find_file(MUSTER_TORCH_VERSION_HEADER NAMES torch/headeronly/version.h torch/version.h PATHS ${muster_torch_includes} /usr/include
  PATH_SUFFIXES torch/csrc/api/include NO_DEFAULT_PATH REQUIRED)
file(STRINGS ${MUSTER_TORCH_VERSION_HEADER} muster_torch_version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2.\\3" MUSTER_TORCH_VERSION
  "${muster_torch_version}")
