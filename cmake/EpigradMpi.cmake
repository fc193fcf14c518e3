# SPDX-License-Identifier: Apache-2.0
# libepigrad_mpi, by the compiler wrapper of an MPI. Implementations differ in their binary interface, so that each
# needs a library of its own: this is for one, and the tests make theirs.
set(EPIGRAD_MPI AUTO CACHE STRING "Build libepigrad_mpi: AUTO (as the outermost project, where mpicc is found), ON or OFF")

# epigrad_use_mpi(target wrapper): what the wrapper would add to the compiler's line.
function(epigrad_use_mpi target wrapper)
  execute_process(COMMAND ${wrapper} -show OUTPUT_VARIABLE line RESULT_VARIABLE failed
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR "${wrapper} -show failed: ${failed}")
  endif()
  separate_arguments(words UNIX_COMMAND "${line}")
  foreach(word ${words})
    if(word MATCHES "^-(L|l|Wl,)")
      target_link_libraries(${target} PRIVATE ${word})
    elseif(word MATCHES "^-I(.+)")
      target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-D")
      target_compile_options(${target} PRIVATE ${word})
    endif()
  endforeach()
endfunction()

function(epigrad_mpi_library)
  if(EPIGRAD_MPI STREQUAL OFF OR CMAKE_CROSSCOMPILING OR EPIGRAD_WHEEL OR
     (EPIGRAD_MPI STREQUAL AUTO AND NOT PROJECT_IS_TOP_LEVEL))
    return()
  endif()
  find_program(EPIGRAD_MPICC mpicc)
  if(NOT EPIGRAD_MPICC)
    if(EPIGRAD_MPI STREQUAL ON)
      message(FATAL_ERROR "EPIGRAD_MPI is ON and mpicc was not found")
    endif()
    message(STATUS "libepigrad_mpi: off (no mpicc)")
    return()
  endif()
  message(STATUS "libepigrad_mpi: ${EPIGRAD_MPICC}")
  add_library(epigrad_mpi SHARED ${PROJECT_SOURCE_DIR}/src/distributed/mpi.c)
  target_include_directories(epigrad_mpi PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                         PRIVATE ${PROJECT_SOURCE_DIR}/src)
  epigrad_use_mpi(epigrad_mpi ${EPIGRAD_MPICC})
  epigrad_options(epigrad_mpi)
  set_target_properties(epigrad_mpi PROPERTIES VERSION ${PROJECT_VERSION}
                                               SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  add_library(epigrad::epigrad_mpi ALIAS epigrad_mpi)
endfunction()
