//! Files that somebody cuts or goes on writing while they are read: what came of them must not pass for all of it.

use std::fs::{self, OpenOptions};
use std::process::{Command, Stdio};

use lunette_block::OperationKind;
use lunette_tests::engine::pattern;
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;

const BYTES: usize = 16 << 20;

/// What `lunette write` says, and its status, when its file gets another length behind the first piece.
fn written(length_after: u64) -> (Option<i32>, String) {
    let target = InProcess::start(&["mem:64M,write=back"]);
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    fs::write(&image, pattern(5, BYTES)).expect("a file");
    target.hold(0, OperationKind::Write);
    let url = format!("iscsi://{}/{}/0", target.portal(), target.name());
    let mut command = Command::new(binary());
    command.args(["write", &url, "--depth", "1", "--input"]).arg(&image);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let file = OpenOptions::new().write(true).open(&image).expect("a file");
    file.set_len(length_after).expect("another length");
    target.faults(0).clear();
    let output = child.wait_with_output().expect("an end");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_file_that_changes_its_length_while_it_is_written_to_a_disk_is_told() {
    let (status, said) = written(BYTES as u64 / 2);
    assert_eq!(status, Some(1), "{said}");
    let expected =
        format!("became shorter while it was read: it had {BYTES} bytes, and ends after {}", BYTES / 2);
    assert!(said.contains(&expected), "{said}");
    let (status, said) = written(BYTES as u64 + 512);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(&format!("has grown while it was read: only its first {BYTES} bytes")), "{said}");
}
