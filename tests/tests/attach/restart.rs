//! The target goes and comes back: clients wait, and what was answered is there, also where the target has lost its cache.

use std::fs;
use std::path::Path;

use lunette_tests::attach::{Attached, command};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::lunette::{Lunette, TARGET_NAME};
use lunette_tests::raw::Raw;
use lunette_wire::initiator::TaskManagementFunction as Function;

use super::{pattern, serve};

/// Ends the target without a warning, puts back what its image was before (as if nothing since had left its cache), and
/// starts it again at the same portal.
fn crash(target: Lunette, image: &Path, stable: &[u8]) -> Lunette {
    let portal = target.portal();
    target.kill().expect("killed");
    fs::write(image, stable).expect("the old image");
    serve(image, ",write=back").portal(portal).start().expect("the target again")
}

#[test]
fn what_was_not_flushed_is_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let (stable, lost, later) = (pattern(1, 100_000), pattern(2, 300_000), pattern(3, 5000));
    assert_eq!(client.write(0, &stable).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);
    let flushed = fs::read(&image).expect("the image");

    // The second overwrites a part of the first; and zeros a part of both.
    assert_eq!(client.write(50_000, &lost).expect("an answer"), 0);
    assert_eq!(client.write(60_000, &later).expect("an answer"), 0);
    assert_eq!(client.request((command::WRITE_ZEROES, 0), 64_000, 5000).expect("an answer"), 0);
    let mut expected = [&stable[..50_000], &lost].concat();
    expected[60_000..65_000].copy_from_slice(&later);
    expected[64_000..69_000].fill(0);

    let target = crash(target, &image, &flushed);
    assert!(client.read(0, 350_000).expect("data") == expected, "a read sees what was answered");
    let target = crash(target, &image, &flushed);
    // A write of a part of a block reads the rest of it first.
    assert_eq!(client.write(60_001, &[9]).expect("an answer"), 0);
    expected[60_001] = 9;
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[..350_000] == expected, "what is flushed is there");
    assert!(client.read(0, 350_000).expect("data") == expected);

    // Nothing is left to be written again.
    let flushed = fs::read(&image).expect("the image");
    let target = crash(target, &image, &flushed);
    attached.detach().expect("all is stable");
    assert!(fs::read(&image).expect("the image")[..350_000] == expected);
    target.stop().expect("a clean end");
}

#[test]
fn writes_under_way_when_the_target_dies_are_all_there_once_it_is_back() {
    const WRITES: u64 = 64;
    for more in ["", ",write=back"] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("disk.img");
        let target = serve(&image, more).start().expect("a target");
        let attached = Attached::start(&target.url(0), &["--depth", "32"]).expect("attached");
        let mut client = attached.client().expect("a client");
        let data = |cookie: u64| pattern(cookie + 10, 10_000);
        for cookie in 0..WRITES {
            client.begin_write(cookie, cookie * 10_000, &data(cookie)).expect("sent");
        }
        // Some are answered, some are under way, some are not begun.
        let mut answered: Vec<(u64, u32)> = (0..8).map(|_| client.answer().expect("an answer")).collect();
        let portal = target.portal();
        target.kill().expect("killed");
        let target = serve(&image, more).portal(portal).start().expect("the target again");
        answered.extend((8..WRITES).map(|_| client.answer().expect("an answer")));
        answered.sort_unstable();
        assert_eq!(answered, (0..WRITES).map(|cookie| (cookie, 0)).collect::<Vec<_>>());
        assert_eq!(client.flush().expect("an answer"), 0);
        attached.detach().expect("all is stable");
        let content = fs::read(&image).expect("the image");
        for cookie in 0..WRITES {
            assert!(content[cookie as usize * 10_000..][..10_000] == data(cookie), "write {cookie}");
        }
        target.stop().expect("a clean end");
    }
}

#[test]
fn a_reset_by_another_initiator_fails_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let data = pattern(1, 10_000);
    assert_eq!(client.write(0, &data).expect("an answer"), 0);
    let options = LoginOptions { target_name: Some(TARGET_NAME.to_owned()), ..LoginOptions::default() };
    let mut other = Raw::login(target.portal(), &options).expect("a login");
    let reset = other.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(other.managed(reset).expect("an answer"), 0, "complete");
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(client.read(0, 10_000).expect("data") == data);
    attached.detach().expect("all is stable");
    assert!(fs::read(&image).expect("the image")[..10_000] == data);
    target.stop().expect("a clean end");
}

#[test]
fn another_disk_in_its_place_ends_it() {
    // Memory is another disk each time.
    let start = || Lunette::serve().luns(["0=mem:1M"]);
    let target = start().start().expect("a target");
    let attached = Attached::start(&target.url(0), &["--read-only"]).expect("attached");
    let portal = target.portal();
    target.kill().expect("killed");
    let target = start().portal(portal).start().expect("another one");
    let error = attached.end().expect_err("it is no clean end");
    assert!(error.to_string().contains("exit status: 5"), "{error:#}");
    assert!(error.to_string().contains("another disk is in its place"), "{error:#}");
    target.stop().expect("a clean end");
}

#[test]
fn a_target_that_does_not_come_back_ends_it() {
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &["--recovery", "0"]).expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.write(0, &[1; 512]).expect("an answer"), 0);
    target.kill().expect("killed");
    // The error of a request, or the end of everything, whichever comes first.
    assert!(!matches!(client.write(0, &[2; 512]), Ok(0)));
    let error = attached.detach().expect_err("it is no clean end");
    assert!(error.to_string().contains("exit status: 3"), "{error:#}");
}
