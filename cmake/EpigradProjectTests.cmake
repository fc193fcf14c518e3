# SPDX-License-Identifier: Apache-2.0
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
add_test(NAME example_digits_gated COMMAND digits --gated --dtype bf16) # and below 96.5%

# A language model's gradients against finite differences; and a loss that falls, or it fails.
set(steps 20)
if(EPIGRAD_SANITIZE)
  set(steps 4)
endif()
add_test(NAME example_gpt COMMAND gpt --steps ${steps} --letters 20)
add_test(NAME example_gpt_gradients COMMAND gpt_f64 --check)
add_test(NAME example_gpt_gradients_f32 COMMAND gpt --check)
add_test(NAME example_gpt_experts COMMAND gpt_f64 --check --experts 4)
add_test(NAME example_gpt_experts_f32 COMMAND gpt --check --experts 4)
# On a GPU; and where there is none, in words and with the status for it.
if(TARGET epigrad_objects_fatbins)
  set(on_device ${PROJECT_SOURCE_DIR}/tests/cuda/on_device.sh)
  add_test(NAME example_gpt_cuda COMMAND ${on_device} $<TARGET_FILE:gpt_f64> --backend cuda --check)
  add_test(NAME example_gpt_cuda_f32 COMMAND ${on_device} $<TARGET_FILE:gpt> --backend cuda --check)
  add_test(NAME example_gpt_cuda_experts COMMAND ${on_device} $<TARGET_FILE:gpt_f64> --backend cuda --check --experts 4)
  add_test(NAME example_gpt_cuda_experts_f32 COMMAND ${on_device} $<TARGET_FILE:gpt> --backend cuda --check --experts 4)
  set_tests_properties(example_gpt_cuda example_gpt_cuda_f32 example_gpt_cuda_experts example_gpt_cuda_experts_f32 PROPERTIES SKIP_RETURN_CODE 77)
endif()
add_test(NAME example_gpt_no_gpu COMMAND sh -c "said=$(\"$0\" --backend cuda 2>&1); test $? = 3 && echo \"$said\" | grep '^gpt: .*(EG_ERR_UNAVAILABLE)$'"
         $<TARGET_FILE:gpt>)
set_tests_properties(example_gpt_no_gpu PROPERTIES ENVIRONMENT "CUDA_VISIBLE_DEVICES=")

# The same loss, step by step, over four processes. mpirun of the library's own MPI.
if(TARGET digits_mpi AND NOT EPIGRAD_SANITIZE)
  find_program(EPIGRAD_MPIRUN mpirun)
  if(EPIGRAD_MPIRUN)
    add_test(NAME example_digits_mpi COMMAND ${PROJECT_SOURCE_DIR}/tools/mpirun.sh ${EPIGRAD_MPIRUN} 4
             $<TARGET_FILE:digits_mpi> --dtype f64 --epochs 5)
    set_tests_properties(example_digits_mpi PROPERTIES PROCESSORS 2 TIMEOUT 300)
  endif()
endif()

add_test(NAME readme_quotes
         COMMAND ${PROJECT_SOURCE_DIR}/tests/install/readme_quotes.sh $<TARGET_FILE:linear>)

# Python, too, has no sanitizer's runtime in it. It is looked for when the test runs: `make demo` does without it.
if(NOT EPIGRAD_SANITIZE)
  add_test(NAME example_linear_python
           COMMAND ${PROJECT_SOURCE_DIR}/tests/example_python.sh $<TARGET_FILE:linear>
                   ${PROJECT_SOURCE_DIR}/examples/linear.py $<TARGET_FILE:epigrad>)
  set_tests_properties(example_linear_python PROPERTIES SKIP_RETURN_CODE 77)
endif()

# The consumers know nothing of sanitizers, which they would have to be built with too.
if(NOT EPIGRAD_SANITIZE)
  set(install ${PROJECT_SOURCE_DIR}/tests/install)
  if(EPIGRAD_INSTALL)
    add_test(NAME install_consumers COMMAND ${install}/run.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
    add_test(NAME install_rust COMMAND ${install}/rust.sh ${PROJECT_BINARY_DIR})
    set_tests_properties(install_consumers install_rust PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  # The parent's build has debugging information, which the comparison with the last release reads.
  set(parent ${PROJECT_BINARY_DIR}/tests/parent)
  add_test(NAME install_subproject COMMAND ${install}/subproject.sh ${parent} ${CMAKE_C_COMPILER})
  add_test(NAME abi COMMAND ${PROJECT_SOURCE_DIR}/tests/abi/abi.sh ${parent}/debug/epigrad/src/libepigrad.so)
  set_tests_properties(install_subproject PROPERTIES FIXTURES_SETUP parent)
  set_tests_properties(abi PROPERTIES FIXTURES_REQUIRED parent SKIP_RETURN_CODE 77)
  if(CMAKE_GENERATOR STREQUAL Ninja)
    add_test(NAME build_targets COMMAND ${install}/targets.sh ${PROJECT_BINARY_DIR} ${CMAKE_MAKE_PROGRAM})
  endif()
endif()

# The documentation: links, words, lengths, the table of figures; and every block of the tutorials, as a reader would
# run it against an installed copy.
set(docs ${PROJECT_SOURCE_DIR}/tests/docs)
add_test(NAME docs COMMAND ${docs}/run.sh ${docs}/check.py links words length)
add_test(NAME docs_performance COMMAND ${docs}/run.sh ${PROJECT_SOURCE_DIR}/tools/performance.py --check)
set_tests_properties(docs docs_performance PROPERTIES SKIP_RETURN_CODE 77)
if(EPIGRAD_CLI AND NOT EPIGRAD_SANITIZE) # a sanitized library wants more from those who link to it
  add_test(NAME docs_tutorials
           COMMAND ${docs}/run.sh ${docs}/check.py tutorials --build ${PROJECT_BINARY_DIR} --cc ${CMAKE_C_COMPILER})
  set_tests_properties(docs_tutorials PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME docs_kernels COMMAND ${docs}/run.sh ${docs}/check.py kernels --build ${PROJECT_BINARY_DIR})
  set_tests_properties(docs_kernels PROPERTIES SKIP_RETURN_CODE 77)
  # Of other libraries too, where their headers are.
  add_test(NAME docs_foreign COMMAND ${docs}/run.sh ${docs}/check.py foreign --cc ${CMAKE_C_COMPILER})
  set_tests_properties(docs_foreign PROPERTIES SKIP_RETURN_CODE 77)
endif()
