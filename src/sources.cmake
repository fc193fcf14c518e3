# SPDX-License-Identifier: Apache-2.0
# The sources of the library that need no particular machine, from src/: what every build has in common, the page's in
# a browser included. Kernels of an instruction set, threads and devices are added where they are known.
set(EPIGRAD_SOURCES
    core/api.c core/backends.c core/cache.c core/choice.c core/collectives.c core/convert.c core/error.c core/fold.c
    core/groups.c core/low_memory_chunk.c core/low_memory_fit.c core/low_memory_layout.c core/low_memory_run.c
    core/lower.c core/lower_exchange.c core/lower_layer.c core/lower_ops.c core/lower_tensor.c core/memory.c
    core/names.c core/overlap.c core/program.c core/tune.c core/validate.c core/validate_comm.c core/validate_open.c
    core/validate_operand.c core/validate_struct.c cpu/backend.c cpu/block_fusion.c cpu/blocking.c cpu/calibration.c
    cpu/choose.c cpu/compile.c cpu/cores.c cpu/detect.c cpu/epilogue.c cpu/estimate.c cpu/dense_maps.c cpu/few_rows.c
    cpu/forks.c cpu/gemm.c cpu/gemm_packed.c cpu/gemm_tile.c cpu/groups.c cpu/kernel_portable.c cpu/kernels.c cpu/map.c
    cpu/outer_dots.c cpu/outer_product.c cpu/pack.c cpu/packed.c cpu/prepare_epilogue.c cpu/product.c cpu/threads.c
    cpu/ways.c)
