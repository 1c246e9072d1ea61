#!/bin/sh
# A customize hook of mmdebstrap: puts a kernel with the modules that the tests use into the new root directory ($1), and
# writes kernel and root as QEMU boots them into $VM_IMAGE: `linux`, and `root.cpio`, an initial RAM file system that
# stays the root. No disk, no loader, nothing to mount or to repair: every boot is of the same bytes.
set -eu
root=$1
cd "$root"

# The kernel's own package, unpacked and not installed: its scripts would build another initial RAM file system.
export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
package=$(apt-cache depends linux-image-amd64 | sed -n 's/ *Depends: //p' | head -n 1)
mkdir tmp/kernel
(cd tmp && apt-get -o APT::Sandbox::User=root -qq download "$package")
dpkg-deb --extract tmp/linux-image-*.deb tmp/kernel
cp tmp/kernel/boot/vmlinuz-* "$VM_IMAGE/linux"

# Only the modules that are asked for, with those that they need.
release=$(ls tmp/kernel/lib/modules)
chroot . depmod --basedir /tmp/kernel "$release"
mkdir -p lib/modules/"$release"
for module in $VM_MODULES; do
    chroot . modprobe --dirname /tmp/kernel --set-version "$release" --show-depends "$module"
done | sed -n 's/^insmod \/\([^ ]*\).*/\1/p' | sort -u | while read -r file; do
    cp "$file" lib/modules/"$release"/
done
cp tmp/kernel/lib/modules/"$release"/modules.builtin* tmp/kernel/lib/modules/"$release"/modules.order lib/modules/"$release"/
rm -rf tmp/kernel tmp/linux-image-*.deb
chroot . depmod "$release"

# What no test reads would only make every boot longer.
rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/info usr/share/zoneinfo \
    var/lib/apt/lists var/cache/apt var/cache/debconf var/lib/dpkg/info
cp "$VM_SOURCES/init" init
chmod 755 init
mkdir -p mnt/host mnt/disk
# Where the directory for temporary files is /dev/shm, so is this root directory, and what is in there is no part of it.
find . -xdev -path './dev/shm/*' -prune -o -print | cpio --create --format=newc --quiet >"$VM_IMAGE/root.cpio"
