/* SPDX-License-Identifier: Apache-2.0 */
/* From public structs to an eg_problem: one readable check per documented rule. */
#ifndef EG_VALIDATE_H
#define EG_VALIDATE_H

#include "problem.h"

eg_status eg_validate_forward(eg_addressing addressing, const eg_layer *layer, const eg_forward_args *args,
                              eg_problem *problem);
eg_status eg_validate_backward(eg_addressing addressing, const eg_layer *layer, const eg_backward_args *args,
                               eg_problem *problem);
eg_status eg_validate_pack(eg_addressing addressing, const eg_layer *layer, const eg_matrix *b,
                           eg_problem *problem);
/* *info points to `copy` where the caller has an older header. */
eg_status eg_validate_open(const eg_open_info **info, eg_open_info *copy);

/* Whether [offset, offset + bytes) from `data` on cannot be a range of memory, whatever memory it is. */
bool eg_out_of_range(eg_addressing addressing, const void *data, size_t offset, uint64_t bytes);

/* The size of a struct that is written: what a newer one has beyond this library's version is left alone. */
eg_status eg_validate_size(const char *name, size_t given, size_t known);

/* A struct that a caller fills in: present, and of a known size; and a value of an enumeration from 0 to
 * `last`. */
eg_status eg_validate_struct(const char *name, const void *struct_, size_t given, size_t known);
eg_status eg_validate_enum(const char *name, int value, int last, const char *expected);

/* The same where callers with an older header have less of the struct, `oldest` bytes at least: it is copied
 * to `copy`, and what they do not know is absent. *given then points there. */
eg_status eg_take_known(const char *name, const void **given, size_t size, size_t oldest, size_t known,
                        void *copy);

/* validate_operand.c: takes what the caller gave of an operand; one without data stays absent. */
eg_status eg_take_matrix(eg_problem *problem, eg_operand_id id, const eg_matrix *matrix,
                         int64_t outer_stride);
eg_status eg_take_vector(eg_problem *problem, eg_operand_id id, const eg_vector *vector);

/* A needed input that has elements must be there; `why` ends the sentence. */
eg_status eg_require(const eg_problem *problem, eg_operand_id id, const char *why);

/* validate_comm.c: what is summed over processes, after all operands. */
eg_status eg_take_data_parallel(const eg_backward_args *args, eg_problem *problem);

/* Before all operands, whose rows depend on it; and what is then to be checked of them. */
eg_status eg_take_tensor_parallel(const eg_tensor_parallel *given, size_t limit, eg_problem *problem);
eg_status eg_check_tensor_parallel(const eg_problem *problem);

/* The communicator of a call that may be wrong otherwise; NULL: there is none that could be used. The message
 * of the failure is kept. */
const eg_comm *eg_comm_of_forward(const eg_forward_args *args);
const eg_comm *eg_comm_of_backward(const eg_backward_args *args);

#endif
