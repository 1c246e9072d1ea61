# The kernel's initiator at the near end: logs in to one unit, then runs fio as often as it is told to.
set -eu
modprobe -a iscsi_tcp sd_mod
ip link set eth0 mtu "$MTU"
ip route add default via "$HOST"
echo "InitiatorName=iqn.2026-11.io.lunette:guest" >/etc/iscsi/initiatorname.iscsi
iscsid
node() { iscsiadm --mode node --targetname "$TARGET" --portal "$PORTAL,1" "$@" >/dev/null; }
node --op new
node --login
disk=/dev/disk/by-path/ip-$PORTAL-iscsi-$TARGET-lun-$LUN
until [ -b "$disk" ]; do sleep 0.1; done
# For fio, a colon would end a name.
disk=$(readlink -f "$disk")
{
    echo "guest-kernel $(uname --kernel-release)"
    echo "guest-open-iscsi $(iscsiadm --version)"
    echo "guest-fio $(fio --version)"
} >/mnt/host/versions
touch /mnt/host/told-ready
# A wait that starts no process: twenty emulated ones a second have more than half of a processor, while others are measured.
mkfifo /run/silence
exec 3<>/run/silence
number=0
while :; do
    until [ -e "/mnt/host/job-$number" ]; do read -rt 0.5 -u 3 || :; done
    # It is words without blanks in them.
    fio $(cat "/mnt/host/job-$number") --filename="$disk" >/tmp/result 2>&1 || echo "fio has failed" >>/tmp/result
    cp /tmp/result "/mnt/host/result-$number.new"
    mv "/mnt/host/result-$number.new" "/mnt/host/result-$number"
    number=$((number + 1))
done
