/* SPDX-License-Identifier: Apache-2.0 */
/* The backward pass by epigrad, through its public interface.
 *
 *     peer_epigrad THREADS default|strict|fast */
#include "worker.h"

#include <epigrad/epigrad.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    eg_context *context;
    eg_math math;
    eg_layer layer;
} peer;

bool peer_open(int count, char **arguments) {
    static const char *const names[] = {"default", "strict", "fast"};
    int math = 0;
    while (count == 2 && math < 3 && strcmp(arguments[1], names[math]) != 0) math++;
    if (count != 2 || math == 3) return peer_refusal("usage: peer_epigrad THREADS default|strict|fast");
    peer.math = (eg_math)math;
    const eg_open_info info = {.size = sizeof info, .threads = atoi(arguments[0])};
    return eg_open(&info, &peer.context) == EG_OK || peer_refusal("%s", eg_last_error());
}

const char *peer_about(void) {
    static char text[400];
    eg_device_info device = {.size = sizeof device};
    if (eg_get_device_info(peer.context, &device) != EG_OK) return eg_last_error();
    snprintf(text, sizeof text, "epigrad %s, %s", eg_version(), device.features);
    return text;
}

static eg_backward_args arguments_of(const operands *x) {
    return (eg_backward_args){.size = sizeof(eg_backward_args),
                              .a.data = x->a,
                              .b.data = x->b,
                              .bias.data = x->bias,
                              .grad.data = x->grad,
                              .d_a.data = x->d_a,
                              .d_b.data = x->d_b,
                              .d_bias.data = x->d_bias};
}

/* The kernel rows that the plan names, which is all that a table has room for. */
const char *peer_details(void) {
    static char text[400];
    char plan[4096], mark[1] = {0};
    const operands any = {mark, mark, mark, mark, mark, mark, mark};
    const eg_backward_args args = arguments_of(&any);
    text[0] = '\0';
    if (eg_backward_plan(peer.context, &peer.layer, &args, plan, sizeof plan) != EG_OK) return "";
    eg_kernel_info kernel = {.size = sizeof kernel};
    for (int i = 0; eg_get_kernel_info(peer.context, i, &kernel) == EG_OK; i++) {
        const size_t used = strlen(text);
        if (strstr(plan, kernel.name) == NULL || strstr(text, kernel.name) != NULL) continue;
        snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? " " : "", kernel.name);
    }
    return text;
}

bool peer_prepare(const problem *p) {
    static const eg_dtype types[] = {[F32] = EG_F32, [F64] = EG_F64, [F16] = EG_F16, [BF16] = EG_BF16};
    peer.layer = (eg_layer){.size = sizeof peer.layer,
                            .m = p->m,
                            .k = p->k,
                            .n = p->n,
                            .batch = 1,
                            .dtype = types[p->type],
                            .activation = EG_ACT_GELU,
                            .math = peer.math};
    return true;
}

void peer_backward(const operands *x) {
    const eg_backward_args args = arguments_of(x);
    if (eg_backward(peer.context, &peer.layer, &args) != EG_OK) fprintf(stderr, "%s\n", eg_last_error());
}

double peer_peak(void) {
    double gflops = 0;
    return eg_measure_peak(peer.context, peer.layer.dtype, &gflops) == EG_OK ? gflops : 0;
}
