# A disk that `lunette attach --nbd` exports on the host, whose target is killed and started again while a file system on it is written to.
modprobe nbd nbds_max=1 max_part=0
disk=/dev/nbd0
nbd-client "$HOST" "$PORT" "$disk" -name disk -block-size 512
until_true nbd-client -c "$disk"
[ "$(blockdev --getsize64 "$disk")" = "$SIZE" ]

mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$disk"
mount -o noatime "$disk" /mnt/disk
fio --name=verified --filename=/mnt/disk/verified --rw=randwrite --bsrange=4k-64k --size=8m --ioengine=libaio --iodepth=8 \
    --direct=1 --verify=crc32c --verify_fatal=1 --time_based --runtime=20 --output=/tmp/fio.out &
writer=$!
cp -r /usr/sbin /mnt/disk/tree
sleep 2
tell writing
wait "$writer"
(cd /mnt/disk && find tree verified -type f -exec sha256sum {} +) >/tmp/sums
sync
echo 3 >/proc/sys/vm/drop_caches
(cd /mnt/disk && sha256sum --check --quiet --strict /tmp/sums)
umount /mnt/disk
e2fsck -f -n "$disk"
udevadm settle
nbd-client -d "$disk"
expect_quiet_kernel
