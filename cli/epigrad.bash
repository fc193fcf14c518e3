# SPDX-License-Identifier: Apache-2.0
# bash completion of the epigrad command. What may stand where is asked of the command itself (epigrad --complete), so
# that nothing has to be added here when the command learns a word. Only what bash has by itself is used.

_epigrad_offer() { # _epigrad_offer START BEFORE: of the words on stdin, those that make BEFORE + word begin with START
    local word
    while read -r word; do
        [[ $2$word != "$1"* ]] || COMPREPLY+=("$2$word")
    done
}

_epigrad_offer_files() { # _epigrad_offer_files START: what IN and OUT may be, folders and .safetensors files
    compopt -o filenames 2>/dev/null # fails where no key was pressed, as in a test
    mapfile -t COMPREPLY < <(compgen -d -- "$1"; compgen -f -X '!*.safetensors' -- "$1")
}

_epigrad() { # _epigrad PROGRAM ...
    local ask=("$1" --complete) command=${COMP_WORDS[1]} before='' words
    local current=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _epigrad_offer "$current" '' < <("${ask[@]}" 2>/dev/null)
        return
    fi

    # readline takes "--mode=pre" for three words.
    if [[ $current == = ]]; then
        current=
    elif [[ $option == = ]]; then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    fi

    if [[ $option == -o || $option == --output ]]; then
        _epigrad_offer_files "$current"
    elif words=$("${ask[@]}" "$command" "$option" 2>/dev/null); then
        [[ $option != --want && $option != --accumulate-into || $current != *,* ]] || before=${current%,*}, # the last one of a list
        [[ -z $words ]] || _epigrad_offer "$current" "$before" <<<"$words"
    elif [[ $current == -* ]]; then
        _epigrad_offer "$current" '' < <("${ask[@]}" "$command" 2>/dev/null)
    elif [[ $command == forward || $command == backward || $command == plan ]]; then
        _epigrad_offer_files "$current"
    fi
}

complete -F _epigrad epigrad
