#!/usr/bin/env bash
# Makes sure of the programs that come as system packages:
#
#   scripts/system_packages.sh demo     bwrap, which sandboxes run in
#   scripts/system_packages.sh test     bwrap, redis-server, postgres, skopeo, buildah, docker-registry and faketime
#   scripts/system_packages.sh browser  bwrap, chromium and chromedriver
#
# Ubuntu has Chromium as a snap alone, which containers cannot run. There a chromium, or a google-chrome, and a chromedriver
# of the same version must be on PATH.
#
# Does nothing if they are there. Otherwise: apt-get install as root or where `sudo -n` works; elsewhere the packages
# are downloaded and unpacked into .venv/system, which changes nothing outside of this directory. If neither works, one
# message names them, and the exit status is still 0: the demo can run without isolation and says so, and tests skip
# by name.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=$root/.venv/system

case ${1-} in
demo) programs=(bwrap) ;;
test) programs=(bwrap redis-server postgres skopeo buildah docker-registry faketime) ;;
browser) programs=(bwrap chromium chromedriver) ;;
*) echo "usage: $0 demo|test|browser" >&2 && exit 2 ;;
esac

say() { echo "system_packages: $*" >&2; }

package_of() {
    case $1 in
    bwrap) echo bubblewrap ;;
    chromedriver) echo chromium-driver ;;
    postgres) echo postgresql ;;
    *) echo "$1" ;;
    esac
}

# Where tests/support/binaries.py and the sandbox manager look, too.
present() {
    local directory
    [[ -x $(command -v "$1") ]] && return
    for directory in /usr/lib/postgresql/*/bin "$prefix"/usr/bin "$prefix"/usr/lib/postgresql/*/bin; do
        [[ -x $directory/$1 ]] && return
    done
    return 1
}

find_missing() {
    local program
    missing=()
    for program in "${programs[@]}"; do
        present "$program" || missing+=("$(package_of "$program")")
    done
}

# Debian starts the services of what it installs unless this file forbids it; nobody asked for a running database.
policy=/usr/sbin/policy-rc.d

install() (
    as_root=("$@")
    say "installing ${missing[*]} with apt-get${as_root:+ through sudo}"
    if [[ ! -e $policy ]]; then
        trap '"${as_root[@]}" rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod +x "$policy"
    fi
    apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    "${apt_get[@]}" update </dev/null || say "apt-get update failed; going on"
    "${apt_get[@]}" -y --no-install-recommends install "${missing[@]}" </dev/null >/dev/null || say "apt-get install failed"
)

# The packages and what they need beyond what is installed; apt's own state and cache lie in a temporary directory.
unpack() {
    local work options packages archive
    say "unpacking ${missing[*]} into .venv/system"
    work=$(mktemp -d)
    mkdir -p "$prefix" "$work"/lists/partial "$work"/cache/archives/partial "$work"/archives
    options=(-qq -o "Dir::State=$work" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$work/cache")
    if apt-get "${options[@]}" update >&2 &&
        packages=$(apt-get "${options[@]}" -s --no-install-recommends install "${missing[@]}" | awk '/^Inst/ {print $2}') &&
        (cd "$work/archives" && apt-get "${options[@]}" download $packages >&2); then
        for archive in "$work"/archives/*.deb; do
            dpkg-deb -x "$archive" "$prefix"
        done
    else
        say "downloading them failed"
    fi
    rm -rf "$work"
}

find_missing
[[ ${#missing[@]} -gt 0 ]] || exit 0
if command -v apt-get >/dev/null; then
    if [[ $(id -u) -eq 0 ]]; then
        install
    elif sudo -n true 2>/dev/null; then
        install sudo -n
    fi
    find_missing
    [[ ${#missing[@]} -eq 0 ]] || unpack
    find_missing
fi
if [[ ${#missing[@]} -gt 0 ]]; then
    say "these system packages are missing and could not be installed; please install them: ${missing[*]}"
fi
