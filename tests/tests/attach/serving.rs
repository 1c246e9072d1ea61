//! What NBD clients get: QEMU's tools, and each command of the protocol with its errors.

use std::process::Command;
use std::thread;

use lunette_tests::attach::{Attached, Client, command};
use lunette_tests::lunette::{Lunette, binary};
use lunette_tests::need_programs;
use lunette_tests::tgtd::Tgtd;
use lunette_tests::tool::tool_output;

use super::{pattern, serve};

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;

/// An image goes to the disk and comes back, and qemu-io's checks hold.
fn qemu_works(url: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let content = [pattern(1, 3 << 20), vec![0; 5 << 20], pattern(2, 8 << 20)].concat();
    std::fs::write(path("source"), &content).expect("a file");
    let attached = Attached::start(url, &[]).expect("attached");
    let uri = attached.uri();
    tool_output("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", &path("source"), uri]);
    tool_output("qemu-img", ["compare", "-f", "raw", "-F", "raw", &path("source"), uri]);
    let checks = [
        "write -P 7 1000 5000",
        "write -P 9 -f 3M 2M",
        "discard 8M 1M",
        "write -z 9M 1M",
        "write -z -u 10M 1M",
        "flush",
        "read -P 7 1000 5000",
        "read -P 9 3M 2M",
        "read -P 0 9M 2M",
    ];
    let commands = checks.iter().flat_map(|check| ["-c", check]);
    let output = tool_output("qemu-io", ["-f", "raw", uri].into_iter().chain(commands));
    assert!(!output.contains("failed"), "{output}");
    attached.detach().expect("all is stable");

    // Another process sees the same.
    let attached = Attached::start(url, &[]).expect("attached again");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.read(0, 1000).expect("data"), content[..1000]);
    assert_eq!(client.read(1000, 5000).expect("data"), [7; 5000]);
    assert_eq!(client.read(6000, 1 << 20).expect("data"), content[6000..][..1 << 20]);
    drop(client);
    attached.detach().expect("all is stable");
}

#[test]
fn qemu_uses_a_disk_of_ours() {
    need_programs!("qemu-img", "qemu-io");
    for more in ["", ",write=back", ",block=4096"] {
        let directory = tempfile::tempdir().expect("a directory");
        let target = serve(&directory.path().join("disk.img"), more).start().expect("a target");
        qemu_works(&target.url(0));
        target.stop().expect("a clean end");
    }
}

#[test]
fn qemu_uses_a_disk_of_tgtd() {
    need_programs!("qemu-img", "qemu-io", "tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    std::fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("an image");
    let mut tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    qemu_works(&tgtd.add_file(&image).expect("a unit"));
}

#[test]
fn each_command_does_what_it_says() {
    let target = Lunette::serve().luns(["0=mem:16M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    assert_eq!((attached.ready.size_bytes, attached.ready.block_bytes), (16 << 20, 512));
    let mut client = attached.client().expect("a client");
    let data = pattern(3, 3000);
    assert_eq!(client.write(700, &data).expect("an answer"), 0);
    assert_eq!(client.read(700, 3000).expect("data"), data);
    assert_eq!(client.read(699, 1).expect("data"), [0]);
    // Unaligned zeros leave what is beside them.
    let zeroes = (command::WRITE_ZEROES, command::FUA);
    assert_eq!(client.request(zeroes, 1000, 2000).expect("an answer"), 0);
    assert_eq!(client.read(700, 300).expect("data"), data[..300]);
    assert_eq!(client.read(1000, 2000).expect("data"), [0; 2000]);
    assert_eq!(client.read(3000, 700).expect("data"), data[2300..]);
    // A trim of less than a block gives nothing back.
    assert_eq!(client.request((command::TRIM, command::FUA), 3000, 100).expect("an answer"), 0);
    assert_eq!(client.read(3000, 700).expect("data"), data[2300..]);
    assert_eq!(client.request((command::TRIM, 0), 0, 1 << 20).expect("an answer"), 0);
    let fast = (command::WRITE_ZEROES, command::FAST_ZERO);
    assert_eq!(client.request(fast, 4096, 1 << 20).expect("an answer"), 0);
    assert_eq!(client.request(fast, 1, 1 << 20).expect("an answer"), ENOTSUP);
    assert_eq!(client.read(4096, 0).expect("nothing"), Vec::<u8>::new());
    // A request longer than any command of SCSI's here.
    let long = pattern(4, 5 << 20);
    assert_eq!(client.write(4 << 20, &long).expect("an answer"), 0);
    assert!(client.read(4 << 20, 5 << 20).expect("data") == long);
    assert_eq!(client.flush().expect("an answer"), 0);

    let size = attached.ready.size_bytes;
    assert_eq!(client.write(size - 1, &[0; 2]).expect("an answer"), ENOSPC);
    assert_eq!(client.request((command::READ, 0), u64::MAX, 2).expect("an answer"), EINVAL);
    assert_eq!(client.request((command::TRIM, 0), size, 1).expect("an answer"), EINVAL);
    assert_eq!(client.request((99, 0), 0, 0).expect("an answer"), EINVAL);
    client.send(&Client::header((command::DISCONNECT, 0), 0, 0, 0)).expect("sent");
    assert!(client.is_closed());
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn neighbours_within_a_block_are_not_lost() {
    const WRITERS: u64 = 8;
    const BLOCKS: u64 = 40;
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    // Each writer has its own 64 bytes of every block, and all of them write to the same block at about the same time.
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut client = attached.client().expect("a client");
            scope.spawn(move || {
                for block in 0..BLOCKS {
                    client
                        .begin_write(block, block * 512 + writer * 64, &[writer as u8 + 1; 64])
                        .expect("sent");
                }
                for _ in 0..BLOCKS {
                    assert_eq!(client.answer().expect("an answer").1, 0);
                }
            });
        }
    });
    let data = attached.client().and_then(|mut client| client.read(0, 512 * BLOCKS as u32)).expect("data");
    for (index, byte) in data.iter().enumerate() {
        assert_eq!(u64::from(*byte), index as u64 % 512 / 64 + 1, "byte {index}");
    }
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

#[test]
fn what_is_read_only_stays_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    std::fs::write(&image, pattern(5, 1 << 20)).expect("an image");
    for (more, arguments) in [(",ro", &[][..]), ("", &["--read-only"][..])] {
        let luns = [format!("0={}{more}", image.display())];
        let target = Lunette::serve().luns(luns).start().expect("a target");
        let attached = Attached::start(&target.url(0), arguments).expect("attached");
        assert!(attached.ready.read_only);
        let mut client = attached.client().expect("a client");
        assert_eq!(client.write(0, &[1; 512]).expect("an answer"), EPERM);
        for change in [command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(client.request((change, 0), 0, 512).expect("an answer"), EPERM);
        }
        assert_eq!(client.flush().expect("an answer"), 0);
        assert_eq!(client.read(0, 512).expect("data"), pattern(5, 512));
        attached.detach().expect("all is well");
        target.stop().expect("a clean end");
    }
}

#[test]
fn a_socket_in_the_file_system_is_there_as_long_as_the_disk() {
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.socket");
    let address = format!("unix:{}", path.display());
    let attached = Attached::start(&target.url(0), &["--nbd", &address]).expect("attached");
    let mut client = Client::at(&path).expect("a client");
    assert_eq!(client.write(5, b"hello").expect("an answer"), 0);
    assert_eq!(client.read(4, 7).expect("data"), b"\0hello\0");
    attached.detach().expect("all is stable");
    assert!(!path.exists());
    target.stop().expect("a clean end");
}

#[test]
fn what_cannot_be_attached_is_said_with_its_status() {
    let target = Lunette::serve().luns(["0=mem:1M"]).start().expect("a target");
    let status = |url: &str, nbd: &str| {
        let output = Command::new(binary()).args(["attach", url, "--nbd", nbd]).output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = status(&target.url(7), "127.0.0.1:0");
    assert_eq!(code, Some(5), "{text}");
    let (code, text) = status(&target.url(0).replace("lunette:test", "lunette:other"), "127.0.0.1:0");
    assert_eq!(code, Some(3), "{text}");
    let (code, text) = status(&target.url(0), &target.portal().to_string());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot listen on"), "{text}");
    target.stop().expect("a clean end");
}
