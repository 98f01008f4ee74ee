#!/usr/bin/env bash
# bare_system.sh SUITE [ARGUMENT ...]: installs a new Debian (bookworm, trixie) with the packages that the README names:
# a C compiler, make, git and Python with its headers and venv. Removes each in turn and reads the message of make. Then
# runs `make demo` and `make test` in that system, which has no other packages. The arguments are for pytest.
#
# Needs root, debootstrap, unshare, and a mirror of Debian that apt knows. If one is missing, names it and exits with
# status 77. The system is in build/bare/SUITE and is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

suite=$1
root=$PWD/build/bare/$suite

impossible() {
    echo "SKIPPED: no bare $suite: $1"
    exit 77
}

[ "$(id -u)" = 0 ] || impossible "this is not root"
for command in debootstrap unshare; do
    command -v $command > /dev/null || impossible "$command is not installed"
done
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null | head -n 1)
[ -n "$mirror" ] || impossible "apt knows no mirror of Debian"

trap 'rm -rf "$root"' EXIT
rm -rf "$root" && mkdir -p "$root"
debootstrap --variant=minbase --include=gcc,libc6-dev,make,git,python3-dev,python3-venv "$suite" "$root" "$mirror" \
    > "$root.log" 2>&1 || { tail -n 20 "$root.log" && exit 1; }

# Copies the tracked files as they are here, and what pip needs to reach an index: host names, certificates, settings.
mkdir "$root/root/dlpack_py"
git ls-files -z | tar --null -T - -c | tar -x -C "$root/root/dlpack_py"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
certificates=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
if [ -e "$certificates" ]; then cp "$certificates" "$root/etc/certificates.crt"; fi
if [ -e /etc/pip.conf ]; then grep -v '^cert' /etc/pip.conf > "$root/etc/pip.conf" || true; fi

# inside [OPTION OF unshare ...] COMMAND: runs the command in the repository of that system. Passes on only CMAKE_ARGS
# and the environment variables for pip.
inside() {
    local settings=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8) name
    if [ -e "$root/etc/certificates.crt" ]; then settings+=(PIP_CERT=/etc/certificates.crt); fi
    for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL http_proxy https_proxy no_proxy CMAKE_ARGS; do
        if [ -n "${!name:-}" ]; then settings+=("$name=${!name}"); fi
    done
    unshare --mount "${@:1:$#-1}" sh -c \
        'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"' \
        "$root" env -i "${settings[@]}" sh -c "cd /root/dlpack_py && ${*: -1}"
}

failed=0

# without NAME MESSAGE [OPTION OF unshare ...] COMMAND: after COMMAND has removed NAME, make test prints MESSAGE.
without() {
    local said
    said=$(inside "${@:3:$#-3}" "${*: -1}; make --no-print-directory test" 2>&1) && said="make test passed"
    if [ "$(grep -c 'MISSING: ' <<< "$said")" = 1 ] && grep -q "MISSING: .*$2" <<< "$said"; then
        echo "without $1: $(grep -o 'MISSING: .*' <<< "$said")"
    else
        printf 'FAILED: without %s there is no line that says "%s", but:\n%s\n' "$1" "$2" "$said"
        failed=1
    fi
}

echo "---- $suite: what is said of a missing piece"
without "a network" "is there a network" --net true
inside 'rm -rf .venv'
without "a C compiler" "no C compiler .cc.*gcc" 'mv /usr/bin/cc /usr/bin/cc.away'
inside 'mv /usr/bin/cc.away /usr/bin/cc'
without "the C library's headers" "libc6-dev" 'mv /usr/include/stdlib.h /usr/include/stdlib.away'
inside 'mv /usr/include/stdlib.away /usr/include/stdlib.h'
without "Python.h" "no Python.h .*python3-dev" 'cd /usr/include/python3.*/ && mv Python.h Python.away && cd -'
inside 'cd /usr/include/python3.*/ && mv Python.away Python.h'
without "venv" "python3-venv" 'cd /usr/lib/python3.*/ensurepip && mv __init__.py away && cd -'
inside 'cd /usr/lib/python3.*/ensurepip && mv away __init__.py; rm -rf .venv'
without "Python" "no Python .python3" 'mv /usr/bin/python3 /usr/bin/away'
inside 'mv /usr/bin/away /usr/bin/python3'

for target in demo test; do
    echo "---- $suite: make $target"
    SECONDS=0
    inside "make $target PYTEST_ARGS='${*:2}'" > "$root.log" 2>&1 || failed=1
    tail -n 25 "$root.log" | grep -v '^make'
    echo "---- $suite: make $target took $SECONDS s"
done
exit $failed
