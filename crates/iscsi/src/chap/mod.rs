//! CHAP as iSCSI uses it (RFC 7143, 9.2.1 and 12.1.3; RFC 1994): algorithms, secrets, values on the wire, and who is
//! allowed to log in. For both roles.
//!
//! The order of keys in a login is the login's affair, random numbers and where secrets come from are the driver's.

mod algorithm;
mod binary;
mod policy;
mod secret;

pub use algorithm::{ChapAlgorithm, ChapResponse};
pub use binary::{BinaryError, decode_binary, encode_hex};
pub use policy::{ChapCredential, ChapPolicy, ChapRefusal, ChapUser};
pub use secret::{SECRET_LENGTH_MAX, SECRET_LENGTH_SOUND, Secret};

/// The longest challenge and response, in bytes of the binary form (12.1.3).
pub const CHAP_VALUE_LENGTH_MAX: usize = 1024;

/// The longest CHAP name, in bytes: as 6.1 bounds simple values.
pub const CHAP_NAME_LENGTH_MAX: usize = 255;

/// What one login needs of a random generator, which must be the system's: whoever can guess a challenge can prepare
/// its response with the help of the right initiator (RFC 1994, 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChapNonce {
    /// Tells exchanges apart (RFC 1994, 4.1).
    pub identifier: u8,
    /// The challenge is its beginning, as long as the algorithm's digest.
    pub challenge: [u8; 32],
}

impl From<[u8; 33]> for ChapNonce {
    fn from(random: [u8; 33]) -> Self {
        let [identifier, challenge @ ..] = random;
        Self { identifier, challenge }
    }
}
