#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/bare-debian.sh COMMAND...: what a stranger sees. Makes a bare Debian 12 in a scratch folder (debootstrap's
# minbase with git, make and ca-certificates), clones the committed state of this project into it, and runs each
# command there, as root, one after the other; each one's time is printed. Stops at the first that fails.
# Needs root, debootstrap and about 6 GB below TMPDIR (/var/tmp). Exits 77, saying why, where it cannot run.
#
# Where packages come from is this machine's own affair: apt's sources for Debian 12, its settings for fetching, pip's
# settings and the certificates are read here, at run time.
set -euo pipefail
[[ $# -gt 0 ]] || { echo "usage: tools/bare-debian.sh COMMAND..." >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
suite=bookworm

skip() { echo "bare-debian: skipped: $1"; exit 77; }
[[ $(id -u) -eq 0 ]] || skip "not root, which debootstrap and chroot need"
for tool in debootstrap chroot unshare git; do
    command -v "$tool" >/dev/null || skip "no $tool here"
done
unshare --mount --pid --fork true 2>/dev/null || skip "no right to a mount namespace of its own"

scratch=$(mktemp -d -p "${TMPDIR:-/var/tmp}" bare-debian.XXXXXX)
trap 'rm -rf --one-file-system "$scratch"' EXIT
child=
trap '[[ -z $child ]] || kill -KILL "$child"; exit 130' INT TERM HUP
root=$scratch/root

# "URI release component" of everything that apt here has for this release.
sources=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v suite="$suite" '$2 ~ "^"suite && $1 ~ /debian/ && !seen[$0]++' || true)
[[ -n $sources ]] || sources="http://deb.debian.org/debian $suite main"
mirror=$(awk -v suite="$suite" '$2 == suite {print $1; exit}' <<<"$sources")

started=$SECONDS
if ! debootstrap --variant=minbase --include=git,make,ca-certificates "$suite" "$root" "$mirror" \
    >"$scratch/debootstrap.log" 2>&1; then
    cat "$scratch/debootstrap.log" >&2
    exit 1
fi
sed 's/^/deb /' <<<"$sources" >"$root/etc/apt/sources.list"
apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|Check-|Retries|Languages)' \
    >"$root/etc/apt/apt.conf.d/90host" || true
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [[ ! -e $file ]] || cp --dereference "$file" "$root$file"
done
if [[ -d ${PIP_FIND_LINKS:-} ]]; then # a folder of packages
    mkdir -p "$root$PIP_FIND_LINKS"
    cp -r "$PIP_FIND_LINKS/." "$root$PIP_FIND_LINKS"
fi
git clone -q --no-hardlinks "$here" "$root/root/epigrad"
echo "bare-debian: a bare system in $((SECONDS - started)) s"

environment=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 TERM=dumb)
mapfile -t -O ${#environment[@]} environment < <(env | grep -E '^(PIP_|SSL_CERT_|[A-Za-z]+_(proxy|PROXY)=)')

# What the kernel gives a machine, and no more. Mounts and processes end with their namespaces, and these with this
# process, which becomes unshare: call it in the background. What runs there ignores no signal, as it would where a
# shell has put it in the background.
inside() {
    # shellcheck disable=SC2016 # expanded inside
    exec unshare --mount --pid --fork --kill-child sh -euc '
        root=$1 command=$2
        shift 2
        mount --make-rprivate /
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        exec chroot "$root" env -i --default-signal "$@" bash -c "cd /root/epigrad && $command"
    ' sh "$root" "$1" "${environment[@]}" </dev/null
}
for command; do
    started=$SECONDS
    echo "bare-debian: $command"
    inside "$command" &
    child=$!
    wait "$child" || { echo "bare-debian: $command: FAILED after $((SECONDS - started)) s"; exit 1; }
    echo "bare-debian: $command: passed in $((SECONDS - started)) s"
done
