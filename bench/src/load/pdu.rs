//! From a stream of bytes to PDUs whose data segments are looked at only as far as the digests ask for it: a load
//! generator has no use for what it reads (RFC 7143, 11.1, 13.1).

use anyhow::{Result, bail, ensure};
use lunette_wire::digest::{Crc32c, DIGEST_LENGTH, crc32c};
use lunette_wire::frame::{Digests, Frame};
use lunette_wire::{BHS_LENGTH, Bhs, Opcode};

use crate::link::SEGMENT_MAX_BYTES;

/// How much is kept of a data segment that is no Data-In: sense data, for the message.
const KEPT_MAX: usize = 64;

/// A PDU that has come whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) bhs: Bhs,
    pub(super) data_length: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Inbox {
    digests: Digests,
    head: [u8; BHS_LENGTH + DIGEST_LENGTH],
    head_filled: usize,
    /// Of the PDU whose header is there; `None` while a header is awaited.
    segment: Option<Segment>,
    kept: Vec<u8>,
}

/// What is still to come of a PDU.
#[derive(Debug)]
struct Segment {
    data_length: u32,
    /// Data and padding.
    left: usize,
    is_kept: bool,
    checksum: Option<Crc32c>,
    tail: [u8; DIGEST_LENGTH],
    tail_left: usize,
}

impl Inbox {
    pub(super) fn new(digests: Digests) -> Self {
        Self {
            digests,
            head: [0; BHS_LENGTH + DIGEST_LENGTH],
            head_filled: 0,
            segment: None,
            kept: Vec::with_capacity(KEPT_MAX),
        }
    }

    /// Bytes that may be thrown away unseen before anything else comes.
    pub(super) fn skippable(&self) -> usize {
        match &self.segment {
            Some(segment) if !self.digests.data && !segment.is_kept => segment.left,
            _ => 0,
        }
    }

    /// So many of the [`Self::skippable`] bytes were thrown away.
    pub(super) fn skip(&mut self, count: usize) {
        if let Some(segment) = &mut self.segment {
            segment.left = segment.left.saturating_sub(count);
        }
    }

    /// The first bytes of the data segment of the last PDU, if it was no Data-In.
    pub(super) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// True between two PDUs.
    pub(super) fn is_at_rest(&self) -> bool {
        self.head_filled == 0 && self.segment.is_none()
    }

    /// Takes the next PDU off the front of `bytes`, or all of them when it is not whole yet.
    ///
    /// # Errors
    /// A digest is wrong, or a data segment longer than was declared.
    pub(super) fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Arrived>> {
        let mut segment = match self.segment.take() {
            Some(segment) => segment,
            None => match self.head(bytes)? {
                Some(segment) => segment,
                None => return Ok(None),
            },
        };
        if segment.left > 0 {
            self.data(&mut segment, bytes);
        }
        if segment.left == 0 && segment.tail_left > 0 {
            let tail = split(bytes, segment.tail_left);
            let at = DIGEST_LENGTH - segment.tail_left;
            segment.tail[at..at + tail.len()].copy_from_slice(tail);
            segment.tail_left -= tail.len();
        }
        if segment.left > 0 || segment.tail_left > 0 {
            self.segment = Some(segment);
            return Ok(None);
        }
        if let Some(checksum) = segment.checksum {
            ensure!(checksum.bytes() == segment.tail, "wrong data digest");
        }
        self.head_filled = 0;
        let Some(bhs) = self.head.first_chunk::<BHS_LENGTH>() else { bail!("no header") };
        Ok(Some(Arrived { bhs: *bhs, data_length: segment.data_length }))
    }

    fn head(&mut self, bytes: &mut &[u8]) -> Result<Option<Segment>> {
        let length = BHS_LENGTH + if self.digests.header { DIGEST_LENGTH } else { 0 };
        let part = split(bytes, length - self.head_filled);
        self.head[self.head_filled..self.head_filled + part.len()].copy_from_slice(part);
        self.head_filled += part.len();
        if self.head_filled < length {
            return Ok(None);
        }
        let (Some(bhs), Some(digest)) = (self.head.first_chunk::<BHS_LENGTH>(), self.head.last_chunk())
        else {
            bail!("no header")
        };
        ensure!(!self.digests.header || crc32c(bhs) == *digest, "wrong header digest");
        let frame = Frame::of(bhs, self.digests, SEGMENT_MAX_BYTES, 0)?;
        self.kept.clear();
        Ok(Some(Segment {
            // At most 24 bits.
            data_length: frame.data_length as u32,
            left: frame.data_length + frame.padding(),
            is_kept: Opcode::from_byte(bhs[0]) != Some(Opcode::ScsiDataIn),
            checksum: (frame.data_digest_length > 0).then(Crc32c::default),
            tail: [0; DIGEST_LENGTH],
            tail_left: frame.data_digest_length,
        }))
    }

    fn data(&mut self, segment: &mut Segment, bytes: &mut &[u8]) {
        let part = split(bytes, segment.left);
        segment.left -= part.len();
        if let Some(checksum) = &mut segment.checksum {
            checksum.update(part);
        }
        if segment.is_kept {
            let room = KEPT_MAX - self.kept.len();
            self.kept.extend_from_slice(&part[..room.min(part.len())]);
        }
    }
}

/// Takes at most `count` bytes off the front.
fn split<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (front, rest) = bytes.split_at(count.min(bytes.len()));
    *bytes = rest;
    front
}

#[cfg(test)]
mod tests {
    use lunette_wire::digest::crc32c_of;
    use lunette_wire::frame::padding;
    use lunette_wire::target::{ScsiDataIn, ScsiResponse};

    use super::*;

    fn stream(digests: Digests) -> (Vec<u8>, Vec<usize>) {
        let data: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let (mut bytes, lengths) = (Vec::new(), vec![0, 5, 4096, 18, 5000]);
        for &length in &lengths {
            let header = if length == 18 {
                ScsiResponse::default().encode(length)
            } else {
                ScsiDataIn::default().encode(length)
            };
            bytes.extend(header);
            if digests.header {
                bytes.extend(crc32c(&header));
            }
            let mut segment = data[..length].to_vec();
            segment.resize(length + padding(length), 0);
            bytes.extend(&segment);
            if digests.data && length > 0 {
                bytes.extend(crc32c_of(&[&segment]));
            }
        }
        (bytes, lengths)
    }

    const ALL_DIGESTS: [Digests; 4] = [
        Digests { header: false, data: false },
        Digests { header: true, data: false },
        Digests { header: false, data: true },
        Digests { header: true, data: true },
    ];

    #[test]
    fn pdus_come_out_however_they_are_cut() {
        for digests in ALL_DIGESTS {
            let (bytes, lengths) = stream(digests);
            for step in [1, 3, 47, 48, 49, 1000, bytes.len()] {
                let mut inbox = Inbox::new(digests);
                let mut found = Vec::new();
                for mut part in bytes.chunks(step) {
                    while let Some(arrived) = inbox.take(&mut part).unwrap() {
                        if arrived.data_length == 18 {
                            assert_eq!(inbox.kept()[..18], *(0..18).collect::<Vec<u8>>());
                        }
                        found.push(arrived.data_length as usize);
                    }
                    assert!(part.is_empty());
                }
                assert_eq!(found, lengths);
                assert!(inbox.is_at_rest());
            }
        }
    }

    #[test]
    fn data_may_be_thrown_away_unless_a_digest_wants_it() {
        let (bytes, _) = stream(Digests::default());
        // The header of the third PDU and one byte of its data.
        let start = 48 + 48 + 8;
        let mut inbox = Inbox::new(Digests::default());
        assert!(inbox.take(&mut &bytes[start..start + 49]).unwrap().is_none());
        assert_eq!(inbox.skippable(), 4095);
        inbox.skip(4000);
        assert!(inbox.take(&mut &[][..]).unwrap().is_none());
        inbox.skip(95);
        assert_eq!(inbox.take(&mut &[][..]).unwrap().unwrap().data_length, 4096);
        assert_eq!(inbox.skippable(), 0);
        let digests = Digests { header: false, data: true };
        let mut inbox = Inbox::new(digests);
        assert!(inbox.take(&mut &stream(digests).0[48..97]).unwrap().is_none());
        assert_eq!(inbox.skippable(), 0);
    }

    #[test]
    fn a_flipped_bit_is_an_error_where_a_digest_covers_it() {
        let both = Digests { header: true, data: true };
        let (bytes, _) = stream(both);
        for at in [0, 40, 50, 108, 110, 200] {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let (mut inbox, mut rest) = (Inbox::new(both), &bad[..]);
            let fault = loop {
                match inbox.take(&mut rest) {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            assert!(fault.is_some(), "byte {at}");
        }
    }

    #[test]
    fn a_length_beyond_what_was_declared_is_refused() {
        let header = ScsiDataIn::default().encode(SEGMENT_MAX_BYTES as usize + 1);
        assert!(Inbox::new(Digests::default()).take(&mut &header[..]).is_err());
    }
}
