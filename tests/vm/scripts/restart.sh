# Verified writes while the target is killed and started again, twice.
start_initiator
record "$PORTALS"
log_in
disk=$(disk 0)
mke2fs -q -F -t ext4 "$disk"
mount "$disk" /mnt/disk
verified_writes /mnt/disk/verified 20 &
writer=$!
sleep 3
tell writing
wait "$writer"
umount /mnt/disk
e2fsck -f -n "$disk"
log_out
# The cut is logged; what must not be is a command that failed.
! dmesg | grep -E 'I/O error|BUG:|Oops'
