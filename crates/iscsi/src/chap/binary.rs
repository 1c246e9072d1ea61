//! Binary values of text keys (RFC 7143, 6.1): hexadecimal behind `0x`, base64 behind `0b`. Decimal is for values whose
//! length is known, which challenges and responses are not.

use std::fmt::Write;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// RFC 4648, 4; padding is taken and not missed.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a binary value cannot be read. What it was is not said: it may be a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    /// Neither form.
    #[error("is neither hexadecimal behind 0x nor base64 behind 0b")]
    Form,
    /// No bytes at all.
    #[error("is empty")]
    Empty,
    /// More bytes than allowed.
    #[error("is longer than {0} bytes")]
    TooLong(usize),
}

/// Reads a binary value of 1 to `max` bytes. An odd number of hexadecimal digits begins with half a byte (6.1).
///
/// # Errors
/// [`BinaryError`]; nothing is allocated for a value that is too long.
pub fn decode_binary(value: &str, max: usize) -> Result<Vec<u8>, BinaryError> {
    let (prefix, digits) = value.split_at_checked(2).ok_or(BinaryError::Form)?;
    let (bytes, encoded_max) = match prefix {
        "0x" | "0X" => (hexadecimal as fn(&[u8]) -> Option<Vec<u8>>, 2 * max),
        "0b" | "0B" => (decode_base64 as fn(&[u8]) -> Option<Vec<u8>>, max.div_ceil(3) * 4),
        _ => return Err(BinaryError::Form),
    };
    if digits.is_empty() {
        return Err(BinaryError::Empty);
    }
    if digits.len() > encoded_max {
        return Err(BinaryError::TooLong(max));
    }
    match bytes(digits.as_bytes()).ok_or(BinaryError::Form)? {
        bytes if bytes.is_empty() => Err(BinaryError::Empty),
        bytes if bytes.len() > max => Err(BinaryError::TooLong(max)),
        bytes => Ok(bytes),
    }
}

fn decode_base64(digits: &[u8]) -> Option<Vec<u8>> {
    BASE64.decode(digits).ok()
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let (head, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes: Vec<u8> = head.iter().map(|&digit| value(digit)).collect::<Option<_>>()?;
    for pair in pairs.chunks_exact(2) {
        bytes.push(value(pair[0])? << 4 | value(pair[1])?);
    }
    Some(bytes)
}

/// Writes a binary value the way that every peer reads: hexadecimal, behind `0x`.
#[must_use]
pub fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_read() {
        assert_eq!(decode_binary("0x00fF10", 3), Ok(vec![0, 0xff, 0x10]));
        assert_eq!(decode_binary("0Xabc", 8), Ok(vec![0xa, 0xbc]));
        // RFC 4648, 10.
        assert_eq!(decode_binary("0bZm9vYg==", 4), Ok(b"foob".to_vec()));
        assert_eq!(decode_binary("0BZm9vYg", 4), Ok(b"foob".to_vec()));
        assert_eq!(decode_binary("0bZm9vYmFy", 6), Ok(b"foobar".to_vec()));
    }

    #[test]
    fn anything_else_is_an_error() {
        for value in
            ["", "0", "1234", "0y12", "x0", "0x0g", "0x+1", "0bZ", "0bZm9v*mFy", "0bZm9=vYmFy", "0\u{e9}"]
        {
            assert_eq!(decode_binary(value, 64), Err(BinaryError::Form), "{value}");
        }
        for value in ["0x", "0b"] {
            assert_eq!(decode_binary(value, 64), Err(BinaryError::Empty), "{value}");
        }
        for value in ["0x001122", "0x01122", "0bAAAA", "0bAAAAA", "0bAAAAAAAA"] {
            assert_eq!(decode_binary(value, 2), Err(BinaryError::TooLong(2)), "{value}");
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn what_is_written_is_read(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            prop_assert_eq!(decode_binary(&encode_hex(&bytes), 200), Ok(bytes.clone()));
            let base64 = format!("0b{}", BASE64.encode(&bytes));
            prop_assert_eq!(decode_binary(&base64, bytes.len()), Ok(bytes));
        }

        #[test]
        fn reading_is_total_and_bounded(value in "(0[xXbB])?[0-9a-zA-Z+/=\\PC]{0,40}", max in 1usize..16) {
            if let Ok(bytes) = decode_binary(&value, max) {
                prop_assert!((1..=max).contains(&bytes.len()));
            }
        }
    }
}
