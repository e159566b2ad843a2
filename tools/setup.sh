#!/usr/bin/env bash
# Install what this checkout needs to run (`local`) or to be tested (`dev`): Debian packages, .venv, pinned packages.
# Safe to repeat and to run in parallel. Returns quickly if everything is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:-local}
case $profile in
local | dev) ;;
*)
    echo "usage: tools/setup.sh local|dev" >&2
    exit 2
    ;;
esac

log() { printf 'setup: %s\n' "$*" >&2; }
die() {
    log "$@"
    exit 1
}

has_library() { compgen -G "/usr/lib*/$1*" >/dev/null || compgen -G "/usr/lib/*/$1*" >/dev/null || compgen -G "/lib/*/$1*" >/dev/null; }
has_compose() { docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; }

missing_packages() {
    command -v bwrap >/dev/null || echo bubblewrap
    has_library libseccomp.so.2 || echo libseccomp2
    [ -x .venv/bin/python ] || find_python >/dev/null || echo python3 python3-venv
    [ "$profile" = dev ] || return 0
    command -v chromium >/dev/null || echo chromium
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
    command -v git >/dev/null || echo git
    has_compose || compose_package
    if [ "$(id -u)" = 0 ]; then missing_for_privileged_tests; fi
}

# Only tests that run as root use these: an engine and its images, network and disk faults, other clocks.
missing_for_privileged_tests() {
    command -v dockerd >/dev/null || echo docker.io
    command -v mmdebstrap >/dev/null || echo mmdebstrap
    command -v apparmor_parser >/dev/null || echo apparmor
    command -v ip >/dev/null || echo iproute2
    command -v iptables >/dev/null || echo iptables
    command -v faketime >/dev/null || echo faketime
    command -v mkfs.ext4 >/dev/null || echo e2fsprogs
    command -v openssl >/dev/null || echo openssl
    command -v zstd >/dev/null || echo zstd
}

# Debian 12 knows only docker-compose 1.29; newer releases and Ubuntu package the plugin.
compose_package() {
    local name
    command -v apt-cache >/dev/null || return 0
    for name in docker-compose-v2 docker-compose-plugin docker-compose; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo docker-compose
}

# Only a sudo without a password: `make` must not stop in the middle to prompt for one.
as_root() {
    if [ "$(id -u)" = 0 ]; then echo env; elif sudo -n true 2>/dev/null; then echo sudo; else return 1; fi
}

ensure_packages() {
    local missing prefix
    missing=$(missing_packages | xargs)
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null; then
        report_missing "missing: $missing (Debian's names); install them with this system's package manager"
    elif ! prefix=$(as_root); then
        report_missing "missing: $missing; install with: sudo apt-get install -y --no-install-recommends $missing"
    else
        log "installing $missing"
        apt_install "$prefix" $missing || report_missing "apt-get could not install: $missing"
    fi
}

apt_install() {
    local prefix=$1
    shift
    if ! "$prefix" DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1; then
        "$prefix" apt-get update -q >/dev/null
        "$prefix" DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
    fi
}

# Name what is missing; `banksman doctor` and the report of the tests name it again.
report_missing() {
    log "$@"
    [ "${BANKSMAN_TEST_PRIVILEGED:-}" != required ] || die "BANKSMAN_TEST_PRIVILEGED=required: stopping"
}

find_python() {
    local candidate
    for candidate in ${BANKSMAN_PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

fingerprint() {
    cat "requirements/$1.txt" pyproject.toml | sha256sum | cut -d ' ' -f 1
}

# The folder is part of the stamp: the scripts of an environment contain its absolute path.
stamp() { echo "$1 $(fingerprint "$1") $PWD"; }

is_current() {
    [ -x .venv/bin/python ] && [ -x .venv/bin/banksman ] && grep -qxF "$(stamp "$1")" .venv/.banksman 2>/dev/null
}

ensure_environment() {
    local python
    if is_current "$profile"; then return; fi
    if ! .venv/bin/python -c 'import pip' 2>/dev/null || ! grep -qF " $PWD" .venv/.banksman 2>/dev/null; then
        python=$(find_python) || die "no Python with venv found: Banksman needs 3.11, 3.12 or 3.13" \
            "(set BANKSMAN_PYTHON to its path; Debian: apt-get install python3 python3-venv)"
        log "creating .venv with $("$python" --version)"
        "$python" -m venv --clear .venv
        echo "- - $PWD" >.venv/.banksman
    fi
    log "installing requirements/$profile.txt"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r "requirements/$profile.txt"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
    # Otherwise all services compile the same modules at once when they start for the first time.
    .venv/bin/python -m compileall -q -j 0 shared services cli
    if [ "$profile" = dev ]; then { stamp local; stamp dev; } else stamp local; fi >.venv/.banksman
}

# A second process waits here and then finds everything installed. The lock ends with this process.
if command -v flock >/dev/null; then
    exec 9<.
    flock 9
fi
ensure_packages
ensure_environment
