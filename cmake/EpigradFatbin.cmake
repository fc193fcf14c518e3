# SPDX-License-Identifier: Apache-2.0
# cmake -DNVCC=... -DOPTIONS=... -DFROM=FILE.cu -DTO=FOLDER/FILE -P EpigradFatbin.cmake
#
# Makes TO.fatbin, and TO.entries: a row EG_ENTRY(FILE, KERNEL) for each kernel that ptxas compiled. By these kernels.c
# knows which file to load for a kernel, so that a process loads no others. TO.d names the headers that were read.
get_filename_component(name ${TO} NAME)
execute_process(COMMAND ${NVCC} ${OPTIONS} -Xptxas -v -MD -MF ${TO}.d -MT ${TO}.fatbin -fatbin -o ${TO}.fatbin ${FROM}
                ERROR_VARIABLE text OUTPUT_VARIABLE out RESULT_VARIABLE result)
string(REGEX MATCHALL "Compiling entry function 'eg_[a-z0-9_]+'" found "${text}")
list(REMOVE_DUPLICATES found) # an architecture each
list(TRANSFORM found REPLACE ".*'eg_([a-z0-9_]+)'" "EG_ENTRY(${name}, \\1)\n")
string(REGEX REPLACE "(ptxas info|    [0-9]+ bytes|[^\n]*Function properties)[^\n]*\n" "" text "${text}")
if(NOT "${out}${text}" STREQUAL "")
  message("${out}${text}")
endif()
if(NOT result EQUAL 0 OR NOT found)
  file(REMOVE ${TO}.fatbin)
  message(FATAL_ERROR "nvcc made no kernels of ${FROM}")
endif()
list(JOIN found "" rows)
file(WRITE ${TO}.entries "${rows}")
