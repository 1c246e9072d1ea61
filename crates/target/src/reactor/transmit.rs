//! The way out: PDUs in order, sent with as few vectored writes as the socket allows.
//!
//! A PDU's data is never copied here: it stays in the command's buffer until the socket has taken it.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

use lunette_iscsi::session::Payload;
use lunette_wire::digest::{DIGEST_LENGTH, crc32c, crc32c_of};
use lunette_wire::frame::{Digests, padding};
use lunette_wire::{BHS_LENGTH, Bhs};

use super::session::Segment;

/// Slices that go into one write: about 80 PDUs with data, which is more than a socket takes at once.
const SLICES_MAX: usize = 240;

/// A quarter of the second-level cache of the processors of the day.
const EAGER_SEND_BYTES: usize = 256 << 10;

const HEAD_LENGTH_MAX: usize = BHS_LENGTH + DIGEST_LENGTH;
const TAIL_LENGTH_MAX: usize = 3 + DIGEST_LENGTH;
const ZEROES: [u8; 3] = [0; 3];

enum Body {
    None,
    Bytes(Vec<u8>),
    Range { data: Segment, start: usize, end: usize },
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Bytes(bytes) => bytes,
            Self::Range { data, start, end } => &data.bytes()[*start..*end],
        }
    }

    /// Bytes that are not in a buffer of the pool.
    fn owned_length(&self) -> usize {
        match self {
            Self::None | Self::Range { data: Segment::Medium(_), .. } => 0,
            Self::Bytes(_) | Self::Range { data: Segment::Parameter(_), .. } => self.bytes().len(),
        }
    }
}

/// One PDU as it goes on the wire: header and header digest, data, padding and data digest.
struct QueuedPdu {
    head: [u8; HEAD_LENGTH_MAX],
    head_length: u8,
    tail: [u8; TAIL_LENGTH_MAX],
    tail_length: u8,
    body: Body,
}

impl QueuedPdu {
    fn new(bhs: &Bhs, payload: Payload<Segment>, digests: Digests) -> Self {
        let body = match payload {
            Payload::None => Body::None,
            Payload::Bytes(bytes) => Body::Bytes(bytes),
            Payload::Buffer { data, start, length } => {
                let start = start as usize;
                Body::Range { data, start, end: start + length as usize }
            }
        };
        let mut pdu = Self {
            head: [0; HEAD_LENGTH_MAX],
            head_length: BHS_LENGTH as u8,
            tail: [0; TAIL_LENGTH_MAX],
            tail_length: 0,
            body,
        };
        pdu.head[..BHS_LENGTH].copy_from_slice(bhs);
        if digests.header {
            pdu.head[BHS_LENGTH..].copy_from_slice(&crc32c(bhs));
            pdu.head_length = HEAD_LENGTH_MAX as u8;
        }
        let pad = padding(pdu.body.bytes().len());
        pdu.tail_length = pad as u8;
        if digests.data && !pdu.body.bytes().is_empty() {
            let digest = crc32c_of(&[pdu.body.bytes(), &ZEROES[..pad]]);
            pdu.tail[pad..pad + DIGEST_LENGTH].copy_from_slice(&digest);
            pdu.tail_length += DIGEST_LENGTH as u8;
        }
        pdu
    }

    fn parts(&self) -> [&[u8]; 3] {
        [&self.head[..self.head_length.into()], self.body.bytes(), &self.tail[..self.tail_length.into()]]
    }

    fn length(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

/// How far sending came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing is left.
    Everything,
    /// The socket takes no more for now.
    Blocked,
}

/// What is queued for one connection.
#[derive(Default)]
pub(super) struct Transmitter {
    queue: VecDeque<QueuedPdu>,
    /// Bytes of the first PDU that have gone out.
    sent: usize,
    /// Bytes of all PDUs in the queue.
    queued_bytes: usize,
    /// Bytes of data segments in the queue that no buffer pool counts.
    owned_bytes: usize,
    /// The socket took less than it was offered when it was last tried.
    is_blocked: bool,
    /// The socket has since taken bytes after it had been blocked: the peer has taken what was before them.
    was_drained: bool,
}

impl Transmitter {
    pub(super) fn push(&mut self, bhs: &Bhs, payload: Payload<Segment>, digests: Digests) {
        let pdu = QueuedPdu::new(bhs, payload, digests);
        self.queued_bytes += pdu.length();
        self.owned_bytes += pdu.body.owned_length();
        self.queue.push_back(pdu);
    }

    /// True when so much is queued that it should go out before the turn ends: the buffers that it frees are still
    /// in the processor's cache when the next command takes them.
    pub(super) const fn is_eager(&self) -> bool {
        self.queued_bytes >= EAGER_SEND_BYTES && !self.is_blocked
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) const fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Tells once whether the peer has taken bytes that it had kept waiting.
    pub(super) const fn take_was_drained(&mut self) -> bool {
        std::mem::replace(&mut self.was_drained, false)
    }

    /// Writes until nothing is left or the socket takes no more.
    pub(super) fn send(&mut self, mut socket: &TcpStream) -> io::Result<Progress> {
        let was_blocked = std::mem::replace(&mut self.is_blocked, true);
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (count, offered) = self.gather(&mut slices);
            match socket.write_vectored(&slices[..count]) {
                Ok(written) => {
                    self.advance(written);
                    self.was_drained |= was_blocked && written > 0;
                    if written < offered {
                        return Ok(Progress::Blocked);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.is_blocked = false;
        Ok(Progress::Everything)
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> (usize, usize) {
        let (mut count, mut offered, mut skip) = (0, 0, self.sent);
        for part in self.queue.iter().flat_map(QueuedPdu::parts) {
            let rest = &part[skip.min(part.len())..];
            skip -= part.len() - rest.len();
            if rest.is_empty() {
                continue;
            }
            if count == SLICES_MAX {
                break;
            }
            slices[count] = IoSlice::new(rest);
            count += 1;
            offered += rest.len();
        }
        (count, offered)
    }

    fn advance(&mut self, written: usize) {
        let mut left = self.sent + written;
        while let Some(first) = self.queue.front() {
            let length = first.length();
            if left < length {
                break;
            }
            left -= length;
            self.queued_bytes -= length;
            self.owned_bytes -= first.body.owned_length();
            self.queue.pop_front();
        }
        self.sent = left;
    }
}
