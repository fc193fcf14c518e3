/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the ways to make a call is best, by trials on the device: EG_TUNING_MEASURED. */
#ifndef EG_TUNE_H
#define EG_TUNE_H

#include "backend.h"

/* Tries the candidates for a call and keeps the best one, whose program is *program then. It stays as it is
 * where nothing can be timed now. */
eg_status eg_tune(eg_context *context, const eg_problem *problem, eg_address workspace,
                  const eg_program **program);

#endif
