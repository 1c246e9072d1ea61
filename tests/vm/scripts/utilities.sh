# What the programs of sg3-utils make of a unit, through the kernel's initiator. Each line that matters is compared by the host.
start_initiator
record "$PORTALS"
log_in
disk=$(disk 0)
show() { echo "== $*"; "$@" 2>&1 || echo "== exit status $?"; }
show sg_inq "$disk"
for page in sv di bl lbpv bdc ei sp tpc; do show sg_vpd --page="$page" "$disk"; done
show sg_readcap --long "$disk"
show sg_modes --all "$disk"
show sg_logs --all "$disk"
show sg_opcodes --rctd "$disk"
show sg_luns "$disk"
show sg_rtpg --extended "$disk"
show sg_timestamp "$disk"
show sg_requests "$disk"
# Written, compared and unmapped by the utilities' own commands.
head -c 512 /dev/urandom >/tmp/old
head -c 512 /dev/urandom >/tmp/new
cat /tmp/old /tmp/new >/tmp/both
dd if=/tmp/old of="$disk" bs=512 seek=7 oflag=direct status=none
show sg_compare_and_write --in=/tmp/both --lba=7 --num=1 --xferlen=1024 "$disk"
dd if="$disk" of=/tmp/found bs=512 skip=7 count=1 iflag=direct status=none
cmp /tmp/found /tmp/new
show sg_verify --lba=7 --count=1 "$disk"
show sg_write_same --lba=7 --num=1 --unmap "$disk"
dd if="$disk" of=/tmp/found bs=512 skip=7 count=1 iflag=direct status=none
cmp /tmp/found <(head -c 512 /dev/zero)
show sg_unmap --lba=0 --num=4096 --force "$disk"
show sg_get_lba_status --lba=0 "$disk"
# Reservations as people know them.
show sg_persist --out --register --param-sark=abc "$disk"
show sg_persist --out --reserve --param-rk=abc --prout-type=5 "$disk"
show sg_persist --in --read-keys "$disk"
show sg_persist --in --read-reservation "$disk"
show sg_persist --in --read-full-status "$disk"
show sg_persist --out --clear --param-rk=abc "$disk"
show sg_write_buffer --mode=0xa --offset=0 --in=/tmp/old --length=512 "$disk"
show sg_sanitize --overwrite --zero --quick "$disk"
until_true sg_turs "$disk"
log_out
