/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to make a call between which an eg_choice decides. */
#ifndef EG_CHOICE_H
#define EG_CHOICE_H

#include "backend.h"

/* One decision after the other: the copies, whether products are paired in one kernel, then the way of each
 * operation, with the algorithm of a library that makes its product. */
typedef struct eg_decision {
    uint8_t *rank, *algorithm; /* in a choice. NULL: it has none */
} eg_decision;

enum { EG_RANKS = 10 /* of a decision that are looked at */ };

/* Those that a program's operations leave open. */
int eg_decisions_of(const eg_op_list *list);
eg_decision eg_decision_of(eg_choice *choice, int index);

/* The program of `list` by a choice; false where there is none. Leaves the error as it was. */
bool eg_compile_choice(const eg_caps *caps, const eg_op_list *list, const eg_choice *choice,
                       eg_program *program);

/* Bytes of workspace that another choice may ask for, as far as it differs in one decision. A workspace is
 * asked for before trials, and then has to do. */
size_t eg_room_of_choices(const eg_caps *caps, const eg_op_list *list);

#endif
