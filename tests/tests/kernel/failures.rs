//! What fails under verified writes: the target's process, and one of two paths.

use std::thread;
use std::time::Duration;

use lunette_tests::lunette::TARGET_NAME;
use lunette_tests::need_guest;
use lunette_tests::vm::{HOST, HOST_SECOND};

use crate::{again_if_a_guest_hangs, boot, finish, image, portal, serve};

#[test]
fn nothing_is_lost_when_the_target_is_killed_and_started_again() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let directory = tempfile::tempdir().expect("a directory");
        let lun = format!("0={},size=256M", image(directory.path()));
        let mut target = serve(&network, &lun).start().expect("a target");
        let mut guest = boot(&network, &[HOST], &[], include_str!("../../vm/scripts/restart.sh"));
        guest
            .wait_for("writing")
            .unwrap_or_else(|error| panic!("{error:#}\nthe target's log:\n{}", target.log()));
        for _ in 0..2 {
            target.kill().expect("killed");
            thread::sleep(Duration::from_secs(1));
            target = serve(&network, &lun).start().expect("a target");
            thread::sleep(Duration::from_secs(3));
        }
        finish(guest, &target);
        target.stop().expect("a clean end");
    });
}

#[test]
fn one_of_two_paths_is_cut_and_comes_back() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let target = network
            .serve()
            .args(["--json", "--target", TARGET_NAME])
            .args(["--portal", &portal(HOST).to_string(), "--portal", &portal(HOST_SECOND).to_string()])
            .luns(["0=mem:128M"])
            .start()
            .expect("a target");
        let mut guest =
            boot(&network, &[HOST, HOST_SECOND], &[], include_str!("../../vm/scripts/multipath.sh"));
        let told = |result: anyhow::Result<()>| {
            result.unwrap_or_else(|error| panic!("{error:#}\nthe target's log:\n{}", target.log()));
        };
        told(guest.wait_for("writing"));
        network.ip(&format!("address del {HOST_SECOND}/24 dev guest0")).expect("a path is cut");
        told(guest.wait_for("cut"));
        network.ip(&format!("address add {HOST_SECOND}/24 dev guest0")).expect("a path comes back");
        finish(guest, &target);
        target.stop().expect("a clean end");
    });
}
