/* SPDX-License-Identifier: Apache-2.0 */
/* Shader modules and pipelines, made on first use and kept: a module for each text and its storage types, a
 * pipeline for each module, epilogue and activation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "device.h"

struct eg_webgpu_module {
    eg_webgpu_module *next;
    const char *text;
    eg_dtype dtype[EG_BINDINGS];
    WGPUShaderModule module;
};

struct eg_webgpu_pipeline {
    eg_webgpu_pipeline *next;
    eg_webgpu_variant variant;
    WGPUComputePipeline pipeline;
    WGPUBindGroupLayout layout;
};

/* Every index is made from the shapes that were validated, so bounds checks in the shader buy nothing. Where
 * an implementation lets us, we go without; EPIGRAD_WEBGPU_CHECKED=1 keeps them. */
static WGPUShaderModule make_module(eg_webgpu *gpu, const char *code) {
    WGPUShaderSourceWGSL source = {.chain = {.sType = WGPUSType_ShaderSourceWGSL},
                                   .code = eg_webgpu_text(code)};
    const WGPUShaderModuleDescriptor wanted = {.nextInChain = &source.chain};
    const char *checked = getenv("EPIGRAD_WEBGPU_CHECKED");
    const bool trusted = checked == NULL || strcmp(checked, "1") != 0;
    if (trusted && gpu->api.DeviceCreateShaderModuleTrusted != NULL)
        return gpu->api.DeviceCreateShaderModuleTrusted(gpu->device, &wanted, 0);
    return gpu->api.DeviceCreateShaderModule(gpu->device, &wanted);
}

static eg_status join(eg_webgpu *gpu, const char *prefix, const char *text, char **code) {
    const size_t length = strlen(prefix) + strlen(text) + 1;
    *code = eg_host_alloc(gpu->context, length);
    if (*code == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a shader of %zu bytes", length);
    snprintf(*code, length, "%s%s", prefix, text);
    return EG_OK;
}

static const char *wgsl_type(eg_dtype dtype) { return dtype == EG_F16 ? "f16" : "f32"; }

static eg_status module_of(eg_webgpu *gpu, const char *text, const eg_dtype *dtype,
                           WGPUShaderModule *module) {
    bool f16 = false;
    char prefix[192], *code;
    for (eg_webgpu_module *m = gpu->modules; m != NULL; m = m->next) {
        *module = m->module;
        if (m->text == text && memcmp(m->dtype, dtype, sizeof m->dtype) == 0) return EG_OK;
    }
    for (int i = 0; i < EG_BINDINGS; i++) f16 = f16 || dtype[i] == EG_F16;
    snprintf(prefix, sizeof prefix,
             "%salias Left = %s; alias Right = %s; alias Extra = %s; alias Out = %s;\n",
             f16 ? "enable f16; " : "", wgsl_type(dtype[EG_LEFT]), wgsl_type(dtype[EG_RIGHT]),
             wgsl_type(dtype[EG_EXTRA]), wgsl_type(dtype[EG_OUT]));
    eg_webgpu_module *made = eg_host_alloc(gpu->context, sizeof *made);
    if (made == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a shader module");
    const eg_status status = join(gpu, prefix, text, &code);
    if (status != EG_OK) {
        eg_host_free(gpu->context, made);
        return status;
    }
    *made = (eg_webgpu_module){.next = gpu->modules, .text = text, .module = make_module(gpu, code)};
    memcpy(made->dtype, dtype, sizeof made->dtype);
    eg_host_free(gpu->context, code);
    gpu->modules = made;
    *module = made->module;
    return EG_OK;
}

/* The label is what debuggers and profilers show. */
static WGPUComputePipeline make_pipeline(eg_webgpu *gpu, const char *label, WGPUShaderModule module,
                                         const WGPUConstantEntry *constants, size_t count) {
    const WGPUComputePipelineDescriptor wanted = {.label = eg_webgpu_text(label),
                                                  .compute = {.module = module,
                                                              .entryPoint = eg_webgpu_text("main"),
                                                              .constantCount = count,
                                                              .constants = constants}};
    return gpu->api.DeviceCreateComputePipeline(gpu->device, &wanted);
}

static WGPUConstantEntry constant(const char *name, double value) {
    return (WGPUConstantEntry){.key = eg_webgpu_text(name), .value = value};
}

static size_t constants_of(const eg_webgpu_variant *v, WGPUConstantEntry *constants) {
    size_t count = 0;
    if (v->kernel->shape == EG_SHAPE_COLUMN_SUM) return 0;
    constants[count++] = constant("EPILOGUE", v->epilogue);
    constants[count++] = constant("ACT", v->activation);
    constants[count++] = constant("OF_Y", v->of_y);
    if (v->kernel->shape != EG_SHAPE_PRODUCT || v->kernel->depth == 1) return count;
    constants[count++] = constant("LEFT_ALONG_DEPTH", v->left_along_depth);
    constants[count++] = constant("RIGHT_ALONG_DEPTH", v->right_along_depth);
    if (v->sums) constants[count++] = constant("SUMS_BY_ROW", v->sums_by_row);
    return count;
}

static bool same(const eg_webgpu_variant *a, const eg_webgpu_variant *b) {
    return a->kernel == b->kernel && a->vec4 == b->vec4 && a->sums == b->sums &&
           a->sums_by_row == b->sums_by_row && a->left_along_depth == b->left_along_depth &&
           a->right_along_depth == b->right_along_depth && a->of_y == b->of_y && a->epilogue == b->epilogue &&
           a->activation == b->activation && memcmp(a->dtype, b->dtype, sizeof a->dtype) == 0;
}

static const char *text_of(const eg_webgpu_variant *v) {
    if (v->sums) return v->vec4 ? v->kernel->sums_vec4 : v->kernel->sums;
    return v->vec4 ? v->kernel->text_vec4 : v->kernel->text;
}

eg_status eg_webgpu_pipeline_of(eg_webgpu *gpu, const eg_webgpu_variant *variant,
                                WGPUComputePipeline *pipeline, WGPUBindGroupLayout *layout) {
    for (eg_webgpu_pipeline *p = gpu->pipelines; p != NULL; p = p->next) {
        *pipeline = p->pipeline, *layout = p->layout;
        if (same(&p->variant, variant)) return EG_OK;
    }
    WGPUShaderModule module = NULL;
    WGPUConstantEntry constants[6];
    const char *text = text_of(variant);
    eg_webgpu_guard(gpu);
    const eg_status found = module_of(gpu, text, variant->dtype, &module);
    WGPUComputePipeline made = NULL;
    if (found == EG_OK)
        made = make_pipeline(gpu, variant->kernel->name, module, constants, constants_of(variant, constants));
    const eg_status status = eg_webgpu_check(gpu, "compiling a kernel");
    eg_webgpu_pipeline *entry = eg_host_alloc(gpu->context, sizeof *entry);
    if (found != EG_OK || status != EG_OK || made == NULL || entry == NULL) {
        if (made != NULL) gpu->api.ComputePipelineRelease(made);
        eg_host_free(gpu->context, entry);
        if (found != EG_OK) return found;
        return status != EG_OK ? status : eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a pipeline");
    }
    *pipeline = made;
    *layout = gpu->api.ComputePipelineGetBindGroupLayout(made, 0);
    *entry = (eg_webgpu_pipeline){gpu->pipelines, *variant, *pipeline, *layout};
    gpu->pipelines = entry;
    return EG_OK;
}

eg_status eg_webgpu_make_pipeline(eg_webgpu *gpu, const char *prefix, const char *text,
                                  const WGPUConstantEntry *constants, size_t count,
                                  WGPUComputePipeline *pipeline) {
    char *code;
    EG_TRY(join(gpu, prefix, text, &code));
    eg_webgpu_guard(gpu);
    WGPUShaderModule module = make_module(gpu, code);
    *pipeline = make_pipeline(gpu, "", module, constants, count);
    const eg_status status = eg_webgpu_check(gpu, "compiling a kernel");
    if (module != NULL) gpu->api.ShaderModuleRelease(module);
    eg_host_free(gpu->context, code);
    return status;
}

void eg_webgpu_free_pipelines(eg_webgpu *gpu) {
    while (gpu->pipelines != NULL) {
        eg_webgpu_pipeline *p = gpu->pipelines;
        gpu->pipelines = p->next;
        gpu->api.BindGroupLayoutRelease(p->layout);
        gpu->api.ComputePipelineRelease(p->pipeline);
        eg_host_free(gpu->context, p);
    }
    while (gpu->modules != NULL) {
        eg_webgpu_module *m = gpu->modules;
        gpu->modules = m->next;
        if (m->module != NULL) gpu->api.ShaderModuleRelease(m->module);
        eg_host_free(gpu->context, m);
    }
}
