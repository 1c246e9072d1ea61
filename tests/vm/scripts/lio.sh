# The kernel's target (LIO) with two units in files, of 512-byte and of 4096-byte blocks, behind two portals of one group, at
# ErrorRecoveryLevel 2, for an initiator on the host.
modprobe -a target_core_mod target_core_file iscsi_target_mod
mount -t configfs configfs /sys/kernel/config
mkdir -p /etc/target
core=/sys/kernel/config/target/core
unit() { # NAME BLOCK-LENGTH
    truncate -s 32M "/tmp/$1"
    mkdir -p "$core/fileio_0/$1"
    echo "fd_dev_name=/tmp/$1,fd_dev_size=$((32 << 20)),fd_buffered_io=1" >"$core/fileio_0/$1/control"
    echo "$1" >"$core/fileio_0/$1/wwn/vpd_unit_serial"
    echo 1 >"$core/fileio_0/$1/enable"
    echo "$2" >"$core/fileio_0/$1/attrib/block_size"
}
unit lio512 512
unit lio4096 4096
mkdir -p /sys/kernel/config/target/iscsi
group="/sys/kernel/config/target/iscsi/$TARGET/tpgt_1"
mkdir -p "$group/np/0.0.0.0:3260" "$group/np/0.0.0.0:3261" "$group/lun/lun_0" "$group/lun/lun_1"
ln -s "$core/fileio_0/lio512" "$group/lun/lun_0/unit"
ln -s "$core/fileio_0/lio4096" "$group/lun/lun_1/unit"
attribute() { echo "$2" >"$group/attrib/$1"; }
attribute authentication 0
attribute generate_node_acls 1
attribute demo_mode_write_protect 0
attribute cache_dynamic_acls 1
attribute default_erl 2
parameter() { echo "$2" >"$group/param/$1"; }
parameter ErrorRecoveryLevel 2
parameter MaxConnections 4
parameter InitialR2T No
parameter ImmediateData Yes
parameter FirstBurstLength 65536
parameter MaxBurstLength 262144
# Emulated, and perhaps on a busy machine, it may take long to come back.
parameter DefaultTime2Retain 3600
echo 1 >"$group/enable"
tell serving
await done
! dmesg | grep -E 'BUG:|Oops|general protection|WARNING: '
