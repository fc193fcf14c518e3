/* SPDX-License-Identifier: Apache-2.0 */
#include "choice.h"

#include "compile_scratch.h"
#include "error.h"

int eg_decisions_of(const eg_op_list *list) { return 2 + list->ops; }

eg_decision eg_decision_of(eg_choice *choice, int index) {
    if (index == 0) return (eg_decision){&choice->copies, NULL};
    if (index == 1) return (eg_decision){&choice->unpaired, NULL};
    return (eg_decision){&choice->way[index - 2], &choice->algorithm[index - 2]};
}

bool eg_compile_choice(const eg_caps *caps, const eg_op_list *list, const eg_choice *choice,
                       eg_program *program) {
    const eg_message message = eg_message_get();
    eg_caps by_choice = *caps;
    by_choice.choice = choice;
    program->list = *list;
    const bool is_there = eg_compile(&by_choice, program) == EG_OK && !program->lacks;
    eg_message_put(&message);
    return is_there;
}

/* No algorithm asks for more than the first. */
size_t eg_room_of_choices(const eg_caps *caps, const eg_op_list *list) {
    size_t most = 0;
    for (int i = 0; i < eg_decisions_of(list); i++) {
        eg_choice choice = {0};
        uint8_t *rank = eg_decision_of(&choice, i).rank;
        eg_program *other = &caps->scratch->ranked;
        for (*rank = 1; *rank < EG_RANKS && eg_compile_choice(caps, list, &choice, other); ++*rank) {
            if (other->workspace > most) most = other->workspace;
        }
    }
    return most;
}
