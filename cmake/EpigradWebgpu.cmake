# SPDX-License-Identifier: Apache-2.0
# epigrad_webgpu(target): adds the WebGPU backend to a target in src/. The shaders are made from
# src/webgpu/kernels by the C preprocessor, one text a row of the kernel table, and embedded as bytes.
option(EPIGRAD_WEBGPU "Build the WebGPU backend (a webgpu.h library is looked for at run time)" ON)
set(EPIGRAD_WEBGPU_LIBRARY ${PROJECT_BINARY_DIR}/webgpu/libwgpu_native.so CACHE STRING
    "A WebGPU library to try where none of the usual names is found; empty for none")

set(EPIGRAD_WEBGPU_DIR ${PROJECT_SOURCE_DIR}/src/webgpu)

# <source>.wgsl, by default of kernels/, with these definitions, as the array eg_wgsl_<name> in a C file of
# `target`.
function(epigrad_shader target name source)
  set(kernels ${EPIGRAD_WEBGPU_DIR}/kernels)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/webgpu/${name}.wgsl)
  file(GLOB texts CONFIGURE_DEPENDS ${kernels}/*.wgsl)
  cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${kernels} NORMALIZE)
  add_custom_command(
    OUTPUT ${made}.c
    COMMAND ${CMAKE_C_COMPILER} -E -P -undef -nostdinc -x c -I ${PROJECT_SOURCE_DIR}/include ${ARGN}
            ${source}.wgsl -o ${made}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${made} -DOUTPUT=${made}.c -DNAME=eg_wgsl_${name}
            -P ${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake
    DEPENDS ${texts} ${source}.wgsl ${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake
            ${PROJECT_SOURCE_DIR}/include/epigrad/activation.h
    COMMENT "Making shader ${name}"
    VERBATIM)
  target_sources(${target} PRIVATE ${made}.c)
endfunction()

# The rows X(name, source, rows, cols, depth, tall, wide, ...) of kernels.h.
function(epigrad_kernel_shaders target)
  set(table ${EPIGRAD_WEBGPU_DIR}/kernels.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} rows REGEX "^ +X\\([a-z0-9_]+, gemm_")
  string(REPLACE "\\;" ";" rows "${rows}") # the lines end in backslashes
  foreach(row ${rows})
    string(REGEX REPLACE "^ +X\\(([^)]*)\\).*" "\\1" row "${row}")
    string(REGEX MATCHALL "[a-z0-9_]+" row "${row}")
    list(GET row 0 name)
    list(GET row 1 source)
    set(definitions)
    set(column 2)
    foreach(definition EG_ROWS EG_COLS EG_DEPTH EG_TALL EG_WIDE)
      list(GET row ${column} value)
      list(APPEND definitions -D${definition}=${value})
      math(EXPR column "${column} + 1")
    endforeach()
    epigrad_shader(${target} ${name} ${source} ${definitions})
    epigrad_shader(${target} ${name}_vec4 ${source} ${definitions} -DEG_VEC4)
    if(source STREQUAL gemm_shared)
      epigrad_shader(${target} ${name}_sums ${source} ${definitions} -DEG_SUMS)
      epigrad_shader(${target} ${name}_vec4_sums ${source} ${definitions} -DEG_VEC4 -DEG_SUMS)
    endif()
  endforeach()
endfunction()

function(epigrad_webgpu target)
  if(NOT EPIGRAD_WEBGPU)
    return()
  endif()
  foreach(source backend blocks compile device estimate kernels loader peak pipelines run)
    target_sources(${target} PRIVATE ${EPIGRAD_WEBGPU_DIR}/${source}.c)
  endforeach()
  if(NOT CMAKE_SYSTEM_NAME STREQUAL Generic) # a page has no display of its own (web/core/webgpu.c)
    target_sources(${target} PRIVATE ${EPIGRAD_WEBGPU_DIR}/wayland.c)
  endif()
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/webgpu)
  epigrad_kernel_shaders(${target})
  epigrad_shader(${target} elementwise elementwise -DEG_ROWS=8 -DEG_COLS=64)
  epigrad_shader(${target} column_sum column_sum -DEG_COLS=16 -DEG_LANES=16)
  epigrad_shader(${target} column_alone column_sum -DEG_COLS=8 -DEG_LANES=1)
  epigrad_shader(${target} peak peak)
  target_compile_definitions(${target} PRIVATE EG_HAVE_WEBGPU)
  if(EPIGRAD_WEBGPU_LIBRARY)
    target_compile_definitions(${target} PRIVATE EG_WEBGPU_DEFAULT_LIBRARY="${EPIGRAD_WEBGPU_LIBRARY}")
  endif()
endfunction()

# bench_webgpu: not part of `all`. It compares with a straightforward shader and looks inside the backend.
function(epigrad_webgpu_bench)
  if(NOT EPIGRAD_WEBGPU)
    return()
  endif()
  set(bench ${PROJECT_SOURCE_DIR}/bench/webgpu)
  add_executable(bench_webgpu EXCLUDE_FROM_ALL ${bench}/bench_webgpu.c)
  foreach(pass 1 2 3 4 5 6)
    epigrad_shader(bench_webgpu reference_${pass} ${bench}/reference -DPASS=${pass})
  endforeach()
  target_include_directories(bench_webgpu PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(bench_webgpu PRIVATE epigrad_static m)
  epigrad_options(bench_webgpu)
  # Times of every kernel row, and what the estimate counts for each of them (tools/calibrate_webgpu.py).
  foreach(name record counts)
    add_executable(webgpu_${name} EXCLUDE_FROM_ALL ${bench}/${name}.c ${bench}/recording.c)
    target_include_directories(webgpu_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(webgpu_${name} PRIVATE epigrad_static m)
    epigrad_options(webgpu_${name})
  endforeach()
endfunction()
