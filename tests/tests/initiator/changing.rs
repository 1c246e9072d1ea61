//! Files that somebody cuts or goes on writing while they are read: what came of them must not pass for all of it.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_tests::engine::pattern;
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;

const BYTES: usize = 16 << 20;

/// What a command says that brings a file to a disk, and its status, when the file is changed behind the first piece.
fn changed(
    image: &Path,
    change: impl Fn(&File),
    arguments: impl Fn(&str) -> Vec<String>,
) -> (Option<i32>, String) {
    let target = InProcess::start(&["mem:64M,write=back"]);
    target.hold(0, OperationKind::Write);
    let url = format!("iscsi://{}/{}/0", target.portal(), target.name());
    let mut command = Command::new(binary());
    command.args(arguments(&url));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    target.wait_for_calls(0, OperationKind::Write, 1);
    change(&OpenOptions::new().write(true).open(image).expect("a file"));
    target.faults(0).clear();
    let output = child.wait_with_output().expect("an end");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The same of `lunette write`, whose file gets another length.
fn written(length_after: u64) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    fs::write(&image, pattern(5, BYTES)).expect("a file");
    let change = |file: &File| file.set_len(length_after).expect("another length");
    changed(&image, change, |url| {
        let image = image.to_str().expect("text");
        ["write", url, "--depth", "1", "--input", image].map(ToOwned::to_owned).to_vec()
    })
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

/// 16 MiB of data, and a hole of 48. It is cut within the hole, which was to be read later: or it is written to and has its length.
#[test]
fn a_file_that_changes_while_it_is_copied_is_told_and_its_record_stays() {
    let cut = |file: &File| file.set_len(20 << 20).expect("another length");
    let touched = |file: &File| {
        let at = file.metadata().and_then(|metadata| metadata.modified()).expect("a time");
        file.set_modified(at + Duration::from_secs(1)).expect("another time");
    };
    for (change, told) in [
        (
            &cut as &dyn Fn(&File),
            "became shorter while it was copied: it had 67108864 bytes, and ends after 20971520",
        ),
        (&touched, "was changed while it was copied"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let (image, record) = (directory.path().join("image"), directory.path().join("record"));
        fs::write(&image, pattern(5, BYTES)).expect("a file");
        OpenOptions::new().write(true).open(&image).and_then(|file| file.set_len(64 << 20)).expect("a hole");
        let (status, said) = changed(&image, change, |url| {
            let [image, record] = [&image, &record].map(|path| path.to_str().expect("text"));
            ["copy", image, url, "--depth", "1", "--resume", record].map(ToOwned::to_owned).to_vec()
        });
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(&format!("{} {told}", image.display())) && said.contains("\nhelp: "), "{said}");
        assert!(record.exists(), "it tells the next run");
    }
}
