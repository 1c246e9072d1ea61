//! The disk as a file for a user who may not mount: `fusermount3` does it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use lunette_tests::attach::{Attached, can_mount};
use lunette_tests::lunette::{Lunette, binary};
use lunette_tests::need_programs;
use lunette_tests::skip::record_lacking;

use super::{pattern, serve};

/// `nobody`, as every system has it.
const USER: u32 = 65534;

/// A command of that user, with a directory for sockets of his own.
fn as_user(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(USER).gid(USER).env("XDG_RUNTIME_DIR", home).current_dir(home);
    command
}

fn good(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_user_mounts_writes_and_detaches() {
    need_programs!("fusermount3");
    if !can_mount() {
        return;
    }
    let device = fs::metadata("/dev/fuse").expect("it can be opened").permissions();
    if device.mode() & 0o006 != 0o006 {
        return record_lacking("/dev/fuse is for root alone here, and users cannot mount by FUSE");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("a directory");
    // The binary may lie where only root can look.
    let program = path("lunette");
    fs::copy(binary(), &program).expect("a copy");
    let (home, image) = (path("home"), path("disk.img"));
    let mount = home.join("mount");
    fs::create_dir_all(&mount).expect("directories");
    let (data, source) = (pattern(3, 300_000), home.join("source"));
    fs::write(&source, &data).expect("a file");
    for owned in [&home, &mount, &source] {
        chown(owned, Some(USER), Some(USER)).expect("another owner");
        let mode = if owned.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(owned, Permissions::from_mode(mode)).expect("his alone");
    }
    let target: Lunette = serve(&image, ",write=back").start().expect("a target");
    for (round, ends) in ["detach", "fusermount3"].into_iter().enumerate() {
        let mut attach = as_user(&program, &home);
        attach.args(["attach", &target.url(0)]).arg(&mount).arg("--json");
        let attached = Attached::of(attach).expect("attached");
        let at = format!("seek={}", round * 1_000_000);
        let mut copy = as_user("dd".as_ref(), &home);
        copy.arg(format!("if={}", source.display())).arg(format!("of={}", attached.file().display()));
        good(copy.args(["bs=10000", "conv=notrunc", "oflag=seek_bytes", &at]).output().expect("dd"));
        assert!(fs::File::open(attached.file()).is_err(), "it is nobody else's, not even root's");
        let mut end =
            if ends == "detach" { as_user(&program, &home) } else { as_user("fusermount3".as_ref(), &home) };
        good(end.arg(if ends == "detach" { "detach" } else { "-u" }).arg(&mount).output().expect(ends));
        attached.end().expect("all is stable");
        let written = fs::read(&image).expect("the image");
        assert!(written[round * 1_000_000..][..data.len()] == data, "{ends}");
    }
    target.stop().expect("a clean end");
}
