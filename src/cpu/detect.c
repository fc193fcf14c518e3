/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor can do. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cpu.h"

#if defined(EG_EMULATED)
/* All instruction sets are plain C. */
static uint32_t detect(void) { return EG_CPU_AVX2 | EG_CPU_AVX512 | EG_CPU_BF16 | EG_CPU_AMX; }
#else

#if defined(__x86_64__) && defined(__linux__)
/* AMX wants the processor (CPUID leaf 7; and AVX-512 BF16 beside it, which all have), the system's part in
 * saving its registers (XCR0) and, once a process, the kernel's leave to use them: see
 * Documentation/arch/x86/xstate.rst of Linux. */
static bool has_amx(void) {
    enum { TILE = 1 << 24, BF16 = 1 << 22, OSXSAVE = 1 << 27, XCR0_TILES = 3 << 17 };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d, xcr0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILE | BF16)) != (TILE | BF16)) return false;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    return (xcr0 & XCR0_TILES) == XCR0_TILES &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#elif defined(__x86_64__)
static bool has_amx(void) { return false; }
#endif

static uint32_t detect(void) {
    uint32_t features = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* Every processor with both has F16C too. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        features |= EG_CPU_AVX2;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        (features & EG_CPU_AVX2)) {
        features |= EG_CPU_AVX512;
    }
    if ((features & EG_CPU_AVX512) && __builtin_cpu_supports("avx512bf16")) features |= EG_CPU_BF16;
    if ((features & EG_CPU_BF16) && has_amx()) features |= EG_CPU_AMX;
#elif defined(__aarch64__)
    features |= EG_CPU_NEON;
#endif
    return features;
}
#endif

/* Levels in order; a cap keeps its own level and those before it. */
static const struct {
    const char *name;
    uint32_t bits;
} levels[] = {{"portable", 0},           {"neon", EG_CPU_NEON},        {"avx2", EG_CPU_AVX2},
              {"avx512", EG_CPU_AVX512}, {"avx512_bf16", EG_CPU_BF16}, {"amx", EG_CPU_AMX}};

eg_status eg_cpu_detect(uint32_t *features) {
    const char *cap = getenv("EPIGRAD_CPU_ISA");
    *features = detect();
    if (cap == NULL || *cap == '\0') return EG_OK;
    uint32_t allowed = 0;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        allowed |= levels[i].bits;
        if (strcmp(levels[i].name, cap) == 0) {
            *features &= allowed;
            return EG_OK;
        }
    }
    return eg_fail(EG_ERR_ARGUMENT,
                   "EPIGRAD_CPU_ISA is %s; expected portable, neon, avx2, avx512, avx512_bf16 or amx",
                   eg_quote(cap).text);
}

const char *eg_cpu_feature_text(uint32_t features) {
    if (features & EG_CPU_AMX) return "amx avx512_bf16 avx512 avx2 portable";
    if (features & EG_CPU_BF16) return "avx512_bf16 avx512 avx2 portable";
    if (features & EG_CPU_AVX512) return "avx512 avx2 portable";
    if (features & EG_CPU_AVX2) return "avx2 portable";
    if (features & EG_CPU_NEON) return "neon portable";
    return "portable";
}

const char *eg_cpu_needs_text(uint32_t needs) {
    const char *name = levels[0].name;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (levels[i].bits & needs) name = levels[i].name;
    }
    return name;
}

/* A virtual machine may hide the generation in the name, "AMD EPYC" or "Intel(R) Xeon(R) Processor", but not
 * the family and the model. */
void eg_cpu_model(char *name, size_t capacity) {
    snprintf(name, capacity, "cpu");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) return;
    char line[256];
    int family = 0, model = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon == NULL) continue;
        if (strncmp(line, "cpu family", 10) == 0) family = atoi(colon + 1);
        if (strncmp(line, "model\t", 6) == 0) model = atoi(colon + 1);
        if (strncmp(line, "model name", 10) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        const int length = snprintf(name, capacity, "%s", colon + 2);
        if (family > 0 && length > 0 && (size_t)length < capacity)
            snprintf(name + length, capacity - (size_t)length, ", family %d, model %d", family, model);
        break;
    }
    fclose(file);
}
