//! Sizes as people write them: a number of bytes, or of K, M, G, T or P, each 1024 of the one before.
//!
//! Not here: sizes as the banner and the log show them, which need not be read back.

use std::fmt;
use std::str::FromStr;

const UNITS: [(u8, u64); 5] =
    [(b'P', 1 << 50), (b'T', 1 << 40), (b'G', 1 << 30), (b'M', 1 << 20), (b'K', 1 << 10)];

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// There is no digit at its beginning.
    #[error("a size is a number with K, M, G, T or P behind it, for example 10G")]
    NoNumber,
    /// A fraction.
    #[error("a size is a whole number; take a smaller unit, for example 1536M for 1.5G")]
    Fraction,
    /// Something else than a unit follows the number.
    #[error(
        "{0:?} is not a unit of size; use K, M, G, T or P (each 1024 times the one before), for example 10G"
    )]
    Unit(String),
    /// More bytes than a disk can have.
    #[error("the size is too large; a disk has less than 8192P")]
    TooLarge,
    /// No bytes.
    #[error("the size is zero; give at least 1M or so")]
    Zero,
}

/// A number of bytes, 1 to 2^63 - 1, that prints as the shortest exact text which parses to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    /// Takes a number of bytes.
    ///
    /// # Errors
    /// [`SizeError::Zero`] and [`SizeError::TooLarge`]; offsets in a file are signed 64-bit numbers.
    pub fn from_bytes(bytes: u64) -> Result<Self, SizeError> {
        match bytes {
            0 => Err(SizeError::Zero),
            bytes if i64::try_from(bytes).is_err() => Err(SizeError::TooLarge),
            bytes => Ok(Self(bytes)),
        }
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::NoNumber);
        }
        if unit.starts_with(['.', ',']) {
            return Err(SizeError::Fraction);
        }
        let factor = factor(unit).ok_or_else(|| SizeError::Unit(unit.to_owned()))?;
        // A number of digits only fails to parse when it is too large.
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        Self::from_bytes(number.checked_mul(factor).ok_or(SizeError::TooLarge)?)
    }
}

/// `KiB` and the like are taken for what they say; `KB` means 1000 to some, so it is not taken.
fn factor(unit: &str) -> Option<u64> {
    if unit.is_empty() {
        return Some(1);
    }
    let (&letter, rest) = unit.as_bytes().split_first()?;
    if !rest.is_empty() && !rest.eq_ignore_ascii_case(b"ib") {
        return None;
    }
    UNITS.iter().find(|(name, _)| *name == letter.to_ascii_uppercase()).map(|&(_, factor)| factor)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor)) {
            Some((name, factor)) => write!(f, "{}{}", self.0 / factor, char::from(*name)),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("1", 1),
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("1T", 1 << 40),
            ("3p", 3 << 50),
            ("007M", 7 << 20),
        ] {
            assert_eq!(text.parse::<Size>().map(Size::bytes), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told_apart() {
        let error = |text: &str| text.parse::<Size>().unwrap_err();
        for text in ["", "G", "-1", " 1", "x", "\u{0663}"] {
            assert_eq!(error(text), SizeError::NoNumber, "{text:?}");
        }
        for text in ["1.5G", "1,5G"] {
            assert_eq!(error(text), SizeError::Fraction);
        }
        for unit in ["GB", "X", "Gi", "GiBs", " G", "\u{e9}"] {
            assert_eq!(error(&format!("1{unit}")), SizeError::Unit(unit.to_owned()));
        }
        for text in ["9223372036854775808", "8192P", "18446744073709551616", "99999999999999999999999P"] {
            assert_eq!(error(text), SizeError::TooLarge, "{text}");
        }
        assert_eq!(error("0"), SizeError::Zero);
        assert_eq!(error("0G"), SizeError::Zero);
    }

    #[test]
    fn the_largest_exact_unit_is_printed() {
        let text = |bytes| Size::from_bytes(bytes).unwrap().to_string();
        assert_eq!(text(512), "512");
        assert_eq!(text(1536), "1536");
        assert_eq!(text(20 << 30), "20G");
        assert_eq!(text((1 << 30) + 1024), "1048577K");
        assert_eq!(text(i64::MAX as u64), "9223372036854775807");
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn what_is_printed_parses_again(bytes in 1..=i64::MAX as u64, shift in 0..63_u32) {
            let size = Size::from_bytes((bytes >> shift << shift).max(1)).unwrap();
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }

        #[test]
        fn any_text_has_an_answer(text in "[0-9]{0,25}\\PC{0,6}") {
            if let Ok(size) = text.parse::<Size>() {
                prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
            }
        }
    }
}
