# What every script of a guest may use. PORTALS has the target's portals, TARGET its name.
set -euo pipefail

# Between guest and host: a word that the other side waits for.
tell() { touch "/mnt/host/told-$1"; }
await() { until [ -e "/mnt/host/awaited-$1" ]; do sleep 0.1; done; }

# By it the host sees that this machine has not hung.
for ((seconds = 0; ; seconds++)); do
    echo "$seconds" >/mnt/host/alive
    sleep 1
done &

# Waits for a command to succeed, for two minutes at least: a login that failed is tried again after seconds.
until_true() {
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    echo "this never came true: $*"
    return 1
}

start_initiator() {
    modprobe -a iscsi_tcp sd_mod sg
    echo "InitiatorName=iqn.2026-11.io.lunette:guest" >/etc/iscsi/initiatorname.iscsi
    iscsid
}

# Records the target with one portal, without discovery. On a busy machine either end may stand still for longer than a ping is
# waited for otherwise.
record() {
    iscsiadm --mode node --targetname "$TARGET" --portal "$1,${2:-1}" --op new >/dev/null
    iscsiadm --mode node --targetname "$TARGET" --portal "$1,${2:-1}" --op update \
        --name 'node.conn[0].timeo.noop_out_timeout' --value 30
}

# Changes a setting of all records.
setting() { iscsiadm --mode node --targetname "$TARGET" --op update --name "$1" --value "$2"; }

log_in() { iscsiadm --mode node --targetname "$TARGET" --login; }

# udev looks at a disk after each that has written to it, and must not be cut off in the middle.
log_out() {
    udevadm settle
    iscsiadm --mode node --targetname "$TARGET" --logout
}

# The disk of a logical unit, as soon as it is there: disk LUN [PORTAL].
disk() {
    local name="/dev/disk/by-path/ip-${2:-${PORTALS%% *}}-iscsi-$TARGET-lun-$1"
    until_true test -b "$name"
    readlink -f "$name"
}

# Random writes, read back and compared, to a file or disk: verified_writes NAME SECONDS.
verified_writes() {
    fio --name=verified --filename="$1" --rw=randwrite --bsrange=4k-64k --size=48m --time_based --runtime="$2" \
        --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_backlog=32 --verify_fatal=1 \
        --output-format=terse --terse-version=3 --output=/tmp/fio.out
    awk -F';' '{ print "fio: error " $5 ", " $6 " KiB read back, " $47 " KiB written" }' /tmp/fio.out
}

# Nothing went wrong that the kernel would only log. A login that its initiator gives up because the answer came before it was
# done with the request ("Login/Text in progress": libiscsi finds its one task for logins still in use) is no fault of the
# target's, and iscsid logs in again: the end of that connection, on one of the next lines, does not count.
expect_quiet_kernel() {
    local log
    log=$(dmesg | awk '
        { connection = match($0, /connection[0-9]+:[0-9]+/) ? substr($0, RSTART, RLENGTH) : "" }
        /Login\/Text in progress/ && connection { given_up[connection] = NR }
        /detected conn error/ && (connection in given_up) && NR <= given_up[connection] + 5 { delete given_up[connection]; next }
        { print }')
    if grep -E 'I/O error|detected conn error|BUG:|Oops|WARNING: .*(scsi|sd_)' <<<"$log"; then return 1; fi
}
