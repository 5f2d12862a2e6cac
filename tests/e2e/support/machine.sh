# machine.sh FOLDER: two machines for one test; this shell is `broker.example`. In its
# namespaces it has its own /etc, /var/lib, /var/log, /run and /usr/local/bin, and a network whose only
# other machine is `elsewhere`.
#
# Lines on standard input are commands; those that begin with `elsewhere ` run in a shell on the other
# machine. Standard output has the output of both. FOLDER/home is the working directory of both;
# FOLDER/bin is first in the PATH of the broker's machine.
set -e
folder=$1
exec 2>&1

mount -t proc proc /proc
bind_own() {
    mkdir -p "$2"
    mount --bind "$2" "$1"
}
cp -a /etc "$folder/etc"
cp -a /usr/local/bin "$folder/local"
mkdir -p "$folder/lib/nginx" "$folder/log/nginx" "$folder/home"
bind_own /etc "$folder/etc"
bind_own /usr/local/bin "$folder/local"
bind_own /var/lib "$folder/lib"
bind_own /var/log "$folder/log"
mount -t tmpfs none /run
mkdir /run/netns
printf '%s\n' '127.0.0.1 localhost' '192.0.2.10 broker.example' '192.0.2.99 blog.example' > /etc/hosts

ip link set lo up
ip netns add elsewhere
ip link add there type veth peer name here netns elsewhere
ip address add 192.0.2.10/24 dev there
ip link set there up
ip netns exec elsewhere sh -c 'ip address add 192.0.2.99/24 dev here; ip link set here up; ip link set lo up'

cd "$folder/home"
loop='while IFS= read -r line; do eval "$line" < /dev/null; status=$?; done'
mkfifo "$folder/elsewhere"
exec 9<> "$folder/elsewhere"
ip netns exec elsewhere env TIDINGS_ALLOW_PRIVATE=true bash -c "$loop" < "$folder/elsewhere" 9>&- &
set +e
export PATH=$folder/bin:$PATH
echo ready
while IFS= read -r line; do
    case $line in
        'elsewhere '*) printf '%s\n' "${line#elsewhere }" >&9 ;;
        *)
            eval "$line" < /dev/null 9>&-
            status=$?
            ;;
    esac
done
