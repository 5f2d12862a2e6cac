# Names of topics, groups and jobs come from the broker.
_tidings_with_names() {
    local names
    _tidings "$@"
    names=$("$1" complete-names "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    # Names have no character that a shell would expand.
    [[ -z $names ]] || COMPREPLY=($names)
}

