# The kernel's target (LIO) at the far end, with a unit of memory.
set -eu
modprobe -a target_core_mod iscsi_target_mod
ip link set eth0 mtu "$MTU"
ip route add default via "$HOST"
mount -t configfs configfs /sys/kernel/config
mkdir -p /etc/target
unit=/sys/kernel/config/target/core/rd_mcp_0/lab
mkdir -p "$unit"
echo "rd_pages=$PAGES" >"$unit/control"
echo 1 >"$unit/enable"
mkdir -p /sys/kernel/config/target/iscsi
group="/sys/kernel/config/target/iscsi/$TARGET/tpgt_1"
mkdir -p "$group/np/0.0.0.0:3260" "$group/lun/lun_0"
ln -s "$unit" "$group/lun/lun_0/unit"
echo 0 >"$group/attrib/authentication"
echo 1 >"$group/attrib/generate_node_acls"
echo 0 >"$group/attrib/demo_mode_write_protect"
echo 1 >"$group/attrib/cache_dynamic_acls"
# As deep as ours, so that its window does not decide.
echo 128 >"$group/attrib/default_cmdsn_depth"
echo 1 >"$group/enable"
{
    echo "guest-kernel $(uname --kernel-release)"
    echo "guest-lio $(cat /sys/kernel/config/target/iscsi/lio_version)"
} >/mnt/host/versions
touch /mnt/host/told-ready
while :; do sleep 3600; done
