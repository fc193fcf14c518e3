/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of one call, over a communicator.
 *
 * Ranks first say what they are about to do, in EG_AGREED_WORDS words each, by an all-gather that is begun
 * before the products. No other collective begins before those have been compared, so that ranks which
 * disagree get a status, and never meet in a collective that does not match. One of the words is whether the
 * rank's program gains by overlap: reductions are begun under the products only where all ranks gain. Else
 * they run after them, at once and whole, which some engines do in half the time. */
#ifndef EG_COLLECTIVES_H
#define EG_COLLECTIVES_H

#include "program.h"

struct eg_collectives {
    const eg_comm *comm;
    const eg_program *program;
    const eg_call *call;
    int64_t *words; /* in the workspace: this rank's, then those of all; NULL: an engine of a stream */
    bool agreed;    /* all ranks do the same */
    bool overlaps;  /* and reductions begin before the products are through */
    bool begun;     /* something may be under way */
    int at, sent;   /* of a tensor-parallel call: collectives that the program has come to, and all that were
                       sent */
    eg_status status; /* of what was noticed between the tasks of a step; its message is the thread's */
};

/* Pure: the estimated times of a program's collectives, and whether overlap is worth while by those of all
 * steps. */
void eg_collectives_estimate(const eg_caps *caps, eg_program *program);

/* Whether a tensor-parallel call is to overlap, by its order and its estimated times. */
bool eg_collectives_overlap(const eg_program *program);

/* Microseconds of a collective of so many bytes; 0: not known. */
double eg_comm_time(const eg_comm_cost *cost, double bytes);

/* Begins a call whose addresses are bound, and ends it: the status of the call, or of the collectives. */
eg_status eg_collectives_begin(eg_collectives *x, const eg_comm *comm, const eg_program *program,
                               const eg_call *call);
eg_status eg_collectives_end(eg_collectives *x, eg_status status);

/* Of a tensor-parallel call, before its program begins: all ranks do the same, and `overlaps` is known. */
eg_status eg_collectives_agree(eg_collectives *x);

/* Another program takes the call up from the beginning. What has been sent or received is not sent again. */
eg_status eg_collectives_begin_again(eg_collectives *x);

/* For an engine of a stream that checks: the EG_AGREED_WORDS words of this rank, and, when they have been
 * gathered, whether those of all ranks agree. */
void eg_collectives_say(const eg_program *program, int64_t *words);
eg_status eg_collectives_compare(eg_collectives *x, const int64_t *all);

/* Tells the other ranks of a call that this one could not begin. `comm` may be NULL. The message of the
 * failure is kept. */
void eg_collectives_refuse(const eg_comm *comm);

/* A step: a COLLECTIVE. `stream` is for engines of one. */
eg_status eg_collectives_step(eg_collectives *x, const eg_program *program, const eg_step *step,
                              void *stream);

/* Advances what is under way; between the tasks of other steps. */
void eg_collectives_progress(void *collectives);

/* A failure of an engine, in its words. */
eg_status eg_collectives_fail(const eg_comm *comm, const char *what);

#endif
