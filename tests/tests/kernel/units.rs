//! The unit itself: that it grows, and what sg3-utils make of what it says.

use std::fs::OpenOptions;
use std::time::Duration;

use lunette_tests::lunette::TARGET_NAME;
use lunette_tests::need_guest;
use lunette_tests::vm::HOST;

use crate::{PORT, again_if_a_guest_hangs, boot, finish, image, serve};

#[test]
fn a_mounted_disk_grows() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let path = image(directory.path());
        let target = serve(&network, &format!("0={path},size=64M")).start().expect("a target");
        let mut guest = boot(&network, &[HOST], &[], include_str!("../../vm/scripts/grow.sh"));
        guest.wait_for("mounted").expect("a mounted disk");
        let file = OpenOptions::new().write(true).open(&path).expect("the image");
        file.set_len(128 << 20).expect("a longer image");
        target
            .wait_for_log(Duration::from_secs(60), |line| line.contains("134217728"))
            .expect("it is noticed");
        guest.tell("grown").expect("told");
        finish(guest, &target);
        target.stop().expect("a clean end");
    });
}

/// RFC 7143, 11.9.1, event 4: a longer data segment is taken up in the middle of writes.
#[test]
fn another_segment_length_is_taken_up_by_another_login() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lunette.toml");
        let configure = |bytes: u32| {
            let text = format!(
                "portals = [\"{HOST}:{PORT}\"]\n[limits]\nmax_recv_data_segment_length_bytes = {bytes}\n\
             [[target]]\nname = \"{TARGET_NAME}\"\n[[target.lun]]\nnumber = 0\nstore = \"mem:64M\"\n"
            );
            std::fs::write(&path, text).expect("a configuration");
        };
        configure(8192);
        let path = path.display().to_string();
        let target = network.serve().args(["--json", "--config", &path]).start().expect("a target");
        let mut guest = boot(&network, &[HOST], &[], include_str!("../../vm/scripts/declaration.sh"));
        guest.wait_for("writing").expect("writes");
        configure(65536);
        target.reload().expect("told");
        guest.tell("declared").expect("told");
        let ended = finish(guest, &target);
        assert!(ended.output.contains("fio: error 0"), "{}", ended.output);
        target.stop().expect("a clean end");
    });
}

/// What the programs print about a unit that is as [`sg3_utils_understand_what_it_says`] has it.
const WANTED: &[(&str, &[&str])] = &[
    (
        "sg_inq",
        &["Vendor identification: LUNETTE", "Unit serial number: SN-4711", "TPGS=3  3PC=1", "[SPC-4]"],
    ),
    ("sg_vpd --page=sv", &["Third party copy [tpc]"]),
    (
        "sg_vpd --page=di",
        &["NAA,  code set: Binary", "iqn.2026-11.io.lunette:test,t,0x0001", "Target port group: 0x1"],
    ),
    (
        "sg_vpd --page=bl",
        &["Maximum compare and write length: 255 blocks", "Maximum unmap block descriptor count: 256"],
    ),
    ("sg_vpd --page=lbpv", &["Unmap command supported (LBPU): 1", "Provisioning type: 2 (thin provisioned)"]),
    ("sg_vpd --page=bdc", &["FUAB=1"]),
    ("sg_vpd --page=ei", &["HEADSUP=1 ORDSUP=1 SIMPSUP=1"]),
    ("sg_vpd --page=sp", &["Relative port=1", "iqn.2026-11.io.lunette:test,t,0x0001"]),
    ("sg_vpd --page=tpc", &["Populate token", "point in time copy - change vulnerable"]),
    ("sg_readcap", &["lbpme=1, lbprz=1", "Logical block length=512 bytes", "64.0 MiB"]),
    (
        "sg_modes",
        &["Caching, page_control: current", "Informational exceptions control, page_control: current"],
    ),
    ("sg_logs", &["Read error counter page", "Logical block provisioning page"]),
    (
        "sg_opcodes",
        &["Compare and write", "Sanitize, overwrite", "Write using token", "Receive ROD token information"],
    ),
    ("sg_luns", &["0000000000000000"]),
    ("sg_rtpg", &["asymmetric access state : 0x00", "Relative target port ids:"]),
    ("sg_requests", &["Sense key: No Sense"]),
    ("sg_get_lba_status", &["deallocated"]),
    ("sg_persist --in --read-keys", &["0xabc"]),
    ("sg_persist --in --read-reservation", &["scope: LU_SCOPE,  type: Write Exclusive, registrants only"]),
    ("sg_persist --in --read-full-status", &["Relative port address: 0x1", "iqn.2026-11.io.lunette:guest"]),
];

/// Programs that print nothing when all is well.
const SILENT: &[&str] =
    &["sg_compare_and_write", "sg_verify", "sg_write_same", "sg_unmap", "sg_write_buffer"];

#[test]
fn sg3_utils_understand_what_it_says() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let lun = format!("0={},size=64M,serial=SN-4711", image(directory.path()));
        let target = serve(&network, &lun).start().expect("a target");
        let script = include_str!("../../vm/scripts/utilities.sh");
        let output = finish(boot(&network, &[HOST], &[], script), &target).output;
        // A boot is dear: all that is wrong is told at once.
        let said =
            |program: &str| output.split("\n== ").find(|run| run.starts_with(program)).unwrap_or_default();
        let lacking = |(program, lines): &(&str, &[&str])| {
            let said = said(program);
            lines
                .iter()
                .filter(|line| !said.contains(**line))
                .map(|line| format!("{program}: {line}"))
                .collect::<Vec<_>>()
        };
        let mut wrong: Vec<String> = WANTED.iter().flat_map(lacking).collect();
        let talks = SILENT.iter().filter(|program| said(program).lines().count() != 1);
        wrong.extend(talks.map(|program| format!("{program}: not one line")));
        assert!(wrong.is_empty(), "{wrong:#?} in\n{output}");
        assert!(!output.contains("\n== exit status"), "{output}");
        target.stop().expect("a clean end");
    });
}
