//! `read`, `write`, `verify`, `checksum` and `erase`: what comes back is what was written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::host::{Served, good, path, refused, run, run_with};

const MIB: usize = 1 << 20;

/// Bytes that differ from block to block.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 7 % 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_back_in_every_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let input = directory.path().join("in");
    let output = directory.path().join("out");
    let data = bytes(3 * MIB + 4096);
    fs::write(&input, &data).expect("written");
    let served = Served::start(&["mem:8M", "mem:8M,block=4096"], &[]);
    let both = "header_digest=crc32c&data_digest=crc32c";
    for url in [served.url(0), served.url(1), served.url_with("", 1, both)] {
        for depth in ["1", "32"] {
            let text =
                good(&["write", &url, "--input", path(&input), "--offset", "1M", "--depth", depth]).text();
            assert!(text.starts_with("wrote 3.0 MiB (3149824 bytes) in "), "{text}");
            good(&["verify", &url, "--input", path(&input), "--offset", "1M", "--depth", depth]);
            let part = ["--offset", "1M", "--length", "3149824", "--depth", depth];
            good(&[&["read", &url, "--output", path(&output), "--force"][..], &part].concat());
            assert_eq!(fs::read(&output).expect("a file"), data);
            let mode = fs::metadata(&output).expect("a file").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "it has what a disk has");
            assert_eq!(good(&[&["read", &url][..], &part].concat()).out, data, "the standard output");
        }
    }
    let sum = Command::new("sha256sum").arg(&input).output().expect("sha256sum");
    let sum = String::from_utf8(sum.stdout).expect("text");
    let ours = good(&["checksum", &served.url(1), "--offset", "256b", "--length", "769b"]).text();
    assert_eq!(ours.split(' ').next(), sum.split(' ').next());
}

#[test]
fn pipes_and_patterns() {
    let served = Served::start(&["mem:8M"], &[]);
    let url = served.url(0);
    let data = bytes(MIB + 512);
    let said = run_with(&data, &["write", &url, "--input", "-", "--fua", "--json"]);
    assert_eq!((said.status, said.json()["bytes"].as_u64()), (Some(0), Some(data.len() as u64)), "{said:?}");
    assert_eq!(run_with(&data, &["verify", &url, "--input", "-"]).status, Some(0));
    for pattern in ["zeros", "ones", "address", "random", "random:9", "hex:0102030405"] {
        good(&["write", &url, "--pattern", pattern]);
        good(&["verify", &url, "--pattern", pattern, "--offset", "13b", "--length", "1M"]);
    }
    let first = good(&["read", &url, "--length", "1b"]).out;
    assert_eq!(first[..6], [1, 2, 3, 4, 5, 1]);
}

#[test]
fn the_first_difference_is_named() {
    let served = Served::start(&["mem:8M"], &[]);
    let url = served.url(0);
    good(&["write", &url, "--pattern", "address"]);
    good(&["write", &url, "--pattern", "hex:aa", "--offset", "5000b", "--length", "1b"]);
    good(&["write", &url, "--pattern", "hex:aa", "--offset", "9000b", "--length", "1b"]);
    let message = refused(6, &["verify", &url, "--pattern", "address"]);
    assert!(
        message.contains("differs first in block 5000, byte 0 of it (byte 2560000 of the disk)"),
        "{message}"
    );
    assert!(message.contains("expected 00 00 00 00 00 27 10 00, found aa aa"), "{message}");
    let said = run(&["verify", &url, "--pattern", "address", "--json"]);
    assert_eq!((said.status, said.json()["first_difference"]["lba"].as_u64()), (Some(6), Some(5000)));
    good(&["verify", &url, "--pattern", "address", "--length", "5000b"]);
}

#[test]
fn data_that_does_not_fit_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let served = Served::start(&["mem:1M"], &[]);
    let url = served.url(0);
    let odd = directory.path().join("odd");
    fs::write(&odd, vec![1; 700]).expect("written");
    let large = directory.path().join("large");
    fs::write(&large, vec![1; 2 * MIB]).expect("written");
    let message = refused(2, &["write", &url, "--input", path(&odd)]);
    assert!(message.contains("700 bytes, which is no multiple of the disk's blocks of 512"), "{message}");
    let message = refused(2, &["write", &url, "--input", path(&large)]);
    assert!(message.contains("the disk has room for 1048576 from there"), "{message}");
    let short = ["write", url.as_str(), "--input", path(&odd), "--length", "2b"];
    assert!(refused(2, &short).contains("ends after 700 bytes, before --length is reached"));
    let said = run_with(&[1; 700], &["write", &url, "--input", "-"]);
    assert!(said.status == Some(2) && said.err.contains("inside a block of 512 bytes"), "{said:?}");
    let said = run_with(&vec![1; MIB + 1], &["write", &url, "--input", "-"]);
    assert!(said.status == Some(2) && said.err.contains("more data than the disk has room for"), "{said:?}");
    let said = run_with(&vec![1; MIB + 1], &["verify", &url, "--input", "-"]);
    assert!(said.status == Some(6) && said.err.contains("the input is longer"), "{said:?}");
}

#[test]
fn a_read_only_disk_stays_as_it_is() {
    let served = Served::start(&["mem:1M,ro"], &[]);
    for arguments in [
        vec!["write", "--pattern", "ones"],
        vec!["erase", "--yes"],
        vec!["erase", "--yes", "--method", "unmap"],
    ] {
        let url = served.url(0);
        let mut arguments = arguments;
        arguments.insert(1, &url);
        let message = refused(5, &arguments);
        assert!(message.contains("is read-only for this initiator"), "{message}");
    }
    good(&["verify", &served.url(0), "--pattern", "zeros"]);
}

#[test]
fn files_are_not_overwritten_unasked() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("out");
    fs::write(&output, "mine").expect("written");
    let served = Served::start(&["mem:1M"], &[]);
    let message = refused(1, &["read", &served.url(0), "-o", path(&output)]);
    assert!(message.contains("\nhelp: --force overwrites it"), "{message}");
    assert_eq!(fs::read(&output).expect("a file"), b"mine");
    let nowhere = directory.path().join("no/where");
    refused(1, &["read", &served.url(0), "-o", path(&nowhere)]);
    refused(1, &["write", &served.url(0), "--input", path(&nowhere)]);
}

#[test]
fn erasing_takes_a_yes() {
    let served = Served::start(&["mem:8M", "mem:8M"], &[]);
    let url = served.url(0);
    let erased = |range: &[&str]| good(&[&["verify", &url, "--pattern", "zeros"], range].concat());
    good(&["write", &url, "--pattern", "ones"]);
    let message = refused(2, &["erase", &url]);
    assert!(message.contains("this erases 8 MiB of iscsi://"), "{message}");
    assert!(message.contains("\nhelp: --yes does it without asking"), "{message}");
    good(&["verify", &url, "--pattern", "ones"]);

    let text = good(&["erase", &url, "--yes", "--offset", "1M", "--length", "2M"]).text();
    assert!(text.starts_with("erased 2 MiB in ") && text.ends_with("(zeros)\n"), "{text}");
    erased(&["--offset", "1M", "--length", "2M"]);
    good(&["verify", &url, "--pattern", "ones", "--offset", "3M"]);
    good(&["erase", &url, "--yes", "--method", "unmap", "--offset", "4M"]);
    erased(&["--offset", "4M"]);
    good(&["write", &url, "--pattern", "ones"]);
    let done = good(&["erase", &url, "--yes", "--method", "sanitize-overwrite", "--json"]).json();
    assert_eq!(
        (done["bytes"].as_u64(), done["method"].as_str()),
        (Some(8 << 20), Some("sanitize-overwrite"))
    );
    erased(&[]);
    let message = refused(2, &["erase", &url, "--yes", "--method", "sanitize-block", "--offset", "1M"]);
    assert!(message.contains("SANITIZE erases the whole disk"), "{message}");
}
