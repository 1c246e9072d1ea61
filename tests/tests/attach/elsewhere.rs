//! Disks of other people's targets: which one it is, and what goes over the wire.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;

use lunette_tests::attach::Attached;
use lunette_tests::istgt::Istgt;
use lunette_tests::need_programs;
use lunette_tests::relay::Relay;
use lunette_tests::tgtd::{Tgtd, free_portal};

use super::pattern;

const BYTES: u64 = 16 << 20;

/// Starts a target at this portal with this unit, whose serial number is that: something that ends it when it is dropped, and the URL.
type Start<T> = fn(SocketAddr, &Path, &str) -> (T, String);

fn tgtd(portal: SocketAddr, image: &Path, serial: &str) -> (Tgtd, String) {
    let log = image.with_extension("log");
    let mut tgtd = Tgtd::start_at(portal, &log).expect("tgtd");
    tgtd.allow_digests().expect("digests");
    let url = tgtd.add_file(image).expect("a unit");
    tgtd.set_serial(1, serial).expect("a serial number");
    (tgtd, url)
}

fn istgt(portal: SocketAddr, image: &Path, serial: &str) -> (Istgt, String) {
    let directory = image.parent().expect("a directory");
    let istgt = Istgt::start_at(vec![portal], directory, image, 512, serial).expect("istgt");
    let url = istgt.url();
    (istgt, url)
}

/// A target that is restarted goes on if it has the disk, and gets nothing if it has another.
fn only_the_disk_that_it_was<T>(start: Start<T>) {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
    let portal = free_portal().expect("a port");
    let relay = Relay::to(portal);
    let (target, url) = start(portal, &image, "first");
    let url = url.replace(&portal.to_string(), &relay.address.to_string());
    // Nobody is let in before the next one has its serial number: tgtd has another until it is told.
    let restart = |target: T, serial| {
        relay.close();
        drop(target);
        let portal = free_portal().expect("a port");
        let (target, _) = start(portal, &image, serial);
        relay.lead_to(portal);
        relay.open();
        target
    };
    let attached = Attached::start(&url, &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let data = pattern(1, 100_000);
    assert_eq!(client.write(1000, &data).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);
    let target = restart(target, "first");
    assert!(client.read(1000, 100_000).expect("data") == data, "it is the same");
    assert_eq!(client.flush().expect("an answer"), 0);
    relay.close();
    client.begin_write(7, 1000, &pattern(2, 100_000)).expect("sent");
    let target = restart(target, "other");
    let error = attached.end().expect_err("it is no clean end");
    assert!(error.to_string().contains("exit status: 5"), "{error:#}");
    assert!(error.to_string().contains("another disk is in its place"), "{error:#}");
    assert!(fs::read(&image).expect("the image")[1000..101_000] == data, "nothing was written to it");
    drop(target);
}

#[test]
fn a_disk_of_tgtd_with_another_serial_number_is_another() {
    need_programs!("tgtd", "tgtadm");
    only_the_disk_that_it_was(tgtd);
}

#[test]
fn a_disk_of_istgt_with_another_serial_number_is_another() {
    need_programs!("istgt");
    only_the_disk_that_it_was(istgt);
}

/// Digests of headers alone, of data alone, and of both.
fn digests_hold<T>(start: Start<T>) {
    for (header, data) in [("crc32c", "none"), ("none", "crc32c"), ("crc32c", "crc32c")] {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("disk.img");
        File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
        let (target, url) = start(free_portal().expect("a port"), &image, "first");
        let url = format!("{url}?header_digest={header}&data_digest={data}");
        let attached = Attached::start(&url, &[]).expect("attached");
        let mut client = attached.client().expect("a client");
        let long = pattern(3, 3 << 20);
        assert_eq!(client.write(4096, &long).expect("an answer"), 0);
        assert_eq!(client.write(0, &[7; 512]).expect("an answer"), 0);
        assert!(client.read(4096, 3 << 20).expect("data") == long);
        assert_eq!(client.flush().expect("an answer"), 0);
        drop(client);
        attached.detach().expect("all is stable");
        drop(target);
        let stored = fs::read(&image).expect("the image");
        assert!(stored[4096..][..3 << 20] == long && stored[..512] == [7; 512]);
    }
}

#[test]
fn tgtd_and_we_agree_on_digests() {
    need_programs!("tgtd", "tgtadm");
    digests_hold(tgtd);
}

#[test]
fn istgt_and_we_agree_on_digests() {
    need_programs!("istgt");
    digests_hold(istgt);
}
