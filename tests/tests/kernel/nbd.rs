//! A disk of the binary's that `lunette attach --nbd` gives the kernel without iSCSI: its own NBD client, told by nbd-client.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use lunette_tests::attach::Attached;
use lunette_tests::lunette::{TARGET_NAME, binary};
use lunette_tests::need_guest;
use lunette_tests::vm::{HOST, Network};

use crate::{again_if_a_guest_hangs, boot, portal, serve};

const SIZE_BYTES: u64 = 256 << 20;
/// For each disk: the port of its export, the name there, the blocks of the kernel, in bytes, and its connections.
const EXPORTS: [(u16, &str, u32, u32); 2] = [(10809, "disk", 512, 1), (10810, "second", 4096, 2)];

fn attach(network: &Network) -> Vec<Attached> {
    let each = EXPORTS.iter().enumerate().map(|(lun, (port, name, ..))| {
        let mut command = network.command(binary());
        command.args(["attach", &format!("iscsi://{}/{TARGET_NAME}/{lun}", portal(HOST))]);
        command.args(["--json", "--nbd", &format!("{HOST}:{port}"), "--export-name", name]);
        Attached::of(command).expect("attached")
    });
    each.collect()
}

/// All that was written must be stable, and the target have it.
fn detach(attached: Vec<Attached>) {
    for attached in attached {
        attached.detach().expect("all is stable");
    }
}

fn stored_bytes(image: &Path) -> u64 {
    image.metadata().expect("the image").blocks() * 512
}

/// One disk of 512-byte blocks without a write cache, one of 4096-byte blocks that are written behind.
#[test]
fn ext4_over_nbd_client_outlives_a_detach() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let images: [PathBuf; 2] = std::array::from_fn(|lun| directory.path().join(format!("{lun}.img")));
        let lun = |lun: usize, more: &str| format!("{lun}={},size=256M{more}", images[lun].display());
        let luns = [lun(0, ""), lun(1, ",block=4096,write=back")];
        let target = serve(&network, &luns[0]).luns([luns[1].as_str()]).start().expect("a target");
        let attached = attach(&network);
        let exports =
            EXPORTS.map(|(port, name, block, connections)| format!("{port} {name} {block} {connections}"));
        let size = SIZE_BYTES.to_string();
        let environment = [("HOST", HOST), ("SIZE", size.as_str()), ("EXPORTS", &exports.join("\n"))];
        let mut guest = boot(&network, &[HOST], &environment, include_str!("../../vm/scripts/nbd.sh"));
        guest.wait_for("disconnected").unwrap_or_else(|error| panic!("{error:#}\n{attached:#?}"));
        detach(attached);
        assert!(images.iter().all(|image| stored_bytes(image) >= 8 << 20), "the files are on the disks");
        let attached = attach(&network);
        guest.tell("attached").expect("told");
        let ended = guest.finish().unwrap_or_else(|error| panic!("{error:#}\n{attached:#?}"));
        let verified = ended.output.matches("fio: error 0, 8192 KiB read back, 8192 KiB written").count();
        assert_eq!(verified, EXPORTS.len(), "{}", ended.output);
        detach(attached);
        // TRIM has reached the stores.
        assert!(images.iter().all(|image| stored_bytes(image) < 1 << 20), "space was not given back");
        target.stop().expect("a clean end");
    });
}

/// Neither the kernel nor what is written notices it.
#[test]
fn a_restart_of_the_target_is_nothing_to_the_kernels_client() {
    again_if_a_guest_hangs(|| {
        const PORT: u16 = 10809;
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let lun = format!("0={},size=256M,write=back", directory.path().join("disk.img").display());
        let mut target = serve(&network, &lun).start().expect("a target");
        let mut command = network.command(binary());
        command.args(["attach", &format!("iscsi://{}/{TARGET_NAME}/0", portal(HOST)), "--json"]);
        command.args(["--nbd", &format!("{HOST}:{PORT}")]);
        let attached = Attached::of(command).expect("attached");
        let (size, port) = (SIZE_BYTES.to_string(), PORT.to_string());
        let environment = [("HOST", HOST), ("SIZE", size.as_str()), ("PORT", &port)];
        let mut guest =
            boot(&network, &[HOST], &environment, include_str!("../../vm/scripts/nbd-restart.sh"));
        guest.wait_for("writing").unwrap_or_else(|error| panic!("{error:#}\n{}", attached.log()));
        for _ in 0..2 {
            target.kill().expect("killed");
            target = serve(&network, &lun).start().expect("the target again");
            thread::sleep(Duration::from_secs(3));
        }
        guest.finish().unwrap_or_else(|error| panic!("{error:#}\n{}", attached.log()));
        assert!(attached.log().contains("logged in again"), "{}", attached.log());
        attached.detach().expect("all is stable");
        target.stop().expect("a clean end");
    });
}
