# The disk grows while it is in use: the kernel hears of it, or looks on being asked, without another login.
start_initiator
record "$PORTALS"
log_in
disk=$(disk 0)
[ "$(blockdev --getsize64 "$disk")" = $((64 << 20)) ]
mke2fs -q -F -t ext4 "$disk"
mount "$disk" /mnt/disk
tell mounted
await grown
iscsiadm --mode node --targetname "$TARGET" --rescan
[ "$(blockdev --getsize64 "$disk")" = $((128 << 20)) ]
resize2fs "$disk"
[ "$(df --output=size --block-size=1M /mnt/disk | tail -n 1)" -gt 100 ]
umount /mnt/disk
e2fsck -f -n "$disk"
log_out
expect_quiet_kernel
