# SPDX-License-Identifier: Apache-2.0
# CMake toolchain: Debian's clang, wasm-ld and wasi-libc.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(CMAKE_C_COMPILER clang)
set(CMAKE_C_COMPILER_TARGET wasm32-wasi)
set(CMAKE_SYSROOT /usr) # its headers and libraries are in include/wasm32-wasi and lib/wasm32-wasi
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
