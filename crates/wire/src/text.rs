//! Text keys and their carriage (RFC 7143, 6.1 and 6.2): `key=value` pairs, each ended by a zero byte.
//!
//! This module splits and joins; what a key means is the negotiation's affair. A text may be spread over several
//! PDUs (the C bit); [`TextBuffer`] collects them up to a bound.

/// The longest key name (6.1), in bytes.
pub const KEY_LENGTH_MAX: usize = 63;
/// The longest value that is accepted here (6.1: 255, but 8192 for text that is spread over PDUs), in bytes.
pub const VALUE_LENGTH_MAX: usize = 8192;
/// The most pairs in one text that are looked at; the RFC defines fewer than 40 keys.
pub const PAIRS_MAX: usize = 128;

/// Why a text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A pair has no equals sign, or is not ended by a zero byte.
    #[error("a text pair is not of the form key=value followed by a zero byte")]
    Malformed,
    /// A key has no name, more than 63 bytes, or a byte that 6.1 does not allow.
    #[error("a key name is empty, too long, or has a character outside A-Z a-z 0-9 . - + @ _ #")]
    Key,
    /// A value is too long or has a byte that is not printable UTF-8.
    #[error("the value of {0} is too long or not printable text")]
    Value(String),
    /// More pairs or more bytes than a peer needs.
    #[error("the text is longer than the bound of {0}")]
    TooLong(usize),
}

/// Splits a complete text into its pairs, in order.
///
/// # Errors
/// [`TextError`] names the first fault; nothing of a faulty text is returned.
pub fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    pairs_up_to(text, PAIRS_MAX)
}

/// As [`pairs`], with room for `max` pairs: for the answer to SendTargets.
///
/// # Errors
/// As [`pairs`].
pub fn pairs_up_to(text: &[u8], max: usize) -> Result<Vec<(&str, &str)>, TextError> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.iter().position(|&byte| byte == 0).ok_or(TextError::Malformed)?;
        let (pair, behind) = (&rest[..end], &rest[end + 1..]);
        rest = behind;
        // Some initiators pad a text with further zero bytes; an empty pair says nothing.
        if pair.is_empty() {
            continue;
        }
        if found.len() == max {
            return Err(TextError::TooLong(max));
        }
        found.push(pair_of(pair)?);
    }
    Ok(found)
}

fn pair_of(pair: &[u8]) -> Result<(&str, &str), TextError> {
    let equals = pair.iter().position(|&byte| byte == b'=').ok_or(TextError::Malformed)?;
    let key = std::str::from_utf8(&pair[..equals]).map_err(|_| TextError::Key)?;
    let key_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-+@_#".contains(&byte);
    if key.is_empty() || key.len() > KEY_LENGTH_MAX || !key.bytes().all(key_byte) {
        return Err(TextError::Key);
    }
    let fault = || TextError::Value(key.to_owned());
    let value = std::str::from_utf8(&pair[equals + 1..]).map_err(|_| fault())?;
    if value.len() > VALUE_LENGTH_MAX || value.chars().any(char::is_control) {
        return Err(fault());
    }
    Ok((key, value))
}

/// Appends one pair to a text that is to be sent.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    debug_assert!(!key.contains(['=', '\0']) && !value.contains('\0'));
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// Collects a text that comes in several PDUs, up to a bound.
#[derive(Debug, Clone, Default)]
pub struct TextBuffer {
    bytes: Vec<u8>,
}

impl TextBuffer {
    /// Adds the data segment of one PDU.
    ///
    /// # Errors
    /// [`TextError::TooLong`] when the whole would exceed `max` bytes; the buffer is then empty again.
    pub fn extend(&mut self, segment: &[u8], max: usize) -> Result<(), TextError> {
        if self.bytes.len() + segment.len() > max {
            self.bytes = Vec::new();
            return Err(TextError::TooLong(max));
        }
        self.bytes.extend_from_slice(segment);
        Ok(())
    }

    /// Takes what was collected; the buffer is empty afterwards.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// True when nothing is waiting for its continuation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn pairs_keep_their_order_and_may_hold_equals_signs() {
        let text = b"InitiatorName=iqn.2026-11.io.lunette:a\0X-a=b=c\0SendTargets=\0";
        assert_eq!(
            pairs(text).unwrap(),
            [("InitiatorName", "iqn.2026-11.io.lunette:a"), ("X-a", "b=c"), ("SendTargets", "")]
        );
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(pairs(b"a=b"), Err(TextError::Malformed));
        assert_eq!(pairs(b"ab\0"), Err(TextError::Malformed));
        assert_eq!(pairs(b"=b\0"), Err(TextError::Key));
        assert_eq!(pairs(b"a b=c\0"), Err(TextError::Key));
        assert_eq!(pairs(b"a=\xff\0"), Err(TextError::Value("a".into())));
        assert_eq!(pairs(b"a=x\ny\0"), Err(TextError::Value("a".into())));
        let long_key = [b"k".repeat(64), b"=v\0".to_vec()].concat();
        assert_eq!(pairs(&long_key), Err(TextError::Key));
        assert_eq!(pairs(&b"a=b\0".repeat(PAIRS_MAX + 1)), Err(TextError::TooLong(PAIRS_MAX)));
    }

    #[test]
    fn padding_zeroes_say_nothing() {
        assert_eq!(pairs(b"a=b\0\0\0").unwrap(), [("a", "b")]);
    }

    #[test]
    fn a_collected_text_is_bounded_and_dropped_beyond() {
        let mut buffer = TextBuffer::default();
        buffer.extend(b"abc", 5).unwrap();
        assert_eq!(buffer.extend(b"def", 5), Err(TextError::TooLong(5)));
        assert!(buffer.is_empty());
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn splitting_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(found) = pairs(&bytes) {
                let mut again = Vec::new();
                found.iter().for_each(|(key, value)| push(&mut again, key, value));
                prop_assert_eq!(pairs(&again).unwrap(), found);
            }
        }
    }
}
