#!/usr/bin/env bash
# build_python.sh KIND prints the path of a free-threaded CPython 3.13. The first run with a KIND builds the CPython.
#
#   free-threaded   as released
#   debug           a debug build, which has assertions and counts references
#   tsan            with ThreadSanitizer, by clang
#
# The builds stay in ${XDG_CACHE_HOME:-~/.cache}/dlpack_py. DLPACK_PY_PYTHON_SOURCE names the tarball of the source.
# Without it, on Debian, apt downloads the source from the mirror of the machine, and installs nothing.
# If a build is impossible, prints the reason on stderr and exits with status 77. If a build fails, exits with status 1.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/dlpack_py
kind=${1:-free-threaded}
configure=(-q --disable-gil --disable-test-modules --with-ensurepip=no)
case $kind in
    free-threaded) configure+=("OPT=-DNDEBUG -fwrapv -O1") ;;
    debug) debug=d configure+=(--with-pydebug) ;;
    tsan)
        CC=$(compgen -c clang | grep -Ex 'clang(-[0-9]+)?' | sort -Vr | head -n 1) || true
        configure+=(--with-thread-sanitizer "CC=$CC" "CXX=${CC/clang/clang++}" "OPT=-DNDEBUG -g -fwrapv -O1")
        ;;
    *) echo "build_python.sh: there is no kind '$kind'" >&2 && exit 2 ;;
esac

impossible() {
    echo "no $kind CPython 3.13: $1" >&2
    exit 77
}

# Creates a separate apt configuration in folder $1, with the sources of trixie. Installs no package.
apt_world() {
    local uri
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null | head -n 1)
    [ -n "$uri" ] || impossible "apt knows no Debian mirror; DLPACK_PY_PYTHON_SOURCE can name a tarball"
    mkdir -p "$1"/{parts,state/lists/partial,cache/archives/partial}
    touch "$1/status"
    printf '%s\n' 'Types: deb-src' "URIs: $uri" 'Suites: trixie' 'Components: main' 'Check-Valid-Until: no' \
        'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' > "$1/parts/trixie.sources"
    cat > "$1/apt.conf" << END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$1/parts";
Dir::State "$1/state";
Dir::State::status "$1/status";
Dir::Cache "$1/cache";
APT::Sandbox::User "$(id -un)";
END
    export APT_CONFIG=$1/apt.conf
}

# Prints the path of the source. All kinds use one download.
source_tarball() (
    if [ -n "${DLPACK_PY_PYTHON_SOURCE:-}" ]; then
        realpath "$DLPACK_PY_PYTHON_SOURCE"
        return
    fi
    exec 9> "$cache/lock" && flock 9 # another process may download the source
    kept=$(ls "$cache"/python3.13_*.orig.tar.xz 2> /dev/null | tail -n 1)
    if [ -z "$kept" ]; then
        command -v apt-get > /dev/null || impossible "no apt-get here; DLPACK_PY_PYTHON_SOURCE can name a tarball"
        world=$(mktemp -d)
        trap 'rm -rf "$world"' EXIT
        apt_world "$world"
        cd "$world"
        { apt-get update -qq && apt-get source -qq --download-only --tar-only python3.13/trixie; } > log 2>&1 ||
            impossible "apt brings no source: $(tail -n 1 log)"
        mv python3.13_*.orig.tar.xz "$cache"
        kept=$(ls "$cache"/python3.13_*.orig.tar.xz)
    fi
    echo "$kept"
)

# Builds in folder $work, without the modules that no test imports. The option --help stops compileall: `make install`
# would compile the whole standard library three times.
build() {
    cd "$work/build" &&
        ../source/configure --prefix="$prefix" "${configure[@]}" &&
        printf '%s\n' '*disabled*' _codecs_{cn,hk,iso2022,jp,kr,tw} _curses _curses_panel _multibytecodec _sqlite3 _tkinter readline \
            > Modules/Setup.local &&
        make -s -j2 &&
        make -s install DESTDIR="$work/root" COMPILEALL_OPTS=--help &&
        TSAN_OPTIONS=report_bugs=0 "$work/root$python" -c 'import _ctypes, _ssl, zlib'
}

prefix=$cache/python3.13-$kind
python=$prefix/bin/python3.13t${debug:-}
if [ ! -x "$python" ]; then
    [ "$kind" != tsan ] || [ -n "$CC" ] || impossible "no clang here"
    [ "$kind" != tsan ] || echo 'int main(void) { return 0; }' | "$CC" -fsanitize=thread -x c -o /dev/null - ||
        impossible "$CC comes without ThreadSanitizer"
    for needed in make xz "${CC:-cc}"; do
        command -v "$needed" > /dev/null || impossible "no $needed here"
    done
    mkdir -p "$cache"
    tarball=$(source_tarball)
    work=$(mktemp -d "$cache/$kind.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "building a $kind CPython of $(basename "$tarball")" >&2
    mkdir "$work/source" "$work/build"
    tar -xf "$tarball" -C "$work/source" --strip-components 1
    if ! build > "$cache/$kind.log" 2>&1; then
        tail -n 20 "$cache/$kind.log" >&2
        echo "the $kind CPython 3.13 does not build: $cache/$kind.log" >&2
        exit 1
    fi
    rm -rf "$prefix"
    mv "$work/root$prefix" "$prefix"
fi
echo "$python"
