//! Rates and times as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a text is not the quantity that it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It is no rate.
    #[error(
        "a rate is a number of bits per second, from 1K to 1000G, with K, M or G (each 1000 of the one before): 155M, 1.5G"
    )]
    Rate,
    /// It is no time.
    #[error("a time is a number with us, ms or s, at most 60s: 50ms, 0.3ms")]
    Time,
    /// It is no probability.
    #[error("a probability is a percentage from 0% to 100%: 0.01%")]
    Probability,
    /// It is no number of bytes.
    #[error(
        "a number of bytes has K or M behind it or nothing (each 1024 of the one before), at most 1024M: 64K"
    )]
    Bytes,
}

/// Bits per second that a link's transmitter sends: 1,000 to 10^12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// From a number of bits per second.
    ///
    /// # Errors
    /// [`QuantityError::Rate`] below 1,000 and above 10^12.
    pub const fn from_bits_per_s(bits_per_s: u64) -> Result<Self, QuantityError> {
        if bits_per_s >= 1000 && bits_per_s <= 1_000_000_000_000 {
            Ok(Self(bits_per_s))
        } else {
            Err(QuantityError::Rate)
        }
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }

    /// How long the transmitter has to do with so many bytes, to the next nanosecond, so that the rate is never exceeded.
    #[must_use]
    pub fn time_for(self, bytes: usize) -> Duration {
        self.time_behind(Rest::default(), bytes).0
    }

    /// The same for bytes that follow others at once, whose time was rounded up by so much, and what it is rounded up by now. Without
    /// it short packets on fast lines would take a tenth too long.
    pub(crate) fn time_behind(self, before: Rest, bytes: usize) -> (Duration, Rest) {
        let rate = u128::from(self.0);
        let exact = (bytes as u128 * 8 * 1_000_000_000).saturating_sub(before.0);
        let nanoseconds = exact.div_ceil(rate);
        let rest = Rest(nanoseconds * rate - exact);
        (Duration::from_nanos(nanoseconds.try_into().unwrap_or(u64::MAX)), rest)
    }

    /// How long another transmitter has to do with what this one does in so much time, to the next nanosecond.
    pub(crate) fn time_at(self, time: Duration, other: Self) -> Duration {
        let nanoseconds = time.as_nanos().saturating_mul(u128::from(self.0)).div_ceil(u128::from(other.0));
        Duration::from_nanos(nanoseconds.try_into().unwrap_or(u64::MAX))
    }

    /// Bytes that pass in so much time.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> u64 {
        (u128::from(self.0) * time.as_nanos() / 8 / 1_000_000_000).try_into().unwrap_or(u64::MAX)
    }
}

/// Less than a nanosecond, in parts of one second's billionth divided by the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rest(u128);

/// A decimal number with one of these units behind it, in whole steps of the smallest unit.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 12 || number.ends_with('.') {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(*factor)?;
    let part = match fraction {
        "" => 0,
        digits => {
            u128::from(digits.parse::<u64>().ok()?) * u128::from(*factor) / 10u128.pow(digits.len() as u32)
        }
    };
    whole.checked_add(part.try_into().ok()?)
}

/// The shortest exact text that [`scaled`] reads; the units are from the largest to the smallest.
fn print(value: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value >= *factor || *factor == 1;
    let (unit, factor) = units.iter().find(fits).copied().unwrap_or(("", 1));
    let (whole, rest) = (value / factor, value % factor);
    if rest == 0 {
        return write!(f, "{whole}{unit}");
    }
    let digits = factor.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    write!(f, "{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

const RATE_UNITS: &[(&str, u64)] = &[("G", 1_000_000_000), ("M", 1_000_000), ("K", 1000), ("", 1)];

impl FromStr for Rate {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::from_bits_per_s(scaled(text, RATE_UNITS).ok_or(QuantityError::Rate)?)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, RATE_UNITS, f)
    }
}

const TIME_UNITS: &[(&str, u64)] = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

/// No link takes longer: a minute.
const TIME_MAX: Duration = Duration::from_secs(60);

pub(crate) fn parse_time(text: &str) -> Result<Duration, QuantityError> {
    let time = scaled(text, TIME_UNITS).map(Duration::from_nanos).ok_or(QuantityError::Time)?;
    if time <= TIME_MAX { Ok(time) } else { Err(QuantityError::Time) }
}

/// A time that prints as [`parse_time`] reads it.
pub(crate) struct Time(pub(crate) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0ms");
        }
        print(self.0.as_nanos().try_into().unwrap_or(u64::MAX), TIME_UNITS, f)
    }
}

const BYTE_UNITS: &[(&str, u64)] = &[("M", 1 << 20), ("K", 1 << 10), ("", 1)];

/// The longest queue: 1 GiB.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

pub(crate) fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    // A fraction of K would be no whole number of bytes, or look like one that is not meant.
    let bytes =
        (!text.contains('.')).then(|| scaled(text, BYTE_UNITS)).flatten().ok_or(QuantityError::Bytes)?;
    if (1..=BYTES_MAX).contains(&bytes) { Ok(bytes) } else { Err(QuantityError::Bytes) }
}

/// A number of bytes that prints as [`parse_bytes`] reads it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, factor): &&(&str, u64)| self.0.is_multiple_of(*factor);
        let (unit, factor) = BYTE_UNITS.iter().find(whole).copied().unwrap_or(("", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_printed() {
        for (text, bits_per_s) in
            [("155M", 155_000_000), ("1.5G", 1_500_000_000), ("1K", 1000), ("1.001K", 1001)]
        {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.bits_per_s(), rate.to_string().as_str()), (bits_per_s, text));
        }
        for wrong in
            ["", "M", "1T", "999", "1.M", ".5M", "1.2.3M", "2000G", "-1M", "99999999999999999999G", "1 M"]
        {
            assert_eq!(wrong.parse::<Rate>(), Err(QuantityError::Rate), "{wrong}");
        }
    }

    #[test]
    fn a_rate_is_never_exceeded() {
        let rate: Rate = "155M".parse().unwrap();
        assert_eq!(rate.time_for(1500), Duration::from_nanos(77_420));
        assert_eq!(rate.bytes_in(Duration::from_secs(1)), 155_000_000 / 8);
        assert_eq!("1K".parse::<Rate>().unwrap().time_for(usize::MAX), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn times_and_bytes_are_read_as_they_are_printed() {
        for (text, nanoseconds) in
            [("50ms", 50_000_000), ("1.5s", 1_500_000_000), ("300us", 300_000), ("25ns", 25)]
        {
            let time = parse_time(text).unwrap();
            assert_eq!((time.as_nanos(), Time(time).to_string().as_str()), (nanoseconds, text));
        }
        for wrong in ["50", "1m", "61s", "", "ms", "-1ms"] {
            assert_eq!(parse_time(wrong), Err(QuantityError::Time), "{wrong}");
        }
        for (text, bytes) in [("64K", 65536), ("1M", 1 << 20), ("1500", 1500)] {
            assert_eq!((parse_bytes(text), Bytes(bytes).to_string().as_str()), (Ok(bytes), text));
        }
        for wrong in ["0", "1.5K", "2048M", "1G", "x"] {
            assert_eq!(parse_bytes(wrong), Err(QuantityError::Bytes), "{wrong}");
        }
    }
}
