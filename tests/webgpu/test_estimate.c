/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a kernel by estimated time, on adapters that are not here: against the times that were
 * measured on them (bench/results/webgpu.md). */
#include "support.h"

#include <math.h>

#include "webgpu/pass.h"
#include "webgpu/webgpu_abi.h"

static eg_webgpu_caps device_of(const char *name, uint32_t type) {
    return (eg_webgpu_caps){.binding = (uint64_t)1 << 31,
                            .align = 256,
                            .groups = 65535,
                            .invocations = 256,
                            .memory = 16384,
                            .cpu = type == WGPUAdapterType_CPU,
                            .budget = 2.5e11,
                            .fill = type == WGPUAdapterType_CPU           ? 1
                                    : type == WGPUAdapterType_DiscreteGPU ? 20480
                                                                          : 4096,
                            .part = 512,
                            .adapter = eg_webgpu_adapter_of(name, type)};
}

static eg_webgpu_caps h200(void) { return device_of("NVIDIA H200", WGPUAdapterType_DiscreteGPU); }

/* The products of a backward pass: recomputed A·B, d_a, d_b. */
static eg_op product_of(int64_t m, int64_t k, int64_t n, int product) {
    const int64_t sizes[3][3] = {{m, n, k}, {m, k, n}, {k, n, m}};
    return (eg_op){.kind = EG_GEMM,
                   .items = 1,
                   .summed = 1,
                   .rows = sizes[product][0],
                   .cols = sizes[product][1],
                   .depth = sizes[product][2]};
}

static double time_of(const eg_webgpu_caps *device, const char *kernel, const eg_op *op) {
    const eg_caps caps = {.detail = device, .only_kernel = kernel};
    const eg_webgpu_choice choice = eg_webgpu_choose(&caps, op);
    assert_non_null(choice.kernel);
    if (kernel != NULL) assert_string_equal(choice.kernel->name, kernel);
    const eg_webgpu_pass pass = {.kernel = choice.kernel,
                                 .items = 1,
                                 .rows = op->rows,
                                 .cols = op->cols,
                                 .depth = op->depth,
                                 .chunk = choice.chunk,
                                 .splits = (int32_t)((op->depth + choice.chunk - 1) / choice.chunk)};
    return eg_webgpu_estimate(device, &pass, 1);
}

/* Microseconds of whole backward passes on an H200, by kernel. */
static const struct {
    int64_t m, k, n;
    double shared_64x64, shared_128x128;
} measured[] = {
    {4096, 4096, 4096, 9850, 9650},
    {65536, 512, 512, 2770, 3015},
    {2048, 2048, 2048, 1660, 1330},
    {8192, 8192, 8192, 77800, 75600},
};

static void estimates_are_near_what_was_measured(void **state) {
    (void)state;
    const eg_webgpu_caps device = h200();
    for (size_t i = 0; i < LENGTH(measured); i++) {
        double estimated[2] = {0, 0};
        for (int product = 0; product < 3; product++) {
            const eg_op op = product_of(measured[i].m, measured[i].k, measured[i].n, product);
            estimated[0] += time_of(&device, "shared_64x64", &op);
            estimated[1] += time_of(&device, "shared_128x128", &op);
        }
        assert_true(fabs(estimated[0] / measured[i].shared_64x64 - 1) < 0.15);
        assert_true(fabs(estimated[1] / measured[i].shared_128x128 - 1) < 0.15);
    }
}

/* Time of what is chosen over the time of the better of the two. */
static void choices_cost_little(void **state) {
    (void)state;
    const eg_webgpu_caps device = h200();
    const eg_caps caps = {.detail = &device};
    for (size_t i = 0; i < LENGTH(measured); i++) {
        const eg_op op = product_of(measured[i].m, measured[i].k, measured[i].n, 0);
        const char *name = eg_webgpu_choose(&caps, &op).kernel->name;
        const double taken =
            strcmp(name, "shared_64x64") == 0 ? measured[i].shared_64x64 : measured[i].shared_128x128;
        assert_true(strcmp(name, "shared_64x64") == 0 || strcmp(name, "shared_128x128") == 0);
        assert_true(taken <= 1.03 * fmin(measured[i].shared_64x64, measured[i].shared_128x128));
    }
}

/* The large tile takes seconds to compile, which only large products earn back. */
static void processors_take_what_compiles_fast(void **state) {
    (void)state;
    const eg_webgpu_caps device = device_of("llvmpipe", WGPUAdapterType_CPU);
    const eg_caps caps = {.detail = &device};
    const eg_op small = product_of(128, 128, 128, 0), large = product_of(512, 512, 512, 0);
    assert_string_equal(eg_webgpu_choose(&caps, &small).kernel->name, "direct_16x32");
    assert_string_equal(eg_webgpu_choose(&caps, &large).kernel->name, "direct_16x128");
}

/* What is not known gets a tile that does well everywhere, and what its limits allow. */
static void unknown_devices_get_a_kernel(void **state) {
    (void)state;
    for (uint32_t type = 0; type < 5; type++) {
        eg_webgpu_caps device = device_of("", type);
        const eg_caps caps = {.detail = &device};
        const eg_op op = product_of(4096, 4096, 4096, 0), none = product_of(64, 0, 64, 0);
        const char *full = type == WGPUAdapterType_CPU ? "direct_16x128" : "shared_64x64";
        assert_string_equal(eg_webgpu_choose(&caps, &op).kernel->name, full);
        assert_int_equal(eg_webgpu_choose(&caps, &none).chunk, 1);
        device.memory = 4096;
        if (type != WGPUAdapterType_CPU)
            assert_string_equal(eg_webgpu_choose(&caps, &op).kernel->name, "shared_32x32");
        device.memory = 1024;
        assert_int_equal(eg_webgpu_choose(&caps, &op).kernel->memory, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimates_are_near_what_was_measured),
        cmocka_unit_test(choices_cost_little),
        cmocka_unit_test(processors_take_what_compiles_fast),
        cmocka_unit_test(unknown_devices_get_a_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
