# Disks that `lunette attach --nbd` exports on the host, as the kernel's block devices (nbd-client): EXPORTS has the host's ports, each
# with the name of its export, the block length that the kernel is to use, and the number of connections. A file system is made on
# each; its files must be there when the disks have been detached and attached again.
modprobe nbd nbds_max=2 max_part=0

connect() { # DEVICE PORT NAME BLOCK-LENGTH CONNECTIONS
    nbd-client "$HOST" "$2" "$1" -name "$3" -block-size "$4" -connections "$5"
    until_true nbd-client -c "$1"
}

# udev looks at a disk after each that has written to it, and must not be cut off in the middle.
disconnect() {
    udevadm settle
    nbd-client -d "$1"
    until_true is_gone "$1"
}
is_gone() { ! nbd-client -c "$1" && [ "$(blockdev --getsize64 "$1")" = 0 ]; }

number=0
while read -r port name block connections; do
    disk=/dev/nbd$number queue=/sys/block/nbd$number/queue
    # Each export with its description.
    nbd-client -l "$HOST" "$port" >/tmp/exports
    cat /tmp/exports
    grep "^$name\b" /tmp/exports
    connect "$disk" "$port" "$name" "$block" "$connections"
    [ "$(blockdev --getsize64 "$disk")" = "$SIZE" ]
    [ "$(blockdev --getss "$disk")" = "$block" ]
    # FLUSH, FUA and TRIM.
    [ "$(cat $queue/write_cache) $(cat $queue/fua)" = "write back 1" ]
    [ "$(cat $queue/discard_max_bytes)" -gt 0 ]

    mke2fs -q -F -t ext4 "$disk"
    mount "$disk" /mnt/disk
    # So much, however long it takes.
    fio --name=verified --filename=/mnt/disk/verified --rw=randwrite --bsrange=4k-64k --size=8m --ioengine=libaio --iodepth=8 \
        --direct=1 --verify=crc32c --verify_fatal=1 --output-format=terse --terse-version=3 --output=/tmp/fio.out
    awk -F';' '{ print "fio: error " $5 ", " $6 " KiB read back, " $47 " KiB written" }' /tmp/fio.out
    cp -r /usr/sbin /mnt/disk/tree
    (cd /mnt/disk && find tree verified -type f -exec sha256sum {} +) >/tmp/sums
    rm /mnt/disk/tree/[a-f]*
    grep -v ' tree/[a-f]' /tmp/sums >"/tmp/kept-$number"
    dd if=/dev/urandom of=/mnt/disk/stable bs=64k count=8 oflag=direct,dsync
    fstrim --verbose /mnt/disk
    umount /mnt/disk
    disconnect "$disk"
    number=$((number + 1))
done <<<"$EXPORTS"

tell disconnected
await attached

number=0
while read -r port name block connections; do
    disk=/dev/nbd$number
    connect "$disk" "$port" "$name" "$block" "$connections"
    e2fsck -f -n "$disk"
    mount -o ro "$disk" /mnt/disk
    (cd /mnt/disk && sha256sum --check --quiet --strict "/tmp/kept-$number")
    umount /mnt/disk
    # All of it: what was there reads as zeros.
    blkdiscard --force "$disk"
    cmp --bytes=$((8 << 20)) "$disk" /dev/zero
    disconnect "$disk"
    number=$((number + 1))
done <<<"$EXPORTS"
expect_quiet_kernel
