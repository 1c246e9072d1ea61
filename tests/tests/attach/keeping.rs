//! What is kept of an attached disk until it is flushed (docs/decisions/0028): in which order it is made again, how much of it there
//! may be, and that it does not matter which cache the target said it has.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::{fs, io, thread};

use lunette_block::OperationKind;
use lunette_tests::attach::{Attached, Client, command};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::Lunette;

use super::{pattern, serve};

const MIB: usize = 1 << 20;

pub(crate) fn write_through(client: &mut Client, offset: u64, data: &[u8]) {
    let length = u32::try_from(data.len()).expect("a short write");
    let header = Client::header((command::WRITE, command::FUA), 9, offset, length);
    client.send(&[&header, data].concat()).expect("sent");
    assert_eq!(client.answer().expect("an answer"), (9, 0));
}

/// Ends the target without a warning, gives its image another content, and starts it again at the same portal.
fn crash(target: Lunette, image: &Path, content: &[u8], more: &str) -> Lunette {
    let portal = target.portal();
    target.kill().expect("killed");
    fs::write(image, content).expect("the image");
    serve(image, more).portal(portal).start().expect("the target again")
}

/// A write with FUA is stable before an older one without it, and a newer one may be lost: both are where they belong afterwards.
#[test]
fn what_is_made_again_goes_around_what_was_written_through_after_it() {
    const BACK: &str = ",write=back";
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, BACK).start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.flush().expect("an answer"), 0);
    let mut stable = fs::read(&image).expect("the image");
    let (older, through, newer) = (pattern(1, 65_536), pattern(2, 32_768), pattern(3, 8192));
    assert_eq!(client.write(0, &older).expect("an answer"), 0);
    write_through(&mut client, 16_384, &through);
    assert_eq!(client.write(20_480, &newer).expect("an answer"), 0);

    let mut expected = older;
    expected[16_384..49_152].copy_from_slice(&through);
    expected[20_480..28_672].copy_from_slice(&newer);
    // Of all this only what was written through has left the target's cache.
    stable[16_384..49_152].copy_from_slice(&through);
    let target = crash(target, &image, &stable, BACK);
    assert!(client.read(0, 65_536).expect("data") == expected);
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[..65_536] == expected, "what is flushed is there");
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}

/// Leads to this target, which does not know SYNCHRONIZE CACHE(10) by this way: it becomes a command that nobody has.
fn way_without_flushes(target: SocketAddr) -> io::Result<SocketAddr> {
    const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    const VENDOR_SPECIFIC: u8 = 0xc0;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let lead = move |mut near: TcpStream| -> io::Result<()> {
        let mut far = TcpStream::connect(target)?;
        let (mut answers, mut asker) = (far.try_clone()?, near.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut answers, &mut asker);
            let _ = asker.shutdown(Shutdown::Both);
        });
        let mut header = [0; 48];
        while near.read_exact(&mut header).is_ok() {
            if header[0] & 0x3f == 1 && header[32] == SYNCHRONIZE_CACHE_10 {
                header[32] = VENDOR_SPECIFIC;
            }
            far.write_all(&header)?;
            let data = u64::from(u32::from_be_bytes([0, header[5], header[6], header[7]]));
            let rest = u64::from(header[4]) * 4 + data.next_multiple_of(4);
            io::copy(&mut (&near).take(rest), &mut far)?;
        }
        far.shutdown(Shutdown::Both)
    };
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            thread::spawn(move || lead(near));
        }
    });
    Ok(address)
}

#[test]
fn only_a_disk_with_a_write_cache_has_to_know_flushes() {
    let target = Lunette::serve().luns(["0=mem:1M", "1=mem:1M,write=back"]).start().expect("a target");
    let way = way_without_flushes(target.portal()).expect("a way");
    for (lun, is_fine) in [(0, true), (1, false)] {
        let url = target.url(lun).replace(&target.portal().to_string(), &way.to_string());
        let attached = Attached::start(&url, &["--no-write-behind"]).expect("attached");
        let mut client = attached.client().expect("a client");
        for seed in 0..3 {
            let data = pattern(seed, 4096);
            assert_eq!(client.write(0, &data).expect("an answer"), 0);
            assert_eq!(client.flush().expect("an answer") == 0, is_fine, "unit {lun}");
        }
        assert_eq!(attached.detach().is_ok(), is_fine, "unit {lun}");
    }
    target.stop().expect("a clean end");
}

/// The disk had no write cache when it was attached; it comes back with one, and loses that.
#[test]
fn a_disk_that_gets_a_write_cache_later_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, "").start().expect("a target");
    let attached = Attached::start(&target.url(0), &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let (first, second) = (pattern(1, 40_000), pattern(2, 10_000));
    assert_eq!(client.write(0, &first).expect("an answer"), 0);
    let stable = fs::read(&image).expect("the image");
    assert!(stable[..40_000] == first, "it was written through");

    let target = crash(target, &image, &stable, ",write=back");
    assert_eq!(client.write(5000, &second).expect("an answer"), 0);
    let mut expected = first;
    expected[5000..15_000].copy_from_slice(&second);
    let target = crash(target, &image, &stable, ",write=back");
    assert!(client.read(0, 40_000).expect("data") == expected);
    attached.detach().expect("all is stable");
    assert!(fs::read(&image).expect("the image")[..40_000] == expected);
    target.stop().expect("a clean end");
}

/// 64 MiB are kept; what would be more is begun after a flush, though nobody has asked for one.
#[test]
fn what_is_kept_is_bounded_by_a_flush() {
    let directory = tempfile::tempdir().expect("a directory");
    // In a file, since memory has nothing to flush.
    let image = directory.path().join("disk.img");
    let target = InProcess::start(&[&format!("{},size=16M,write=back", image.display())]);
    let url = format!("iscsi://{}/{}/0", target.portal(), target.name());
    let attached = Attached::start(&url, &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.flush().expect("an answer"), 0);
    let flushes = || target.faults(0).calls(OperationKind::Flush);
    let (before, data) = (flushes(), vec![7; MIB]);
    let mut write = |count: u64| {
        for at in 0..count {
            assert_eq!(client.write(at % 16 * MIB as u64, &data).expect("an answer"), 0);
        }
    };
    write(60);
    assert_eq!(flushes(), before, "there is room for all of it");
    // Some of it may be answered before it is sent.
    write(140);
    assert!(flushes() > before, "200 MiB are more than may be kept");
    attached.detach().expect("all is stable");
}
