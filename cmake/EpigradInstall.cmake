# SPDX-License-Identifier: Apache-2.0
# What `make install` leaves behind: the library (shared and static), the header, the two ways to find them, a
# CMake package and a pkg-config file, both relocatable; and the command with what a shell completes it by.
# EPIGRAD_INSTALL=OFF, the default within another project, leaves nothing.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/epigrad)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/epigrad DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(TARGET epigrad_mpi)
  install(TARGETS epigrad_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# ---- CMake: find_package(epigrad) gives epigrad::epigrad; COMPONENTS static gives epigrad::epigrad_static ------
# Two exports, because only the static library asks its user for threads.
install(TARGETS epigrad EXPORT epigradTargets)
install(TARGETS epigrad_static EXPORT epigradStaticTargets)
install(EXPORT epigradTargets NAMESPACE epigrad:: DESTINATION ${package_dir})
install(EXPORT epigradStaticTargets NAMESPACE epigrad:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/epigradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/epigradConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/epigradConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/epigradConfig.cmake ${PROJECT_BINARY_DIR}/epigradConfigVersion.cmake
        DESTINATION ${package_dir})

# ---- pkg-config ----------------------------------------------------------------------------------------
set(pc_private_libs ${CMAKE_DL_LIBS})
list(TRANSFORM pc_private_libs PREPEND -l)
if(EPIGRAD_OPENMP)
  list(APPEND pc_private_libs ${OpenMP_C_FLAGS})
else()
  list(APPEND pc_private_libs -pthread)
endif()
list(JOIN pc_private_libs " " pc_private_libs)
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
configure_file(${CMAKE_CURRENT_LIST_DIR}/epigrad.pc.in ${PROJECT_BINARY_DIR}/epigrad.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/epigrad.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- The command ---------------------------------------------------------------------------------------
if(EPIGRAD_CLI)
  install(TARGETS epigrad_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/docs/reference/epigrad.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  # bash-completion loads the file that has the command's name, when its arguments are first completed.
  install(FILES ${PROJECT_SOURCE_DIR}/cli/epigrad.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME epigrad)
endif()
