//! One connection of a session under load: bytes in, bytes out. What they mean is the session's affair.

use std::io;

use anyhow::{Context, Result, bail};
use lunette_wire::Bhs;
use lunette_wire::digest::{DIGEST_LENGTH, crc32c};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::pdu::Inbox;
use crate::link::Link;
use crate::outbox::{Outbox, Source};

/// From this many bytes on, throwing data away in the kernel saves more than the extra system call costs.
const DISCARD_MIN_BYTES: usize = 16 << 10;

/// How far a read looks beyond the data of a PDU where most data is thrown away in the kernel: a few headers.
const LOOK_AHEAD_BYTES: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) inbox: Inbox,
    outbox: Outbox,
    /// Checksums of the beginnings of the pattern, by length.
    data_digests: Vec<(u32, [u8; DIGEST_LENGTH])>,
    /// The last answer of [`Self::blocked_anew`].
    was_blocked: bool,
}

impl Connection {
    pub(super) fn new(link: Link, depth: usize) -> Self {
        Self {
            inbox: Inbox::new(link.digests),
            // A command, its immediate data and as many Data-Out headers as a transfer commonly has.
            outbox: Outbox::new(depth * 8 * (48 + 8), depth * 16),
            data_digests: Vec::new(),
            was_blocked: false,
            link,
        }
    }

    /// True when nothing waits to be sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether the socket takes less than there is to send, if that is news.
    pub(super) fn blocked_anew(&mut self) -> Option<bool> {
        let is_blocked = !self.outbox.is_empty();
        let is_news = is_blocked != self.was_blocked;
        self.was_blocked = is_blocked;
        is_news.then_some(is_blocked)
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn send(&mut self, pattern: &[u8]) -> io::Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        self.outbox.send(&self.link.stream, Source::Memory(pattern))
    }

    /// One read. Where the caller `discards`, the bulk of data segments never leaves the kernel.
    pub(super) fn receive(&mut self, scratch: &mut [u8], discards: bool) -> Result<Received> {
        let skippable = self.inbox.skippable();
        let discard = discards && skippable >= DISCARD_MIN_BYTES;
        let limit = match (discard, discards) {
            (true, _) => skippable,
            (false, true) => skippable + LOOK_AHEAD_BYTES,
            (false, false) => usize::MAX,
        };
        let limit = limit.min(scratch.len());
        // TCP: the bytes are taken off the queue and copied nowhere.
        let flags = if discard { RecvFlags::TRUNC } else { RecvFlags::empty() };
        let read = match rustix::net::recv(&self.link.stream, &mut scratch[..limit], flags) {
            Ok((_, 0)) => bail!("the target closed the connection"),
            Ok((_, read)) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received { bytes: 0, is_last: true }),
            Err(error) => return Err(error).context("receiving"),
        };
        let is_last = read < limit || !discards;
        if discard {
            self.inbox.skip(read);
            return Ok(Received { bytes: 0, is_last });
        }
        Ok(Received { bytes: read, is_last })
    }

    pub(super) fn push_head(&mut self, bhs: &Bhs) {
        self.outbox.push(bhs);
        if self.link.digests.header {
            self.outbox.push(&crc32c(bhs));
        }
    }

    /// Queues a PDU with the beginning of the pattern as its data segment; whole words, so without padding.
    pub(super) fn push(&mut self, bhs: &Bhs, length: u32, pattern: &[u8]) -> Result<()> {
        self.push_head(bhs);
        if length > 0 {
            self.outbox.push_shared(0, length as usize);
            if self.link.digests.data {
                let digest = self.data_digest(length, pattern)?;
                self.outbox.push(&digest);
            }
        }
        Ok(())
    }

    /// There are few lengths, so each checksum is made once.
    fn data_digest(&mut self, length: u32, pattern: &[u8]) -> Result<[u8; DIGEST_LENGTH]> {
        if let Some((_, digest)) = self.data_digests.iter().find(|(known, _)| *known == length) {
            return Ok(*digest);
        }
        let digest = crc32c(pattern.get(..length as usize).context("a data segment beyond the pattern")?);
        self.data_digests.push((length, digest));
        Ok(digest)
    }
}

/// What one read brought.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    /// So many bytes are in the scratch buffer now.
    pub(super) bytes: usize,
    /// There was no more to read, or it can wait for the next turn.
    pub(super) is_last: bool,
}
