
# Names of topics, groups and jobs come from the broker.
_tidings_names() {
    local -a names
    names=(${(f)"$(tidings complete-names "$LBUFFER" 2>/dev/null)"})
    compadd -a names
}
