# Names of topics, groups and jobs come from the broker.
function __fish_tidings_names
    tidings complete-names (commandline -cp | string collect) 2>/dev/null
end

function __fish_tidings_has_names
    set -g __fish_tidings_found (__fish_tidings_names)
    test -n "$__fish_tidings_found"
end

complete -c tidings -n __fish_tidings_has_names -f -a '$__fish_tidings_found'
