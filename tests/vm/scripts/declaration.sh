# The target takes longer segments from now on, and asks for a negotiation to say so (RFC 7143, 11.9.1, event 4): the kernel's
# initiator logs in again instead, and nothing that is under way is lost.
start_initiator
record "$PORTALS"
log_in
sends() { iscsiadm --mode session --print 2 | grep "MaxXmitDataSegmentLength: $1\$" >/dev/null; }
sends 8192
disk=$(disk 0)
verified_writes "$disk" 8 &
writes=$!
tell writing
await declared
until_true sends 65536
wait $writes
log_out
