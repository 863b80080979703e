# Run a command of a Harbor task in namespaces of its own: `sh enter.sh ROOT WORKDIR MEMORY_KB FILE_BLOCKS COMMAND...`,
# within `unshare --user --map-root-user --mount --net --pid --ipc --uts --fork`.
# Seen are ROOT, which it may change, this machine's programs, which it may not, and nothing else of this machine.
# Every call builds the view anew: what an earlier command put in place of a program is gone. No link of ROOT is ever
# written through, since it may lead out of it; and the caller runs one command of a ROOT at a time.
set -eu
root=$1 workdir=$2 memory=$3 file=$4
shift 4
mount --bind "$root" "$root"
for name in usr bin sbin lib lib32 lib64 opt; do
    inside="$root/$name"
    if [ -L "/$name" ]; then
        rm -rf "$inside"
        ln -s "$(readlink "/$name")" "$inside"
    elif [ -d "/$name" ]; then
        [ -d "$inside" ] && [ ! -L "$inside" ] || { rm -rf "$inside"; mkdir "$inside"; }
        mount --bind -o ro "/$name" "$inside"
    fi
done
for name in etc dev proc; do
    [ -d "$root/$name" ] && [ ! -L "$root/$name" ] || { rm -rf "${root:?}/$name"; mkdir "$root/$name"; }
done
for name in passwd group nsswitch.conf localtime ld.so.cache alternatives ssl; do
    inside="$root/etc/$name"
    if [ -d "/etc/$name" ]; then
        [ -d "$inside" ] && [ ! -L "$inside" ] || { rm -rf "$inside"; mkdir "$inside"; }
    elif [ -e "/etc/$name" ]; then
        [ -f "$inside" ] && [ ! -L "$inside" ] || { rm -rf "$inside"; : > "$inside"; }
    else
        continue
    fi
    mount --bind -o ro "/etc/$name" "$inside"
done
for name in null zero random urandom; do
    inside="$root/dev/$name"
    [ -f "$inside" ] && [ ! -L "$inside" ] || { rm -rf "$inside"; : > "$inside"; }
    mount --bind "/dev/$name" "$inside"
done
# Some containers do not permit it; then /proc is empty, which most programs bear.
mount -t proc proc "$root/proc" 2> "$root/dev/null" || :
ulimit -v "$memory"
ulimit -f "$file"
# A chroot alone could be left by who may call chroot, and a read-only mount be changed by who may mount: neither may.
exec chroot "$root" setpriv --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all \
    sh -c 'cd "$1" && shift && exec "$@"' sh "$workdir" "$@"
