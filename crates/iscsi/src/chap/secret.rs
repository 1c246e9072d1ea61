//! A secret that two sides share.
//!
//! It has no way out but into a hash: it is not shown by `Debug`, there is no `Display`, and its bytes stay in this
//! module's crate. It is not wiped from memory at its end, since it lives as long as the configuration does.

use std::fmt;

use subtle::ConstantTimeEq;

/// The longest secret, in bytes: what Linux and FreeBSD take at least. 9.2.1 asks for 16; Windows takes no more.
pub const SECRET_LENGTH_MAX: usize = 255;

/// The length in bytes below which no secret has 96 random bits: what it is used for on the network lets others guess it, unless
/// IPsec encrypts it (9.2.1).
pub const SECRET_LENGTH_SOUND: usize = 12;

/// See the module's documentation.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// A secret of these bytes. How many there should be is the caller's affair.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// True if it has less than [`SECRET_LENGTH_SOUND`].
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.length() < SECRET_LENGTH_SOUND
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Secret {
    /// In a time that depends on the lengths alone.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_and_not_shown() {
        let secret = Secret::new("0123456789abcdef");
        assert_eq!(secret, Secret::new(b"0123456789abcdef"));
        assert_ne!(secret, Secret::new("0123456789abcdeF"));
        assert_ne!(secret, Secret::new("0123456789abcde"));
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "Secret(hidden) Some(Secret(hidden))");
        assert_eq!(secret.length(), 16);
        assert!(!Secret::new("0123456789ab").is_short() && Secret::new("0123456789a").is_short());
    }
}
