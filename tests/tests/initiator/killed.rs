//! Targets that end in the middle of a command, or are others when they come back: the status and the message are right, and nothing is
//! claimed that has not happened. With tgtd and with istgt, so that it is no target of ours that is polite.

use std::fs::File;
use std::path::{Path, PathBuf};

use lunette_tests::attach::Attached;
use lunette_tests::commands::{Said, command, good};
use lunette_tests::engine::pattern;
use lunette_tests::istgt::Istgt;
use lunette_tests::need_programs;
use lunette_tests::tgtd::{TARGET_NAME, Tgtd};
use tempfile::TempDir;

use super::watch::{Watch, Watched};

const SIZE_BYTES: usize = 8 << 20;

/// A foreign target that serves an image.
enum Foreign {
    Tgtd(Tgtd),
    Istgt(Istgt),
}

impl Foreign {
    fn tgtd(directory: &Path, image: &Path) -> Foreign {
        let mut tgtd = Tgtd::start(&directory.join("log")).expect("tgtd");
        tgtd.allow_digests().expect("digests");
        tgtd.add_file(image).expect("a unit");
        Foreign::Tgtd(tgtd)
    }

    fn istgt(directory: &Path, image: &Path) -> Foreign {
        Foreign::Istgt(Istgt::start(directory, image).expect("istgt"))
    }

    fn watched(&self) -> Watched {
        match self {
            Foreign::Tgtd(tgtd) => Watched { portal: tgtd.portal(), pid: tgtd.pid() },
            Foreign::Istgt(istgt) => Watched { portal: istgt.portals()[0], pid: istgt.pid() },
        }
    }

    /// Its unit through a watch.
    fn url(&self, watch: &Watch, digests: &str) -> String {
        let unit = match self {
            Foreign::Tgtd(_) => format!("{TARGET_NAME}/1"),
            Foreign::Istgt(istgt) => istgt.url().splitn(4, '/').nth(3).expect("a unit").to_owned(),
        };
        format!("iscsi://{}/{unit}?header_digest=none&data_digest={digests}", watch.address)
    }
}

type Start = fn(&Path, &Path) -> Foreign;

/// A directory with an image.
fn image(content: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    std::fs::write(&image, content).expect("an image");
    (directory, image)
}

/// Runs a command whose target is killed when its first command of data comes (or the one with this number).
fn killed(start: Start, (directory, image): (&TempDir, &Path), after: u32, arguments: &[&str]) -> Said {
    let target = start(directory.path(), image);
    let watch = Watch::kill(target.watched(), after);
    let url = target.url(&watch, "none");
    let arguments: Vec<&str> =
        arguments.iter().map(|word| if *word == "URL" { &url } else { *word }).collect();
    let said = command(&[&arguments[..], &["--recovery", "0"]].concat());
    assert!(watch.has_killed(), "{arguments:?}: {said:?}");
    let error = said.err.lines().find_map(|line| line.strip_prefix("error: "));
    assert!(error.is_some() && said.err.contains("help: "), "{arguments:?}: {said:?}");
    assert_eq!((said.status, said.out.as_str()), (Some(3), ""), "{arguments:?}: {said:?}");
    said
}

/// Every command that moves data, each with a target that ends under it.
fn every_command_tells_that_its_target_has_ended(start: Start) {
    let content = pattern(1, SIZE_BYTES);
    let (directory, disk) = image(&content);
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (source, out) = (path("source"), path("out"));
    std::fs::write(&source, pattern(2, SIZE_BYTES)).expect("a file");
    let run = |after, arguments: &[&str]| killed(start, (&directory, &disk), after, arguments);

    for after in [1, 2] {
        run(after, &["checksum", "URL"]);
        run(after, &["verify", "URL", "--input", &disk.display().to_string()]);
        run(after, &["read", "URL", "--output", &out, "--force"]);
    }
    assert!(std::fs::read(&disk).expect("the image") == content, "nothing was written");
    run(1, &["write", "URL", "--input", &source]);
    run(1, &["erase", "URL", "--yes"]);
    assert!(std::fs::read(&disk).expect("the image") == content, "the first command had not come");

    // What is begun goes on with another target at another address.
    let (copy, record) = (path("copy"), path("record"));
    let copies: [(&[&str], &Path, &[u8]); 2] = [
        (&["copy", "URL", &copy, "--resume", &record], Path::new(&copy), &content),
        (&["copy", &source, "URL", "--resume", &record], &disk, &pattern(2, SIZE_BYTES)),
    ];
    for (arguments, to, expected) in copies {
        let said = run(2, &[arguments, &["--quiet"]].concat());
        assert!(Path::new(&record).exists(), "{said:?}");
        assert!(std::fs::read(to).is_ok_and(|there| there != expected), "it is not whole yet");
        let target = start(directory.path(), &disk);
        let watch = Watch::only(target.watched());
        good(&with_url(arguments, &target.url(&watch, "none")));
        assert!(std::fs::read(to).expect("the copy") == expected);
        assert!(!Path::new(&record).exists());
    }
}

fn with_url<'a>(arguments: &[&'a str], url: &'a str) -> Vec<&'a str> {
    arguments.iter().map(|word| if *word == "URL" { url } else { *word }).collect()
}

#[test]
fn every_command_tells_that_tgtd_has_ended() {
    need_programs!("tgtd", "tgtadm");
    every_command_tells_that_its_target_has_ended(Foreign::tgtd);
}

#[test]
fn every_command_tells_that_istgt_has_ended() {
    need_programs!("istgt");
    every_command_tells_that_its_target_has_ended(Foreign::istgt);
}

/// Without a write that was answered there is nothing to lose; what is asked for afterwards fails.
fn an_attached_disk_ends_with_its_target(start: Start) {
    const EIO: u32 = 5;
    let (directory, disk) = image(&[0; SIZE_BYTES]);
    let target = start(directory.path(), &disk);
    let watch = Watch::kill(target.watched(), 1);
    let attached = Attached::start(&target.url(&watch, "none"), &["--recovery", "0", "--no-write-behind"]);
    let attached = attached.expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.write(0, &[7; 4096]).expect("an answer"), EIO);
    assert!(watch.has_killed());
    let ending = attached.end().expect_err("it is no clean end").to_string();
    assert!(ending.contains("exit status: 3") && ending.contains("closed the connection"), "{ending}");
    assert!(std::fs::read(&disk).expect("the image") == [0; SIZE_BYTES], "nothing was written");
}

#[test]
fn an_attached_disk_ends_with_tgtd() {
    need_programs!("tgtd", "tgtadm");
    an_attached_disk_ends_with_its_target(Foreign::tgtd);
}

#[test]
fn an_attached_disk_ends_with_istgt() {
    need_programs!("istgt");
    an_attached_disk_ends_with_its_target(Foreign::istgt);
}

/// A disk of another size comes back behind the same number, and gets nothing of what was meant for the first.
fn another_disk_gets_nothing(start: Start) {
    let (directory, disk) = image(&[0; SIZE_BYTES]);
    let (other_directory, other) = image(&[]);
    File::options()
        .write(true)
        .open(&other)
        .and_then(|file| file.set_len(2 * SIZE_BYTES as u64))
        .expect("larger");
    let target = start(directory.path(), &disk);
    let next = start(other_directory.path(), &other);
    let watch = Watch::replace(target.watched(), 2, next.watched());
    let said = command(&["write", &target.url(&watch, "none"), "--pattern", "ones"]);
    assert!(watch.has_killed(), "{said:?}");
    assert_eq!((said.status, said.out.as_str()), (Some(5), ""), "{said:?}");
    assert!(said.err.contains("bytes") && said.err.contains("error: "), "{said:?}");
    assert!(std::fs::read(&other).expect("the image").iter().all(|byte| *byte == 0), "nothing was written");
}

#[test]
fn another_disk_of_tgtds_gets_nothing() {
    need_programs!("tgtd", "tgtadm");
    another_disk_gets_nothing(Foreign::tgtd);
}

#[test]
fn another_disk_of_istgts_gets_nothing() {
    need_programs!("istgt");
    another_disk_gets_nothing(Foreign::istgt);
}

/// With digests a byte that changes on its way is an error, never data.
fn spoilt_data_is_never_taken(start: Start) {
    let (directory, disk) = image(&pattern(5, SIZE_BYTES / 8));
    let target = start(directory.path(), &disk);
    let sum = |watch: &Watch| command(&["checksum", &target.url(watch, "crc32c")]);
    let right = sum(&Watch::spoil(target.watched(), 0));
    assert!(right.status == Some(0) && !right.out.is_empty(), "{right:?}");
    let spoilt = sum(&Watch::spoil(target.watched(), 1));
    assert_eq!((spoilt.status, spoilt.out.as_str()), (Some(5), ""), "{spoilt:?}");
    assert!(spoilt.err.contains("the data digest was wrong"), "{spoilt:?}");
    assert!(spoilt.err.contains("something on the way changes data"), "{spoilt:?}");
}

#[test]
fn data_of_tgtds_that_is_spoilt_is_never_taken() {
    need_programs!("tgtd", "tgtadm");
    spoilt_data_is_never_taken(Foreign::tgtd);
}

#[test]
fn data_of_istgts_that_is_spoilt_is_never_taken() {
    need_programs!("istgt");
    spoilt_data_is_never_taken(Foreign::istgt);
}
