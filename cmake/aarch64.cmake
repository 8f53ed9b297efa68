# The toolchain of a cross build for aarch64 with Debian's compiler; CTest runs the programs in qemu's user mode.
#     cmake -S . -B build/aarch64 --toolchain cmake/aarch64.cmake -DNIBBLE_AARCH64_ROOT=ROOT
# ROOT: the folder that scripts/aarch64-root made. `make test-aarch64` does both.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

if(NOT NIBBLE_AARCH64_ROOT)
  message(FATAL_ERROR "NIBBLE_AARCH64_ROOT is not set: run scripts/aarch64-root ROOT and pass -DNIBBLE_AARCH64_ROOT=ROOT")
endif()
set(NIBBLE_AARCH64_ROOT "${NIBBLE_AARCH64_ROOT}" CACHE PATH "root file system for aarch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES NIBBLE_AARCH64_ROOT)
set(CMAKE_SYSROOT "${NIBBLE_AARCH64_ROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
# A processor that exists, of the oldest kind one rents; it is faster in qemu than all features at once.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu neoverse-n1 -L "${CMAKE_SYSROOT}")
