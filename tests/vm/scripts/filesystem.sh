# A file system (FILE_SYSTEM) with files in it, unmounted, and the same files after a logout and another login.
start_initiator
iscsiadm --mode discovery --type sendtargets --portal "$PORTALS" || [ -n "${CHAP_USER:-}" ]
record "$PORTALS"
setting node.conn[0].iscsi.HeaderDigest "$DIGEST"
setting node.conn[0].iscsi.DataDigest "$DIGEST"
if [ -n "${CHAP_USER:-}" ]; then
    setting node.session.auth.authmethod CHAP
    setting node.session.auth.chap_algs SHA3-256,SHA256
    setting node.session.auth.username "$CHAP_USER"
    setting node.session.auth.password "$CHAP_SECRET"
    setting node.session.auth.username_in "$TARGET"
    setting node.session.auth.password_in "$TARGET_SECRET"
fi
log_in
disk=$(disk 0)
[ "$(blockdev --getss "$disk")" = "$BLOCK" ]
grep -H . /sys/class/iscsi_session/session*/{initial_r2t,immediate_data,first_burst_len,max_burst_len} \
    /sys/class/iscsi_connection/*/{header_digest,data_digest,max_recv_dlength}
if [ "$DIGEST" = CRC32C ]; then [ "$(cat /sys/class/iscsi_connection/*/data_digest)" = 1 ]; fi

if [ "$FILE_SYSTEM" = xfs ]; then mkfs.xfs -q -f "$disk"; else mke2fs -q -F -t ext4 "$disk"; fi
mount "$disk" /mnt/disk
verified_writes /mnt/disk/verified 3
cp -r /usr/sbin /mnt/disk/tree
(cd /mnt/disk && find tree verified -type f -exec sha256sum {} +) >/tmp/sums
rm /mnt/disk/tree/[a-f]*
grep -v ' tree/[a-f]' /tmp/sums >/tmp/kept
# Gives back what the removed files had: UNMAP.
fstrim --verbose /mnt/disk
umount /mnt/disk
log_out

log_in
disk=$(disk 0)
if [ "$FILE_SYSTEM" = xfs ]; then xfs_repair -n "$disk"; else e2fsck -f -n "$disk"; fi
mount -o ro "$disk" /mnt/disk
(cd /mnt/disk && sha256sum --check --quiet --strict /tmp/kept)
umount /mnt/disk
log_out
expect_quiet_kernel
