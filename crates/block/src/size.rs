//! Sizes as people read them. Parsing a size is the configuration's matter, not done here.

const UNITS: [(u64, &str); 5] =
    [(1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// `bytes` in the largest unit that divides it, so that two sizes that differ never read the same.
pub(crate) fn text(bytes: u64) -> String {
    for (unit_bytes, name) in UNITS {
        if bytes >= unit_bytes && bytes.is_multiple_of(unit_bytes) {
            return format!("{} {name}", bytes / unit_bytes);
        }
    }
    format!("{bytes} bytes")
}

/// The same as the configuration takes it: `20G`.
pub(crate) fn option(bytes: u64) -> String {
    let text = text(bytes);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let letter = unit.strip_suffix("iB").unwrap_or_default();
    format!("{number}{letter}")
}

#[cfg(test)]
mod tests {
    use super::{option, text};

    #[test]
    fn an_option_has_one_letter() {
        assert_eq!([512, 20 << 30, 12 << 20].map(option), ["512", "20G", "12M"]);
    }

    #[test]
    fn the_largest_exact_unit_is_used() {
        assert_eq!(text(0), "0 bytes");
        assert_eq!(text(512), "512 bytes");
        assert_eq!(text(1024), "1 KiB");
        assert_eq!(text((1 << 30) + 1024), "1048577 KiB");
        assert_eq!(text(20 << 30), "20 GiB");
        assert_eq!(text(u64::MAX), "18446744073709551615 bytes");
    }
}
