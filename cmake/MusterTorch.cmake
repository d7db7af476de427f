# muster_torch: libtorch as one target. Debian's by default; -DMUSTER_TORCH=<dir> takes another
# (pip's torch 2.x: the folder that holds lib/libtorch_cpu.so and include/). Muster's build and the
# package that it installs both include this file.
# Where that libtorch has CUDA and the toolkit is there, GPUs are used too, and libtorch's NCCL.
set(MUSTER_TORCH "" CACHE PATH "A libtorch other than Debian's")
option(MUSTER_CUDA "Use GPUs, where the libtorch of MUSTER_TORCH can" ON)
set(MUSTER_TORCH_CUDA OFF)
add_library(muster_torch INTERFACE)
if(MUSTER_TORCH)
  # The wheel's TorchConfig.cmake would pick up Debian's libtorch.so where both are installed, so the
  # two libraries are named by their absolute paths.
  find_library(MUSTER_TORCH_CPU torch_cpu PATHS ${MUSTER_TORCH}/lib NO_DEFAULT_PATH REQUIRED)
  find_library(MUSTER_TORCH_C10 c10 PATHS ${MUSTER_TORCH}/lib NO_DEFAULT_PATH REQUIRED)
  # The wheel brings headers of other libraries, too (fmt, another version than the one that is linked):
  # programs see libtorch's own folders alone.
  set(muster_torch_include ${CMAKE_CURRENT_BINARY_DIR}/torch-include)
  file(REMOVE_RECURSE ${muster_torch_include})
  file(MAKE_DIRECTORY ${muster_torch_include})
  foreach(folder ATen c10 caffe2 torch)
    file(CREATE_LINK ${MUSTER_TORCH}/include/${folder} ${muster_torch_include}/${folder} SYMBOLIC)
  endforeach()
  set(muster_torch_includes ${muster_torch_include} ${muster_torch_include}/torch/csrc/api/include)
  target_link_libraries(muster_torch INTERFACE ${MUSTER_TORCH_CPU} ${MUSTER_TORCH_C10})
  target_link_options(muster_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${MUSTER_TORCH}/lib)
  find_library(MUSTER_TORCH_CUDA_LIBRARY torch_cuda PATHS ${MUSTER_TORCH}/lib NO_DEFAULT_PATH)
  find_library(MUSTER_TORCH_C10_CUDA c10_cuda PATHS ${MUSTER_TORCH}/lib NO_DEFAULT_PATH)
  if(MUSTER_CUDA AND MUSTER_TORCH_CUDA_LIBRARY AND MUSTER_TORCH_C10_CUDA)
    # libtorch's CUDA headers include the toolkit's.
    find_package(CUDAToolkit QUIET)
    set(MUSTER_TORCH_CUDA ${CUDAToolkit_FOUND})
  endif()
  if(MUSTER_TORCH_CUDA)
    # Programs name no symbol of these libraries, which register themselves when they are loaded.
    target_link_libraries(muster_torch INTERFACE
      "-Wl,--push-state,--no-as-needed,${MUSTER_TORCH_CUDA_LIBRARY},${MUSTER_TORCH_C10_CUDA},--pop-state")
    list(APPEND muster_torch_includes ${CUDAToolkit_INCLUDE_DIRS})
  endif()
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
