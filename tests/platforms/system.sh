# system.sh: Debian systems in folders. debian.sh and tests/build/bare_system.sh source this file, with these variables:
# suite, architecture (as Debian names it) and root, the folder of the system.

impossible() {
    echo "SKIPPED: no $suite $architecture: $1"
    exit 77
}

# A Debian needs root, debootstrap, unshare, a mirror of Debian that apt knows and, for a foreign architecture, an
# emulator. If one is missing, names it and exits with status 77.
check_machine() {
    local command own
    [ "$(id -u)" = 0 ] || impossible "this is not root"
    for command in debootstrap unshare; do
        command -v $command > /dev/null || impossible "$command is not installed"
    done
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 2> /dev/null |
        head -n 1)
    [ -n "$mirror" ] || impossible "apt knows no mirror of Debian"
    own=$(dpkg --print-architecture)
    if [ "$architecture" != "$own" ] && [ "$own $architecture" != "amd64 i386" ] &&
        ! grep -qs '^enabled' "/proc/sys/fs/binfmt_misc/qemu-${architecture/arm64/aarch64}"; then
        impossible "its programs do not run here: qemu-user-static and binfmt-support are not installed"
    fi
}

# install_system PACKAGE,...: installs a new Debian with these packages. A debootstrap that is too old to know the suite
# uses the script of sid.
install_system() {
    local script=$suite
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid
    rm -rf "$root" && mkdir -p "$root"
    debootstrap --arch="$architecture" --variant=minbase --include="$1" "$suite" "$root" "$mirror" "$script" \
        > "$root.log" 2>&1 || { tail -n 20 "$root.log" && rm -rf "$root" && exit 1; }
}

# Copies the tracked files as they are here, and what pip needs to reach an index: host names, certificates, settings.
copy_repository() {
    local certificates=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
    mkdir -p "$root/root/dlpack_py"
    git ls-files -z | tar --null -T - -c | tar -x -C "$root/root/dlpack_py"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    if [ -e "$certificates" ]; then cp "$certificates" "$root/etc/certificates.crt"; fi
    if [ -e /etc/pip.conf ]; then grep -v '^cert' /etc/pip.conf > "$root/etc/pip.conf" || true; fi
}

# inside [OPTION OF unshare ...] COMMAND: runs the command in the repository of that system. Passes on only CMAKE_ARGS,
# DLPACK_PY_PATIENCE and the environment variables for pip.
inside() {
    local settings=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8) name personality=
    if [ -e "$root/etc/certificates.crt" ]; then settings+=(PIP_CERT=/etc/certificates.crt); fi
    for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL http_proxy https_proxy no_proxy CMAKE_ARGS DLPACK_PY_PATIENCE; do
        if [ -n "${!name:-}" ]; then settings+=("$name=${!name}"); fi
    done
    if [ "$architecture" = i386 ]; then personality=linux32; fi # uname says i686 then, as pip and CMake expect
    $personality unshare --mount "${@:1:$#-1}" sh -c \
        'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"' \
        "$root" env -i "${settings[@]}" sh -c "cd /root/dlpack_py && ${*: -1}"
}
