# Two paths to one disk; the second is cut in the middle of verified writes, and comes back.
first=${PORTALS% *} second=${PORTALS#* }
modprobe -a dm_multipath dm_service_time scsi_dh_alua
ip address add 10.0.3.15/24 dev eth0
start_initiator
record "$first"
record "$second"
setting node.session.timeo.replacement_timeout 3
setting node.conn[0].timeo.noop_out_interval 1
setting node.conn[0].timeo.noop_out_timeout 2
cat >/etc/multipath.conf <<'CONF'
defaults {
    find_multipaths no
    user_friendly_names yes
    path_grouping_policy multibus
    polling_interval 1
    max_polling_interval 2
    no_path_retry 30
}
CONF
multipathd
log_in
disk 0 "$first"
disk 0 "$second"
paths() { [ "$(multipathd show paths raw format '%t %o' 2>/dev/null | grep -c "active running")" = "$1" ]; }
until_true paths 2
multipath -ll
map=$(ls /dev/mapper/mpath* | head -n 1)
verified_writes "$map" 25 &
writer=$!
sleep 2
tell writing
until_true paths 1
tell cut
until_true paths 2
wait "$writer"
multipath -ll
# udev and multipathd may still look at the map.
udevadm settle
until_true multipath -F
log_out
! dmesg | grep -E 'I/O error, dev dm|BUG:|Oops'
