# What `make install` puts where: library (shared and static), header, pkg-config file, CMake package, the command with
# its man page and shell completions, the small model with its example, licence.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)

# ---- libraries and header ----
# Two exports, because only the static library's user needs the libraries behind it.
install(FILES ${PROJECT_SOURCE_DIR}/include/nibble.h TYPE INCLUDE)
foreach(kind shared static)
  install(TARGETS nibble_${kind} EXPORT nibble-${kind}-targets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT nibble-${kind}-targets NAMESPACE nibble:: DESTINATION ${package_dir})
endforeach()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/nibble-config.cmake.in
  ${PROJECT_BINARY_DIR}/nibble-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nibble-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibble-config.cmake ${PROJECT_BINARY_DIR}/nibble-config-version.cmake
  DESTINATION ${package_dir})

# The .pc file finds its prefix from where it lies, so that an installed tree can be moved.
cmake_path(SET pc_dir NORMALIZE "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH PC_PREFIX "${pc_dir}" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" PC_PREFIX "${PC_PREFIX}")
set(PC_CUDA "")
if(NIBBLE_CUDA_BUILT)
  set(PC_CUDA "${NIBBLE_CUDART} -ldl -lrt ")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/nibble.pc.in ${PROJECT_BINARY_DIR}/nibble.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/nibble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/train DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble/examples)

# ---- the command; it writes its own man page and completions ----
if(TARGET nibble)
  install(TARGETS nibble)
  function(generated_by_command file destination)
    set(path ${PROJECT_BINARY_DIR}/share/${file})
    cmake_path(GET path PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${path} COMMAND nibble ${ARGN} > ${path} DEPENDS nibble VERBATIM)
    set_property(GLOBAL APPEND PROPERTY NIBBLE_GENERATED ${path})
    install(FILES ${path} DESTINATION ${destination})
  endfunction()
  if(NOT CMAKE_CROSSCOMPILING)
    generated_by_command(nibble.1 ${CMAKE_INSTALL_MANDIR}/man1 man)
    generated_by_command(completion/nibble ${CMAKE_INSTALL_DATADIR}/bash-completion/completions completion bash)
    generated_by_command(completion/_nibble ${CMAKE_INSTALL_DATADIR}/zsh/site-functions completion zsh)
    generated_by_command(completion/nibble.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d completion fish)
    get_property(generated GLOBAL PROPERTY NIBBLE_GENERATED)
    add_custom_target(manual ALL DEPENDS ${generated})
  endif()
endif()
