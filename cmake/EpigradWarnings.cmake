# SPDX-License-Identifier: Apache-2.0
# epigrad_options(target): what every target of this project is built with.
function(epigrad_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic)
  if(EPIGRAD_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(EPIGRAD_SANITIZE)
    target_compile_definitions(${target} PRIVATE EG_NO_FORCED_INLINE) # src/cpu/vector.h
    target_compile_options(${target} PRIVATE -fsanitize=${EPIGRAD_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${EPIGRAD_SANITIZE})
  endif()
endfunction()
