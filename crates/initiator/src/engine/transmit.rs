//! The way out of one connection: PDUs in order, sent with as few vectored writes as the socket allows. Data is never
//! copied here; it stays in the command's buffer until the socket has taken it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use lunette_iscsi::initiator::session::{Outgoing, Payload};
use lunette_wire::digest::{DIGEST_LENGTH, crc32c, crc32c_of};
use lunette_wire::frame::{Digests, padding};
use lunette_wire::{BHS_LENGTH, Bhs};
use rustix::io::Errno;

use super::table::Table;

/// Slices of one write: a queue depth of 64 writes with data, which is more than a socket takes at once.
const SLICES_MAX: usize = 192;
const ZEROES: [u8; 3] = [0; 3];

#[derive(Debug)]
enum Body {
    None,
    Bytes(Box<[u8]>),
    Range { place: u32, start: usize, end: usize },
}

/// One PDU as it goes on the wire: header, additional headers, header digest; data; padding and data digest.
#[derive(Debug)]
struct Queued {
    bhs: Bhs,
    /// Additional headers, and the digest of all headers.
    more: Vec<u8>,
    header_digest: [u8; DIGEST_LENGTH],
    header_digest_length: u8,
    body: Body,
    tail: [u8; 3 + DIGEST_LENGTH],
    tail_length: u8,
    length: usize,
    /// The command that this PDU begins.
    begins: Option<u32>,
}

impl Queued {
    fn parts<'a>(&'a self, table: &'a Table) -> [&'a [u8]; 5] {
        let body = match &self.body {
            Body::None => &[],
            Body::Bytes(bytes) => &bytes[..],
            Body::Range { place, start, end } => {
                table.get(*place).and_then(|pending| pending.buffer().get(*start..*end)).unwrap_or_default()
            }
        };
        [
            &self.bhs,
            &self.more,
            &self.header_digest[..usize::from(self.header_digest_length)],
            body,
            &self.tail[..usize::from(self.tail_length)],
        ]
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Transmitter {
    queue: VecDeque<Queued>,
    /// Bytes of the first PDU that were sent.
    sent: usize,
    queued_bytes: usize,
}

impl Transmitter {
    /// Bytes that wait.
    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Takes a PDU of the session's. None is lost: a range whose command has gone is an error of this crate's.
    pub(super) fn push(&mut self, pdu: Outgoing, digests: Digests, table: &mut Table) {
        let begins = pdu.begins.and_then(|task| table.of_task(task));
        let body = match pdu.payload {
            Payload::None => Body::None,
            Payload::Bytes(bytes) => Body::Bytes(bytes),
            Payload::Data(range) => match table.of_task(range.task) {
                Some(place) => {
                    table.hold(place);
                    let start = range.offset as usize;
                    Body::Range { place, start, end: start + range.length as usize }
                }
                None => Body::None,
            },
        };
        let mut queued = Queued {
            bhs: pdu.bhs,
            more: pdu.ahs.into_vec(),
            header_digest: [0; DIGEST_LENGTH],
            header_digest_length: 0,
            body,
            tail: [0; 3 + DIGEST_LENGTH],
            tail_length: 0,
            length: 0,
            begins,
        };
        if digests.header {
            queued.header_digest = crc32c_of(&[&queued.bhs, &queued.more]);
            queued.header_digest_length = DIGEST_LENGTH as u8;
        }
        let data = queued.parts(table)[3];
        let (data_length, pad) = (data.len(), padding(data.len()));
        let digest = (digests.data && data_length > 0)
            .then(|| if pad == 0 { crc32c(data) } else { crc32c_of(&[data, &ZEROES[..pad]]) });
        queued.tail_length = pad as u8;
        if let Some(digest) = digest {
            queued.tail[pad..pad + DIGEST_LENGTH].copy_from_slice(&digest);
            queued.tail_length += DIGEST_LENGTH as u8;
        }
        let headers = BHS_LENGTH + queued.more.len() + usize::from(queued.header_digest_length);
        queued.length = headers + data_length + usize::from(queued.tail_length);
        self.queued_bytes += queued.length;
        self.queue.push_back(queued);
    }

    /// Sends as much as the socket takes; true when nothing is left.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) fn send(&mut self, socket: &impl AsFd, now: Duration, table: &mut Table) -> io::Result<bool> {
        while !self.queue.is_empty() {
            match self.write(socket, table) {
                Ok(sent) => self.advance(sent, now, table),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn write(&self, socket: &impl AsFd, table: &Table) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut skip = self.sent;
        'gathering: for queued in &self.queue {
            for part in queued.parts(table) {
                let Some(rest) = part.get(skip..).filter(|rest| !rest.is_empty()) else {
                    skip -= part.len();
                    continue;
                };
                skip = 0;
                if count == SLICES_MAX {
                    break 'gathering;
                }
                slices[count] = IoSlice::new(rest);
                count += 1;
            }
        }
        rustix::net::sendmsg(
            socket,
            &slices[..count],
            &mut rustix::net::SendAncillaryBuffer::default(),
            rustix::net::SendFlags::NOSIGNAL,
        )
    }

    fn advance(&mut self, sent: usize, now: Duration, table: &mut Table) {
        self.queued_bytes -= sent;
        let mut left = self.sent + sent;
        while let Some(first) = self.queue.front_mut() {
            if let Some(place) = first.begins.take() {
                table.note_sent(now, place);
            }
            if left < first.length {
                break;
            }
            left -= first.length;
            if let Some(Queued { body: Body::Range { place, start, end }, .. }) = self.queue.pop_front() {
                table.note_data_sent(now, place, end - start);
                table.release(now, place);
            }
            if left == 0 {
                break;
            }
        }
        self.sent = left;
    }

    /// Forgets everything: the connection is gone.
    pub(super) fn clear(&mut self, now: Duration, table: &mut Table) {
        for queued in self.queue.drain(..) {
            if let Body::Range { place, .. } = queued.body {
                table.release(now, place);
            }
        }
        (self.sent, self.queued_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use lunette_wire::initiator::NopOut;

    use super::*;

    /// RFC 7143, 11.1, 11.2: up to the next word with zeroes, which the digest covers.
    #[test]
    fn segments_are_padded_with_zeroes() {
        for (length, pad) in [(4, 0), (5, 3), (6, 2), (7, 1)] {
            let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
            let data = vec![0xee; length];
            let pdu = Outgoing {
                connection: Default::default(),
                bhs: NopOut::default().encode(length),
                ahs: Box::default(),
                payload: Payload::Bytes(data.clone().into()),
                begins: None,
            };
            let (mut transmitter, mut table) = (Transmitter::default(), Table::default());
            transmitter.push(pdu, Digests { header: false, data: true }, &mut table);
            assert!(transmitter.send(&ours, Duration::ZERO, &mut table).expect("a socket"));
            drop(ours);
            let mut sent = Vec::new();
            theirs.read_to_end(&mut sent).expect("all of it");
            let padded = [&data[..], &ZEROES[..pad]].concat();
            assert_eq!(sent[BHS_LENGTH..], [&padded[..], &crc32c(&padded)].concat());
        }
    }
}
