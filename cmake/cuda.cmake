# The CUDA backend: src/**/*.cu. It is optional everywhere: auto builds it where an nvcc is found that can compile
# with this C compiler's companion, on insists on that, off does not look. Without it nothing else changes.
#
# nvcc is called by hand and not as a language of CMake: its objects then are objects like any other, every program is
# still linked by the C compiler, and a machine without a toolkit is asked nothing. The runtime is linked statically
# and finds the driver when a device is first asked for: what is built here also starts where there is none.
#
# Sets NIBBLE_CUDA_BUILT and, where that is on, NIBBLE_CUDA_INCLUDE, NIBBLE_CUDA_LIBRARIES and the function
# nibble_cuda_object(SOURCE RESULT), which compiles one source and names its object. Sources *_sm90.cu use what only
# compute capability 9.0 has: they are compiled for that alone (sm_90a), and whoever calls them asks the device first.
string(TOLOWER "${NIBBLE_CUDA}" cuda_wish)
if(NOT cuda_wish MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "NIBBLE_CUDA is '${NIBBLE_CUDA}'; it must be auto, on or off")
endif()
set(NIBBLE_CUDA_BUILT OFF)
# Builds with the same flags may share their objects: the wheel takes those of the build beside it.
set(NIBBLE_CUDA_OBJECTS ${PROJECT_BINARY_DIR}/cuda CACHE PATH "folder for the objects of CUDA sources")
mark_as_advanced(NIBBLE_CUDA_OBJECTS)

# No C++ runtime is linked: exceptions are off, and the only local statics are pointers to kernels that nvcc writes, which
# any number of threads may set to the same value.
# Machine code for these, and for everything newer an intermediate form that the driver compiles.
set(NIBBLE_CUDA_ARCHITECTURES "80;90" CACHE STRING "compute capabilities to compile machine code for, ascending")
mark_as_advanced(NIBBLE_CUDA_ARCHITECTURES)
set(cuda_targets "")
foreach(arch ${NIBBLE_CUDA_ARCHITECTURES})
  list(APPEND cuda_targets -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET NIBBLE_CUDA_ARCHITECTURES -1 arch)
list(APPEND cuda_targets -gencode=arch=compute_${arch},code=compute_${arch})
set(NIBBLE_CUDA_FLAGS -std=c++20 -O3 -fmad=false $<$<NOT:$<CONFIG:Debug>>:-DNDEBUG>
  -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off,-Wall,-Wextra,-Wshadow
  $<$<BOOL:${NIBBLE_WERROR}>:-Werror=all-warnings> $<$<BOOL:${NIBBLE_WERROR}>:-Xcompiler=-Werror>)

# What is missing, or nothing.
function(cuda_look_for reason)
  find_program(NIBBLE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(NIBBLE_NVCC)
  if(NOT NIBBLE_NVCC)
    set(${reason} "there is no nvcc" PARENT_SCOPE)
    return()
  endif()
  file(REAL_PATH ${NIBBLE_NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH folder)
  cmake_path(GET folder PARENT_PATH toolkit)
  find_path(NIBBLE_CUDA_INCLUDE cuda_runtime_api.h HINTS ${toolkit}/include ${toolkit}/targets/x86_64-linux/include)
  find_library(NIBBLE_CUDART libcudart_static.a HINTS ${toolkit}/lib64 ${toolkit}/targets/x86_64-linux/lib ${toolkit}/lib)
  mark_as_advanced(NIBBLE_CUDA_INCLUDE NIBBLE_CUDART)
  if(NOT NIBBLE_CUDA_INCLUDE OR NOT NIBBLE_CUDART)
    set(${reason} "${NIBBLE_NVCC} has no cuda_runtime_api.h or libcudart_static.a beside it" PARENT_SCOPE)
    return()
  endif()
  # One trial per nvcc: does it work with the host compiler, does it know the architectures?
  if(NOT "${NIBBLE_CUDA_TRIED}" STREQUAL "${nvcc}")
    set(trial ${PROJECT_BINARY_DIR}/CMakeFiles/cuda_trial)
    file(WRITE ${trial}.cu "#include <cuda_bf16.h>\n__global__ void k(__nv_bfloat16 *p) { *p = __float2bfloat16_rn(1); }\n")
    execute_process(COMMAND ${nvcc} -std=c++17 -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90
      -c ${trial}.cu -o ${trial}.o RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
      string(REGEX REPLACE "\n.*" "" said "${said}")
      set(${reason} "${NIBBLE_NVCC} cannot compile here: ${said}" PARENT_SCOPE)
      return()
    endif()
    set(NIBBLE_CUDA_TRIED ${nvcc} CACHE INTERNAL "")
  endif()
endfunction()

if(NOT cuda_wish STREQUAL off)
  set(cuda_reason "")
  if(cuda_wish STREQUAL auto AND (NIBBLE_SANITIZE OR NIBBLE_FUZZ))
    set(cuda_reason "this build has sanitizers")
  else()
    cuda_look_for(cuda_reason)
  endif()
  if(cuda_reason AND cuda_wish STREQUAL on)
    message(FATAL_ERROR "NIBBLE_CUDA=on, but ${cuda_reason}")
  elseif(cuda_reason)
    message(STATUS "CUDA: not built in: ${cuda_reason}")
  else()
    message(STATUS "CUDA: built in, with ${NIBBLE_NVCC}")
    set(NIBBLE_CUDA_BUILT ON)
    set(NIBBLE_CUDA_LIBRARIES ${NIBBLE_CUDART} dl rt)
  endif()
endif()

function(nibble_cuda_object source result)
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
  set(object ${NIBBLE_CUDA_OBJECTS}/${name}.o)
  cmake_path(GET object PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  set(targets ${cuda_targets})
  if(name MATCHES "_sm90\\.cu$")
    set(targets -gencode=arch=compute_90a,code=sm_90a)
  endif()
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${NIBBLE_NVCC} ${NIBBLE_CUDA_FLAGS} ${targets} -DNBL_BUILD
      -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}" COMMAND_EXPAND_LISTS VERBATIM)
  set(${result} ${object} PARENT_SCOPE)
endfunction()
