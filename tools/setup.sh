#!/usr/bin/env bash
# Install the requirements for running (`local`) or testing (`dev`) this checkout: Debian packages, .venv, pinned packages.
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
    command -v chromium-headless-shell >/dev/null || headless_shell_package
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
    command -v git >/dev/null || echo git
    command -v curl >/dev/null || echo curl
    command -v sqlite3 >/dev/null || echo sqlite3
    [ -x /usr/bin/pytest ] || echo python3-pytest
    has_library libhighwayhash.so.0 || echo libhighwayhash0
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
    command -v slirp4netns >/dev/null || echo slirp4netns
    command -v faketime >/dev/null || echo faketime
    command -v mkfs.ext4 >/dev/null || echo e2fsprogs
    command -v openssl >/dev/null || echo openssl
    command -v zstd >/dev/null || echo zstd
    ! system_python_lacks_venv || echo python3-venv
}

system_python_lacks_venv() {
    [ -x /usr/bin/python3 ] && ! /usr/bin/python3 -c 'import venv, ensurepip' >/dev/null 2>&1
}

# With the headless shell, tests of the page take less CPU time. Only Debian packages it; elsewhere Chromium is used.
headless_shell_package() {
    command -v apt-cache >/dev/null || return 0
    apt-cache policy chromium-headless-shell 2>/dev/null | grep -q 'Candidate: [0-9]' && echo chromium-headless-shell || true
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

# Uses sudo only if it needs no password, because `make` must not stop to prompt for one.
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

# Report missing packages, which `banksman doctor` and the report of the tests also name.
report_missing() {
    log "$@"
    [ "${BANKSMAN_TEST_PRIVILEGED:-}" != required ] || die "BANKSMAN_TEST_PRIVILEGED=required: stopping"
}

# The system's Python is first: distributions build it with profile-guided optimization. Version managers often do not,
# and a run then takes a quarter more CPU time (docs/decisions/0087).
PYTHONS="/usr/bin/python3.11 /usr/bin/python3.12 /usr/bin/python3.13 python3.11 python3.12 python3.13 python3"

find_python() {
    local candidate
    for candidate in ${BANKSMAN_PYTHON:-$PYTHONS}; do
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

# The folder is part of the stamp, because the scripts of an environment contain its absolute path.
stamp() { echo "$1 $(fingerprint "$1") $PWD"; }

is_current() {
    [ -x .venv/bin/python ] && [ -x .venv/bin/banksman ] && grep -qxF "$(stamp "$1")" .venv/.banksman 2>/dev/null
}

# nkeys is published only as source. All other packages are wheels, so that nothing is compiled here.
SOURCE_ONLY=nkeys

# uv downloads and unpacks in parallel. It does not read pip's configuration; pip is used if uv finds no index.
install_with_uv() {
    command -v uv >/dev/null || return
    uv_install --only-binary :all: --no-binary $SOURCE_ONLY || uv_install || return
    uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
}

uv_install() {
    uv pip install --python .venv/bin/python --require-hashes -r "requirements/$profile.txt" "$@" 2>&1 |
        { grep -v '^ [+~-] ' || true; } >&2
}

install_with_pip() {
    # Builds packages without a wheel for this platform.
    pip_install --only-binary :all: --no-binary $SOURCE_ONLY || pip_install
    pip -qq --no-deps --no-build-isolation --editable .
}

# The file lists every package. Debian 12's pip (23.0) refuses pins of packages that others require with an extra, unless
# it may not look at dependencies.
pip_install() {
    pip --progress-bar off --no-compile --no-deps --require-hashes -r "requirements/$profile.txt" "$@" \
        2> >(grep -v '^WARNING:' >&2) | show_progress
}

pip() { .venv/bin/python -m pip install --disable-pip-version-check "$@"; }

# Print a line for every tenth package. pip prints several for each, and nothing while it unpacks them.
show_progress() {
    local line count=0
    while IFS= read -r line; do
        case $line in
        Collecting*)
            count=$((count + 1))
            if [ $((count % 10)) = 0 ]; then log "$count packages found"; fi
            ;;
        "Installing collected"*) log "unpacking the packages" ;;
        esac
    done
}

# All services start at once, and each would compile the same modules. Two thirds of the modules are not imported by any
# service at its start; they are compiled when they are used.
compile_imports() {
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c '
from banksman.cli.services import SERVICES, load_service
for service in SERVICES:
    load_service(service)
import typer, rich.console, rich.status, rich.markup'
    if [ "$profile" = dev ]; then .venv/bin/python -m compileall -q -j 0 .venv shared services cli; fi
}

ensure_environment() {
    local python
    if is_current "$profile"; then return; fi
    if ! .venv/bin/python -c 'import pip' 2>/dev/null || ! grep -qF " $PWD" .venv/.banksman 2>/dev/null; then
        python=$(find_python) || die "no Python with venv found: Banksman needs 3.11, 3.12 or 3.13" \
            "(set BANKSMAN_PYTHON to its path; Debian: apt-get install python3 python3-venv)"
        log "creating .venv with $("$python" --version)"
        if ! uv venv --quiet --seed --clear --python "$python" .venv 2>/dev/null; then
            "$python" -m venv --clear .venv
        fi
        echo "- - $PWD" >.venv/.banksman
    fi
    log "installing the packages of requirements/$profile.txt; Ctrl-C stops it, and the next run continues"
    if ! install_with_uv; then install_with_pip; fi
    log "compiling what the services import"
    compile_imports
    if [ "$profile" = dev ]; then { stamp local; stamp dev; } else stamp local; fi >.venv/.banksman
}

# A second process waits here and then finds everything installed. The lock ends with this process.
if command -v flock >/dev/null; then
    exec 9<.
    flock 9
fi
ensure_packages
ensure_environment
