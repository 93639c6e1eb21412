#!/bin/bash
# machine_boot.sh DIRECTORY NAME: becomes process 1 of one machine, under `unshare`. tests/helpers/machines.py runs it.
# Waits for a line on standard input: until then the network interface may not be there.
set -e
dir=$1
name=$2
root=$dir/disk/root
echo ready
read -r _
exec < /dev/null

mount --make-rprivate /
mkdir -p "$dir"/disk/{upper,work,units/multi-user.target.wants} "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/disk/upper,workdir=$dir/disk/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0 1 2; do ln -s "fd/$number" "$root/dev/$(sed -n "$((number + 1))p" <<< $'stdin\nstdout\nstderr')"; done
mount -t tmpfs -o size=2g,mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
chmod go+x "$root/root"  # Python may be installed there
if [ ! -d "$root/home/canopy" ]; then
    chroot "$root" useradd --shell /bin/bash --uid 4321 --no-create-home canopy
    echo 'canopy ALL=(ALL) NOPASSWD:ALL' > "$root/etc/sudoers.d/canopy"
    mkdir "$root/home/canopy"
fi
mount --bind "$dir/home" "$root/home/canopy"
ln -sfn /lib/systemd/system/ssh.service "$dir/disk/units/multi-user.target.wants/ssh.service"
mount --bind "$dir/disk/units" "$root/etc/systemd/system"
echo "$name" > "$root/etc/hostname"
echo "127.0.1.1 $name" >> "$root/etc/hosts"
mkdir "$root/run/outside"
hostname "$name"
ip link set lo up
cd "$root"
pivot_root . run/outside
umount -l /run/outside
echo entered
exec > /dev/null 2>&1
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=canopy-test HOME=/root \
    /lib/systemd/systemd --system --unit=multi-user.target
