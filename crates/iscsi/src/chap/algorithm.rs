//! The hash functions of CHAP by their IANA numbers (registry "PPP Authentication Algorithms": 5 to 8), and a response
//! (RFC 1994, 4.1): the hash over identifier, secret and challenge.

use std::fmt;
use std::str::FromStr;

use sha2::Digest;
use subtle::ConstantTimeEq;

use super::Secret;

/// A hash function that CHAP may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChapAlgorithm {
    /// The one that everybody has (12.1.3).
    Md5 = 5,
    /// SHA-1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3256 = 8,
}

impl ChapAlgorithm {
    /// All of them, strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3256, Self::Sha256, Self::Sha1, Self::Md5];

    /// Its IANA number, as CHAP_A says it.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The algorithm with this IANA number, if it is one of these.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| u64::from(algorithm.number()) == number)
    }

    /// Bytes of a response, and of the challenges that are sent here.
    #[must_use]
    pub const fn digest_length(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3256 => 32,
        }
    }

    /// The response of who knows `secret`.
    #[must_use]
    pub fn respond(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> ChapResponse {
        let parts = [&[identifier], secret.bytes(), challenge];
        ChapResponse(match self {
            Self::Md5 => digest::<md5::Md5>(&parts),
            Self::Sha1 => digest::<sha1::Sha1>(&parts),
            Self::Sha256 => digest::<sha2::Sha256>(&parts),
            Self::Sha3256 => digest::<sha3::Sha3_256>(&parts),
        })
    }
}

fn digest<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
    let hash = parts.iter().fold(D::new(), |hash, part| hash.chain_update(part));
    hash.finalize().to_vec()
}

impl FromStr for ChapAlgorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|algorithm| algorithm.to_string() == name).ok_or_else(|| {
            format!(
                "{name:?} is no algorithm of CHAP; there are \"SHA3-256\", \"SHA-256\", \"SHA-1\" and \"MD5\""
            )
        })
    }
}

impl fmt::Display for ChapAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA-1",
            Self::Sha256 => "SHA-256",
            Self::Sha3256 => "SHA3-256",
        })
    }
}

/// A response as it was computed on this side. Whether a peer's is the same is found out in constant time.
#[derive(Debug, Clone)]
pub struct ChapResponse(Vec<u8>);

impl ChapResponse {
    /// The bytes to send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Compares in a time that depends on the length alone.
    #[must_use]
    pub fn is(&self, received: &[u8]) -> bool {
        self.0.ct_eq(received).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chap::encode_hex;

    /// Computed with Python's hashlib, and the last one with `openssl dgst -sha3-256` as well:
    /// hash(2a | "correct horse 16" | 10 11 ... 1f).
    const VECTORS: [(ChapAlgorithm, u64, &str); 4] = [
        (ChapAlgorithm::Md5, 5, "0xa28a4853572c0e85a35b88897546ac78"),
        (ChapAlgorithm::Sha1, 6, "0xa77761168d42590be5acd59940fb56b67e6ca4e2"),
        (ChapAlgorithm::Sha256, 7, "0x85966e6ee20bcd5ed01071b1c8503db402d1a296d2ae869704e4a2fb25b32077"),
        (ChapAlgorithm::Sha3256, 8, "0x048ff6a1b5a12b2470af5fbac1ee1e230aa0f3b90b69e67a4846f9aeb5bfa492"),
    ];

    #[test]
    fn responses_are_hashes_of_identifier_secret_and_challenge() {
        let secret = Secret::new("correct horse 16");
        let challenge: Vec<u8> = (0x10..0x20).collect();
        for (algorithm, number, expected) in VECTORS {
            assert_eq!(ChapAlgorithm::from_number(number), Some(algorithm));
            let response = algorithm.respond(0x2a, &secret, &challenge);
            assert_eq!(encode_hex(response.bytes()), expected, "{algorithm}");
            assert_eq!(response.bytes().len(), algorithm.digest_length());
            assert!(response.is(response.bytes()));
            let mut changed = response.bytes().to_vec();
            changed[3] ^= 1;
            assert!(!response.is(&changed) && !response.is(&[]) && !response.is(&changed[..4]));
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for algorithm in ChapAlgorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        assert!("MD4".parse::<ChapAlgorithm>().unwrap_err().contains("SHA3-256"));
        assert_eq!(ChapAlgorithm::from_number(9), None);
        assert_eq!(ChapAlgorithm::from_number(5 + 256), None);
    }
}
