//! What waits to be sent on one connection: small bytes in one buffer, and pieces of something shared that is never
//! copied, memory or a file. Memory goes out with one vectored write, a file with `sendfile`.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::SendFlags;

/// Slices of one write; more than a socket takes at once where there is data, and all of a deep queue where not.
const SLICES_MAX: usize = 256;

/// A piece of the stream.
#[derive(Debug, Clone, Copy)]
enum Piece {
    /// A range of `bytes`.
    Own { start: usize, end: usize },
    /// A range of what is shared.
    Shared { start: usize, end: usize },
}

/// What the shared ranges of an outbox refer to; the same for every [`Outbox::send`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Bytes of this process.
    Memory(&'a [u8]),
    /// A file's contents, which never enter this process.
    File(&'a File),
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Keeps its length, so that it is not filled with zeroes time and again.
    bytes: Vec<u8>,
    used: usize,
    pieces: Vec<Piece>,
    /// The first piece that is not sent, and how much of it is.
    next: usize,
    sent: usize,
    queued_bytes: usize,
}

impl Outbox {
    /// With room for this much; it grows where that is not enough.
    pub(crate) fn new(bytes: usize, pieces: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            used: 0,
            pieces: Vec::with_capacity(pieces),
            next: 0,
            sent: 0,
            queued_bytes: 0,
        }
    }

    /// True when everything was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued_bytes == 0
    }

    /// How much is waiting.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Appends bytes of its own.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `length` bytes for the caller to fill at once; something is in them already.
    pub(crate) fn space(&mut self, length: usize) -> &mut [u8] {
        let (start, end) = (self.used, self.used + length);
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.used = end;
        self.queued_bytes += length;
        match self.pieces.last_mut() {
            Some(Piece::Own { end: last, .. }) => *last = end,
            _ => self.pieces.push(Piece::Own { start, end }),
        }
        &mut self.bytes[start..end]
    }

    /// Appends a range of the [`Source`].
    pub(crate) fn push_shared(&mut self, start: usize, length: usize) {
        self.queued_bytes += length;
        self.pieces.push(Piece::Shared { start, end: start + length });
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The connection broke, or a range lies outside of the source.
    pub(crate) fn send(&mut self, socket: &impl AsFd, source: Source<'_>) -> io::Result<()> {
        while self.queued_bytes > 0 {
            let sent = match source {
                Source::Memory(shared) => self.send_slices(socket, shared),
                Source::File(file) => self.send_piece(socket, file),
            };
            match sent {
                Ok(sent) => self.advance(sent),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn send_slices(&self, socket: &impl AsFd, shared: &[u8]) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces[self.next..]) {
            let bytes = match *piece {
                Piece::Own { start, end } => self.bytes.get(start..end),
                Piece::Shared { start, end } => shared.get(start..end),
            };
            let bytes = bytes.ok_or(Errno::FAULT)?;
            *slot = IoSlice::new(if count == 0 { &bytes[self.sent..] } else { bytes });
            count += 1;
        }
        rustix::io::writev(socket, &slices[..count])
    }

    fn send_piece(&self, socket: &impl AsFd, file: &File) -> Result<usize, Errno> {
        match self.pieces.get(self.next).copied().ok_or(Errno::FAULT)? {
            Piece::Own { start, end } => {
                let more = self.next + 1 < self.pieces.len();
                let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
                let bytes = self.bytes.get(start + self.sent..end).ok_or(Errno::FAULT)?;
                rustix::net::send(socket, bytes, flags)
            }
            Piece::Shared { start, end } => {
                let mut offset = (start + self.sent) as u64;
                match sendfile(socket, file, Some(&mut offset), end - start - self.sent)? {
                    // The file ends before the range does.
                    0 => Err(Errno::FAULT),
                    sent => Ok(sent),
                }
            }
        }
    }

    fn advance(&mut self, sent: usize) {
        self.queued_bytes -= sent;
        if self.queued_bytes == 0 {
            self.pieces.clear();
            (self.used, self.next, self.sent) = (0, 0, 0);
            return;
        }
        let mut sent = self.sent + sent;
        while let Some(Piece::Own { start, end } | Piece::Shared { start, end }) = self.pieces.get(self.next)
            && sent >= end - start
        {
            sent -= end - start;
            self.next += 1;
        }
        self.sent = sent;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn pieces_come_out_in_order_however_little_the_socket_takes() {
        let shared: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&shared).unwrap();
        for source in [Source::Memory(&shared), Source::File(&file)] {
            let (socket, mut peer) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut outbox = Outbox::new(0, 0);
            let mut expected = Vec::new();
            for round in 0..600_usize {
                outbox.push(&[round as u8; 48]);
                outbox.space(3).copy_from_slice(b"abc");
                outbox.push_shared(round, 1000 + round);
                expected.extend_from_slice(&[round as u8; 48]);
                expected.extend_from_slice(b"abc");
                expected.extend_from_slice(&shared[round..2 * round + 1000]);
            }
            assert_eq!(outbox.queued_bytes(), expected.len());
            let mut received = Vec::new();
            let mut buffer = [0; 7777];
            while !outbox.is_empty() {
                outbox.send(&socket, source).unwrap();
                let count = peer.read(&mut buffer).unwrap();
                received.extend_from_slice(&buffer[..count]);
            }
            drop(socket);
            peer.read_to_end(&mut received).unwrap();
            assert!(received == expected);
        }
    }

    #[test]
    fn a_range_outside_of_what_is_shared_is_an_error() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        for source in [Source::Memory(&[0]), Source::File(&file)] {
            let mut outbox = Outbox::new(0, 0);
            outbox.push_shared(1, 1);
            assert!(outbox.send(&socket, source).is_err());
        }
    }
}
