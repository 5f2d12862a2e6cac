# machine.sh FOLDER: two machines for one test, of which this shell is `broker.example`. In
# namespaces of its own it has /etc, /var/lib, /var/log, /run and /usr/local/bin to itself, and a
# network in which there is only `elsewhere`.
#
# Lines on standard input are commands; those behind `elsewhere ` are for a shell there. What both
# print is standard output. FOLDER/home is where both work; what is in FOLDER/bin comes first in the
# PATH of the broker's machine.
set -e
folder=$1
exec 2>&1

mount -t proc proc /proc
own() {
    mkdir -p "$2"
    mount --bind "$2" "$1"
}
cp -a /etc "$folder/etc"
cp -a /usr/local/bin "$folder/local"
mkdir -p "$folder/lib/nginx" "$folder/log/nginx" "$folder/home"
own /etc "$folder/etc"
own /usr/local/bin "$folder/local"
own /var/lib "$folder/lib"
own /var/log "$folder/log"
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
