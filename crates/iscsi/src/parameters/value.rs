//! Values of text keys (RFC 7143, 6.1): numbers, Booleans, lists, and the words that are kept for answers.
//!
//! Case matters in all of them. A numerical range (`1~5`) is no number here: no key of chapter 13 allows one.

/// The answer to a value that is not admissible (6.2.2).
pub(crate) const REJECT: &str = "Reject";
/// The answer to a key that has no meaning beside what else was agreed (6.2).
pub(crate) const IRRELEVANT: &str = "Irrelevant";
/// The answer to a key that nobody here knows (6.2).
pub(crate) const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// The list value that stands for a missing function (6.2.1).
pub(crate) const NONE: &str = "None";

/// True for the words that only an answer may be.
pub(crate) fn is_reserved(value: &str) -> bool {
    [REJECT, IRRELEVANT, NOT_UNDERSTOOD].contains(&value)
}

/// Reads a numerical-value: decimal without leading zeros, or hexadecimal behind `0x`; less than 2^64.
pub(crate) fn number(value: &str) -> Option<u64> {
    if let Some(digits) = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        let is_digit = |byte: u8| byte.is_ascii_hexdigit();
        return if digits.bytes().all(is_digit) { u64::from_str_radix(digits, 16).ok() } else { None };
    }
    let is_canonical = value == "0" || !value.starts_with('0');
    if is_canonical && value.bytes().all(|byte| byte.is_ascii_digit()) { value.parse().ok() } else { None }
}

/// Reads a boolean-value.
pub(crate) fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// How a Boolean is written.
pub(crate) const fn boolean_text(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// The first of the offered values that is among `known` (6.2.1).
pub(crate) fn first_known<'a>(offer: &'a str, known: &[&str]) -> Option<&'a str> {
    offer.split(',').find(|value| known.contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("262144"), Some(262_144));
        assert_eq!(number("0x10"), Some(16));
        assert_eq!(number("0XfF"), Some(255));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        assert_eq!(number("0x00000000000000000001"), Some(1));
    }

    #[test]
    fn anything_else_is_no_number() {
        for value in [
            "",
            "007",
            "+1",
            "-1",
            " 1",
            "1 ",
            "1~2",
            "0x",
            "0x+1",
            "0b1",
            "18446744073709551616",
            "1e3",
            "0x10000000000000000",
        ] {
            assert_eq!(number(value), None, "{value:?}");
        }
    }

    #[test]
    fn booleans_have_two_spellings() {
        assert_eq!(boolean("Yes"), Some(true));
        assert_eq!(boolean("No"), Some(false));
        assert_eq!(boolean("yes"), None);
        assert_eq!(boolean(""), None);
    }

    #[test]
    fn the_order_of_the_offer_decides() {
        assert_eq!(first_known("Y-com.example.x,CRC32C,None", &["None", "CRC32C"]), Some("CRC32C"));
        assert_eq!(first_known("none,crc32c", &["None", "CRC32C"]), None);
        assert_eq!(first_known("", &["None"]), None);
    }
}
