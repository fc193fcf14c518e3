# Tests of the project as a whole, beside those of the library in tests/: the examples do what they promise, the
# README quotes what is there, and an installed library can be used.

add_test(NAME example_linear COMMAND linear)
set(dtypes f32 f64 f16 bf16)
if(EPIGRAD_SANITIZE)
  set(dtypes bf16) # slow there, and bf16 goes through f32 and the gradient check's f64 as well
endif()
foreach(dtype ${dtypes})
  add_test(NAME example_digits_${dtype} COMMAND digits --dtype ${dtype}) # fails below 97%, or on a wrong gradient
endforeach()

add_test(NAME readme_quotes
         COMMAND ${PROJECT_SOURCE_DIR}/tests/install/readme_quotes.sh $<TARGET_FILE:linear>)

# Python, too, has no sanitizer's runtime in it.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND NOT EPIGRAD_SANITIZE)
  set(from_python "'${Python3_EXECUTABLE}' '${PROJECT_SOURCE_DIR}/examples/linear.py' '$<TARGET_FILE:epigrad>'")
  add_test(NAME example_linear_python COMMAND bash -c "diff <('$<TARGET_FILE:linear>') <(${from_python})")
endif()

# The consumers know nothing of sanitizers, which they would have to be built with too.
if(NOT EPIGRAD_SANITIZE)
  add_test(NAME install_consumers
           COMMAND ${PROJECT_SOURCE_DIR}/tests/install/run.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
endif()
