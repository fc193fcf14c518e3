# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: epigrad_cuda(target) adds it where nvcc is found. The host is C; nvcc makes one fatbin of
# each file in src/cuda/kernels, and kernels.c embeds them as bytes. Nothing of CUDA is linked.
set(EPIGRAD_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set(EPIGRAD_CUDA_ARCHITECTURES "80;90a;ptx" CACHE STRING
    "What the CUDA kernels are compiled for: compute capabilities, and ptx for devices to come")
set(EPIGRAD_CUDA_FLAGS "" CACHE STRING "More options for nvcc: -DEG_STAMPS for bench/cuda/timeline.c")
option(EPIGRAD_CUDA_QUICK "Compile the CUDA kernels quickly and hardly optimised, for machines without a device" OFF)

# nvcc options for a kernel file: files named hopper_* are for 9.0 alone.
function(epigrad_cuda_code file result)
  set(code)
  foreach(architecture ${EPIGRAD_CUDA_ARCHITECTURES})
    if(architecture STREQUAL ptx)
      set(option -gencode=arch=compute_80,code=compute_80)
    else()
      set(option -gencode=arch=compute_${architecture},code=sm_${architecture})
    endif()
    if(NOT file MATCHES "^hopper_" OR architecture STREQUAL 90a)
      list(APPEND code ${option})
    endif()
  endforeach()
  # Their operands are 16-bit: with f32 subnormals as 0, 1/x is one instruction.
  if(code AND file MATCHES "^hopper_(b?f16|stream_k|pingpong|grouped|gated|pair)")
    list(APPEND code -ftz=true)
  endif()
  set(${result} ${code} PARENT_SCOPE)
endfunction()

function(epigrad_cuda target)
  if(EPIGRAD_CUDA STREQUAL OFF)
    return()
  endif()
  find_program(EPIGRAD_NVCC nvcc HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda PATH_SUFFIXES bin)
  if(EPIGRAD_NVCC)
    get_filename_component(real ${EPIGRAD_NVCC} REALPATH)
    get_filename_component(toolkit ${real}/../.. ABSOLUTE)
    find_path(EPIGRAD_CUDA_INCLUDE cublasLt.h HINTS ${toolkit}/include ${toolkit}/targets/x86_64-linux/include
              ${toolkit}/targets/sbsa-linux/include)
  endif()
  if(NOT EPIGRAD_NVCC OR NOT EPIGRAD_CUDA_INCLUDE)
    if(EPIGRAD_CUDA STREQUAL ON)
      message(FATAL_ERROR "EPIGRAD_CUDA is ON and nvcc with cuda.h and cublasLt.h was not found")
    endif()
    message(STATUS "CUDA backend: off (no nvcc with cuda.h and cublasLt.h)")
    return()
  endif()
  message(STATUS "CUDA backend: ${EPIGRAD_NVCC} for ${EPIGRAD_CUDA_ARCHITECTURES}")
  # Kernels that hold every activation repeat themselves: a third of the size, where nvcc knows the option (12.8).
  execute_process(COMMAND ${EPIGRAD_NVCC} --help OUTPUT_VARIABLE help ERROR_QUIET)
  set(compress)
  if(help MATCHES "--compress-mode")
    set(compress --compress-mode=size)
  endif()
  set(quick)
  if(EPIGRAD_CUDA_QUICK AND help MATCHES "--Ofast-compile") # nvcc 12.8
    set(quick --Ofast-compile=max)
  endif()

  set(from ${PROJECT_SOURCE_DIR}/src/cuda)
  set(to ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${to})
  file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${from}/kernels ${from}/kernels/*.cu)
  set(fatbins)
  set(table)
  set(entries)
  set(script ${PROJECT_SOURCE_DIR}/cmake/EpigradFatbin.cmake)
  foreach(kernel ${kernels})
    epigrad_cuda_code(${kernel} code)
    get_filename_component(name ${kernel} NAME_WE)
    if(code)
      set(options -std=c++17 -O3 -prec-div=false ${compress} ${quick} ${EPIGRAD_CUDA_FLAGS} ${code} -I${from}/.. -I${PROJECT_SOURCE_DIR}/include)
      add_custom_command(OUTPUT ${to}/${name}.fatbin ${to}/${name}.entries
        COMMAND ${CMAKE_COMMAND} "-DNVCC=${EPIGRAD_NVCC}" "-DOPTIONS=${options}" -DFROM=${from}/kernels/${kernel} -DTO=${to}/${name}
                -P ${script}
        DEPENDS ${from}/kernels/${kernel} ${script}
        DEPFILE ${to}/${name}.d
        COMMENT "nvcc ${kernel}" VERBATIM)
      list(APPEND fatbins ${to}/${name}.fatbin ${to}/${name}.entries)
      string(APPEND table " X(${name})")
      string(APPEND entries "#include \"${name}.entries\"\n")
    endif()
  endforeach()

  set(sources)
  foreach(file backend calibration choose compile device driver estimate gated_maps graphs hopper kernels kinds lt lt_choose nodes pairs parameters partition peak run table takes time workspace)
    list(APPEND sources ${from}/${file}.c)
  endforeach()
  target_sources(${target} PRIVATE ${sources})
  file(CONFIGURE OUTPUT ${to}/fatbins.h CONTENT
    "#define EG_CUDA_FATBINS(X)@table@\n#define EG_CUDA_FATBIN_DIR \"@to@\"\n" @ONLY)
  file(CONFIGURE OUTPUT ${to}/entries.h CONTENT "@entries@" @ONLY)
  set_source_files_properties(${from}/kernels.c PROPERTIES OBJECT_DEPENDS "${fatbins}" INCLUDE_DIRECTORIES ${to})
  add_custom_target(${target}_fatbins DEPENDS ${fatbins})
  add_dependencies(${target} ${target}_fatbins)
  target_compile_definitions(${target} PUBLIC EG_HAVE_CUDA)
  target_include_directories(${target} SYSTEM PRIVATE ${EPIGRAD_CUDA_INCLUDE})
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  # The estimate of times alone, for tools/calibrate.py.
  add_library(cuda_estimate SHARED EXCLUDE_FROM_ALL ${from}/estimate.c ${from}/kinds.c ${from}/calibration.c
              ${from}/partition.c ${from}/table.c ${PROJECT_SOURCE_DIR}/src/core/names.c)
  target_include_directories(cuda_estimate PRIVATE ${from}/.. ${PROJECT_SOURCE_DIR}/include)
  epigrad_options(cuda_estimate)
  set_target_properties(cuda_estimate PROPERTIES C_VISIBILITY_PRESET default)
  # compute-sanitizer over a reduced table of checks; needs a device, and test_table to be built.
  add_custom_target(sanitize_cuda COMMAND ${PROJECT_SOURCE_DIR}/tests/cuda/sanitize.sh ${PROJECT_BINARY_DIR}
                    VERBATIM)
  # The host's time for a call; needs a device.
  add_executable(bench_cuda_host EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/bench/cuda/host_time.c)
  target_link_libraries(bench_cuda_host PRIVATE epigrad_static m)
  epigrad_options(bench_cuda_host)
  # What a multiprocessor does, tile by tile; needs a device, and kernels with stamps.
  add_executable(bench_cuda_timeline EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/bench/cuda/timeline.c)
  target_include_directories(bench_cuda_timeline PRIVATE ${from}/..)
  target_include_directories(bench_cuda_timeline SYSTEM PRIVATE ${EPIGRAD_CUDA_INCLUDE})
  target_link_libraries(bench_cuda_timeline PRIVATE epigrad_static ${CMAKE_DL_LIBS})
  epigrad_options(bench_cuda_timeline)
endfunction()
