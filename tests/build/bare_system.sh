#!/usr/bin/env bash
# bare_system.sh SUITE [ARGUMENT ...]: installs a new Debian (bookworm, trixie) with the packages that the README names:
# a C compiler, make, git and Python with its headers and venv. Removes each in turn and reads the message of make. Then
# runs `make demo` and `make test` in that system, which has no other packages. The arguments are for pytest.
#
# Needs root, debootstrap, unshare, and a mirror of Debian that apt knows. If one is missing, names it and exits with
# status 77. The system is in build/bare/SUITE and is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

suite=$1 architecture=$(dpkg --print-architecture 2> /dev/null || uname -m)
root=$PWD/build/bare/$suite
. tests/platforms/system.sh
check_machine

trap 'rm -rf "$root"' EXIT
install_system gcc,libc6-dev,make,git,python3-dev,python3-venv
copy_repository

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
