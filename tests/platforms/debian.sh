#!/usr/bin/env bash
# debian.sh SUITE ARCHITECTURE PYTHON [PYTEST ARGUMENT ...]: runs `make test` with this Python of a Debian system:
#   debian.sh trixie i386 python3        debian.sh forky amd64 python3.14        debian.sh forky s390x python3
# The first run installs the system in build/platforms/SUITE-ARCHITECTURE; later runs use it again. If the machine
# cannot install it, names what is missing and exits with status 77. CMAKE_ARGS is passed on.
set -euo pipefail
cd "$(dirname "$0")/../.."

suite=$1 architecture=$2 python=$3
root=$PWD/build/platforms/$suite-$architecture
. tests/platforms/system.sh
check_machine

mkdir -p build/platforms
exec {lock}> "$root.lock"
flock $lock

packages=gcc,g++,libc6-dev,make,git,ca-certificates,$python-dev,$python-venv venv_arguments=
case $architecture in
amd64 | arm64) ;;
i386) packages+=,python3-numpy venv_arguments=--system-site-packages ;; # pip has no wheel
*) # an emulator is slow
    packages+=,python3-numpy,cmake,ninja-build venv_arguments=--system-site-packages
    export DLPACK_PY_PATIENCE=${DLPACK_PY_PATIENCE:-20}
    CMAKE_ARGS="${CMAKE_ARGS:-} -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 -DCMAKE_CXX_FLAGS_DEBUG=-O0"
    ;;
esac

# The folder build of that system is kept, with what make has built and installed there.
if [ -e "$root/root/dlpack_py" ]; then
    find "$root/root/dlpack_py" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
else
    install_system "$packages"
fi
copy_repository
inside "dpkg -s ${packages//,/ } > /dev/null 2>&1 || {
    apt-get -o Acquire::Check-Valid-Until=false -qq update &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends ${packages//,/ }
}" > "$root.log" 2>&1 || { tail -n 20 "$root.log" && exit 1; }

echo "---- $suite $architecture: make test, $python"
failed=0 SECONDS=0
inside "make test PYTHON=$python VENV=build/venv-$python VENV_ARGS=$venv_arguments PYTEST_ARGS='${*:4}'" \
    > "$root.log" 2>&1 || failed=1
grep -E '^(PLATFORM:|SKIPPED|FAILED|ERROR) |^=* ?[0-9]+ [a-z]+.* in [0-9.]+s' "$root.log" || tail -n 25 "$root.log"
echo "---- $suite $architecture: make test, $python, took $SECONDS s"
exit $failed
