//! Reads whose answers are not what they should be: spoilt on the way, or the news that an earlier write has failed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread;

use lunette_tests::attach::{Attached, command};

use super::{pattern, serve};

/// The block whose reads are answered otherwise.
const LBA: u32 = 64;
const OFFSET: u64 = LBA as u64 * 512;
const BYTES: u32 = 4096;
/// Bytes of a header, and of a digest.
const HEADER: usize = 48;
const DIGEST: usize = 4;

/// What happens to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// A byte of its data changes on the way, and its digest does not.
    Spoilt,
    /// In its place comes a deferred error: an earlier write has failed, and the read was not carried out.
    Deferred,
}

/// What both directions of a way know.
#[derive(Debug)]
struct Plan {
    harm: Harm,
    /// How many more answers are harmed.
    left: u32,
    /// The tags of reads of that block.
    reads: HashSet<[u8; 4]>,
}

/// Reads a PDU: its header, and all that follows. Only data behind the login has a digest.
fn receive(stream: &mut TcpStream, digest: usize) -> io::Result<([u8; HEADER], Vec<u8>)> {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let is_login = matches!(header[0] & 0x3f, 0x03 | 0x23);
    let digest = if data > 0 && !is_login { digest } else { 0 };
    let mut rest = vec![0; usize::from(header[4]) * 4 + data.next_multiple_of(4) + digest];
    stream.read_exact(&mut rest)?;
    Ok((header, rest))
}

/// CHECK CONDITION in place of data with GOOD: MEDIUM ERROR, WRITE ERROR of a command before (SPC-4, 4.5.7).
fn deferred(good: &[u8; HEADER]) -> ([u8; HEADER], Vec<u8>) {
    let sense = [0, 18, 0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0];
    let mut header = [0; HEADER];
    // SCSI Response with an underflow of all, whose numbers and tag are those of the data.
    (header[0], header[1], header[3], header[7]) = (0x21, 0x82, 2, sense.len() as u8);
    header[16..20].copy_from_slice(&good[16..20]);
    header[24..36].copy_from_slice(&good[24..36]);
    header[44..].copy_from_slice(&BYTES.to_be_bytes());
    (header, sense.to_vec())
}

/// Leads to this target, and harms so many answers to reads of that block.
fn harmful_way(target: SocketAddr, harm: Harm, times: u32) -> io::Result<SocketAddr> {
    const READ_10: u8 = 0x28;
    let digest = if harm == Harm::Spoilt { DIGEST } else { 0 };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let plan = Arc::new(Mutex::new(Plan { harm, left: times, reads: HashSet::new() }));
    let back = move |mut far: TcpStream, mut near: TcpStream, plan: &Mutex<Plan>| -> io::Result<()> {
        while let Ok((mut header, mut rest)) = receive(&mut far, digest) {
            let mut plan = plan.lock().expect("no panic");
            if header[0] & 0x3f == 0x25 && plan.left > 0 && plan.reads.contains(&header[16..20]) {
                plan.left -= 1;
                match plan.harm {
                    Harm::Spoilt => rest[0] ^= 1,
                    Harm::Deferred => (header, rest) = deferred(&header),
                }
            }
            near.write_all(&[&header[..], &rest].concat())?;
        }
        near.shutdown(Shutdown::Both)
    };
    let there = move |mut near: TcpStream, mut far: TcpStream, plan: &Mutex<Plan>| -> io::Result<()> {
        while let Ok((header, rest)) = receive(&mut near, digest) {
            let is_command = header[0] & 0x3f == 0x01;
            if is_command && header[32] == READ_10 && header[34..38] == LBA.to_be_bytes() {
                let tag = header[16..20].try_into().expect("four bytes");
                plan.lock().expect("no panic").reads.insert(tag);
            }
            far.write_all(&[&header[..], &rest].concat())?;
        }
        far.shutdown(Shutdown::Both)
    };
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(target) else { continue };
            let [near_too, far_too] = [&near, &far].map(|stream| stream.try_clone().expect("a descriptor"));
            let (of_back, of_there) = (Arc::clone(&plan), Arc::clone(&plan));
            thread::spawn(move || back(far, near, &of_back));
            thread::spawn(move || there(near_too, far_too, &of_there));
        }
    });
    Ok(address)
}

#[test]
fn what_was_spoilt_on_the_way_is_read_again_a_few_times() {
    const EIO: u32 = 5;
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, "").start().expect("a target");
    for (times, is_fine) in [(3, true), (u32::MAX, false)] {
        let way = harmful_way(target.portal(), Harm::Spoilt, times).expect("a way");
        let url = target.url(0).replace(&target.portal().to_string(), &way.to_string());
        let attached = Attached::start(&format!("{url}?data_digest=crc32c"), &[]).expect("attached");
        let mut client = attached.client().expect("a client");
        let data = pattern(times.into(), BYTES as usize);
        assert_eq!(client.write(OFFSET, &data).expect("an answer"), 0);
        if is_fine {
            assert!(client.read(OFFSET, BYTES).expect("data") == data);
        } else {
            assert_eq!(client.request((command::READ, 0), OFFSET, BYTES).expect("an answer"), EIO);
        }
        attached.detach().expect("all is stable");
    }
    target.stop().expect("a clean end");
}

/// The unit tells once that a write has failed which it had answered, to whatever comes next, and its next flush ends well.
#[test]
fn what_has_failed_after_its_answer_is_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    let target = serve(&image, ",write=back").start().expect("a target");
    let way = harmful_way(target.portal(), Harm::Deferred, 1).expect("a way");
    let url = target.url(0).replace(&target.portal().to_string(), &way.to_string());
    let attached = Attached::start(&url, &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    assert_eq!(client.flush().expect("an answer"), 0);
    let (kept, lost) = (pattern(1, BYTES as usize), pattern(2, 65_536));
    assert_eq!(client.write(OFFSET, &kept).expect("an answer"), 0);
    assert_eq!(client.flush().expect("an answer"), 0);
    assert_eq!(client.write(1 << 20, &lost).expect("an answer"), 0);
    assert!(client.read(1 << 20, 65_536).expect("data") == lost, "the unit has answered it");
    let file = File::options().write(true).open(&image).expect("the image");
    file.write_all_at(&vec![0; 65_536], 1 << 20).expect("written");
    assert!(client.read(OFFSET, BYTES).expect("data") == kept, "it is not this read's failure");
    assert_eq!(client.flush().expect("an answer"), 0);
    assert!(fs::read(&image).expect("the image")[1 << 20..][..65_536] == lost, "what is flushed is there");
    attached.detach().expect("all is stable");
    target.stop().expect("a clean end");
}
