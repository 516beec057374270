#!/usr/bin/env bash
# Boots an emulated machine with systemd and control groups of version 2 alone, and runs scripts/v2_ways.sh in it.
#
#   scripts/v2_machine.sh [WAY...]        all ways by default; SUITES, SECONDS_EACH and the ways: see v2_ways.sh
#
# By hand, as root: debootstrap, qemu-system-x86_64 and mkfs.ext4 must be there. Without KVM all is about 15 times
# slower. The disk's contents are made once, in build/v2; the working tree is copied into them each time.
set -euo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${V2_DIRECTORY:-$source/build/v2}
root=$out/root
packages=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,udev,linux-image-amd64,python3,python3-venv
packages+=,bubblewrap,git,procps,iproute2,kmod,ca-certificates

for program in debootstrap qemu-system-x86_64 mkfs.ext4; do
    command -v "$program" >/dev/null && continue
    echo "v2_machine: there is no $program (packages debootstrap, qemu-system-x86, e2fsprogs)" >&2
    exit 1
done
mkdir -p "$out"
if [[ ! -e $out/made ]]; then
    mirror=$(awk '/^(URIs:|deb )/ {print $2; exit}' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true)
    debootstrap --variant=minbase --include="$packages" bookworm "$root" $mirror
    echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
    echo vm >"$root/etc/hostname"
    echo '127.0.0.1 localhost vm' >"$root/etc/hosts"
    chroot "$root" useradd -m -s /bin/bash u
    chroot "$root" python3 -m venv /opt/venv
    mkdir -p "$root"/etc/systemd/system/multi-user.target.wants
    # A login prompt there would hang up what the suites print.
    ln -s /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
    ln -s ../ways.service "$root/etc/systemd/system/multi-user.target.wants/"
    touch "$out/made"
fi
cp /etc/resolv.conf "$root/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
rm -rf "$root/opt/callsheet"
mkdir -p "$root/opt/callsheet"
(cd "$source" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T -) |
    tar -x --no-same-owner -C "$root/opt/callsheet"
tools="aiohttp pytest pytest-xdist pytest-timeout hypothesis numpy sniffio pyyaml"
chroot "$root" sh -ec "cd /opt/callsheet; ln -s /opt/venv .venv
    /opt/venv/bin/pip install -q --disable-pip-version-check -e '.[scheduler,sandbox,cli]' $tools
    chown -R u .
    /opt/venv/bin/python -m compileall -q . /opt/venv >/dev/null || echo 'v2_machine: some files were not compiled' >&2"
cat >"$root/etc/systemd/system/ways.service" <<UNIT
[Unit]
After=multi-user.target systemd-user-sessions.service
[Service]
Delegate=yes
Environment=HOME=/root "SUITES=${SUITES-up}" "SECONDS_EACH=${SECONDS_EACH-3600}"
ExecStart=/bin/bash -c 'exec >/dev/ttyS0 2>&1; /opt/callsheet/scripts/v2_ways.sh $*'
ExecStopPost=systemctl poweroff
UNIT
rm -f "$out/disk.img"
truncate -s 8G "$out/disk.img"
mkfs.ext4 -q -d "$root" "$out/disk.img"
# One thread for both processors: the machine that runs it keeps its other cores.
nice -n 10 qemu-system-x86_64 -M q35 -accel tcg,thread=single,tb-size=1024 -cpu max -smp 2 -m 6G -nographic -nic none \
    -no-reboot -drive "file=$out/disk.img,format=raw,if=virtio,cache=unsafe" \
    -kernel "$root"/boot/vmlinuz-* -initrd "$root"/boot/initrd.img-* \
    -append 'root=/dev/vda rw console=ttyS0 quiet loglevel=2 systemd.show_status=0' </dev/null | tee "$out/console.log"
