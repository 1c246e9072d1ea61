//! CRC32C digests (RFC 7143, 13.1, table of digest algorithms, and the examples of appendix A.4).

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes that one digest takes on the wire.
pub const DIGEST_LENGTH: usize = 4;

/// CRC32C over `bytes`, as the four bytes that go on the wire.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LENGTH] {
    let digest = if has_wide_products() {
        // 32 bits by construction of the algorithm.
        crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
    } else {
        ::crc32c::crc32c(bytes)
    };
    digest.to_le_bytes()
}

/// CRC32C over the concatenation of `parts`; for a data segment with its padding, or a header in two places.
#[must_use]
pub fn crc32c_of(parts: &[&[u8]]) -> [u8; DIGEST_LENGTH] {
    let mut filled = parts.iter().filter(|part| !part.is_empty());
    match (filled.next(), filled.next()) {
        // Most segments have no padding, and a digest of several parts can cost some hundred instructions more.
        (Some(whole), None) => crc32c(whole),
        _ => {
            let mut digest = Crc32c::default();
            parts.iter().for_each(|part| digest.update(part));
            digest.bytes()
        }
    }
}

/// CRC32C over bytes that come one part after the other.
#[derive(Debug, Clone)]
pub struct Crc32c(Way);

#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "an allocation for each segment would cost more than 300 bytes on the stack"
)]
enum Way {
    WideProducts(Digest),
    /// What `crc32c_append` has to go on from.
    Instruction(u32),
}

impl Default for Crc32c {
    fn default() -> Self {
        Self(match has_wide_products() {
            true => Way::WideProducts(Digest::new(CrcAlgorithm::Crc32Iscsi)),
            false => Way::Instruction(0),
        })
    }
}

impl Crc32c {
    /// Adds `bytes` behind those that were added before.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Way::WideProducts(digest) => digest.update(bytes),
            Way::Instruction(so_far) => *so_far = ::crc32c::crc32c_append(*so_far, bytes),
        }
    }

    /// The digest of all that was added, as the four bytes that go on the wire.
    #[must_use]
    pub fn bytes(&self) -> [u8; DIGEST_LENGTH] {
        let digest = match &self.0 {
            // 32 bits by construction of the algorithm, so the cast loses nothing.
            Way::WideProducts(digest) => digest.finalize() as u32,
            Way::Instruction(so_far) => *so_far,
        };
        digest.to_le_bytes()
    }
}

/// Whether this processor has the carry-less products of 64 bytes at a time that make `crc-fast` the faster library; with those of 16
/// bytes, `crc32c`, which has three CRC32 instructions under way at a time, needs 0.65 to 0.9 of its time.
fn has_wide_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("vpclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7143, appendix A.4 (as bytes on the wire).
    #[test]
    fn examples_of_the_rfc() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(crc32c(&up), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(crc32c(&down), [0x5c, 0xdb, 0x3f, 0x11]);
    }

    #[test]
    fn the_scsi_read_pdu_of_the_rfc() {
        let mut bhs = [0u8; 48];
        bhs[..2].copy_from_slice(&[0x01, 0xc0]);
        bhs[16..20].copy_from_slice(&[0x14, 0, 0, 0]);
        bhs[20..24].copy_from_slice(&[0, 0, 4, 0]);
        bhs[24..28].copy_from_slice(&[0, 0, 0, 0x14]);
        bhs[28..32].copy_from_slice(&[0, 0, 0, 0x18]);
        bhs[32..42].copy_from_slice(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0]);
        assert_eq!(crc32c(&bhs), [0x56, 0x3a, 0x96, 0xd9]);
    }

    /// Only one of the two libraries is in use on a machine, so both are asked here.
    #[test]
    fn both_ways_are_the_same() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for length in (0..600).chain([4095, 4096, 4100, 8192, 19_999]) {
            for cut in [0, length / 3, length] {
                let ways = [Way::WideProducts(Digest::new(CrcAlgorithm::Crc32Iscsi)), Way::Instruction(0)];
                let [wide, instruction] = ways.map(|way| {
                    let mut digest = Crc32c(way);
                    digest.update(&bytes[..cut]);
                    digest.update(&bytes[cut..length]);
                    digest.bytes()
                });
                assert_eq!(wide, instruction, "{length} bytes, of which {cut} first");
                assert_eq!(crc32c(&bytes[..length]), wide, "{length} bytes at once");
            }
        }
    }

    #[test]
    fn parts_are_their_concatenation() {
        assert_eq!(crc32c_of(&[b"abc", b"", b"defg"]), crc32c(b"abcdefg"));
        assert_eq!(crc32c_of(&[b"", b"abc", b""]), crc32c(b"abc"));
        assert_eq!([crc32c_of(&[]), crc32c_of(&[b""])], [crc32c(b""); 2]);
        assert_eq!(Crc32c::default().bytes(), crc32c(b""));
    }
}
