//! Text that came from a peer, made fit for a log line: escaped, quoted and cut.
//!
//! A name or a key may hold anything that is UTF-8; printed as it came it could forge a second log line, steer a
//! terminal, or fill the disk.

use std::fmt;

/// The most characters that are shown of a peer's text.
const SHOWN_MAX: usize = 80;

/// Displays a peer's text in quotes, with anything unprintable escaped and the end cut off beyond 80 characters.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut characters = self.0.chars();
        for character in characters.by_ref().take(SHOWN_MAX) {
            write!(f, "{}", character.escape_debug())?;
        }
        f.write_str(if characters.next().is_some() { "...\"" } else { "\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_characters_are_escaped() {
        assert_eq!(Quoted("a\n\u{1b}[31m\"\u{202e}b").to_string(), r#""a\n\u{1b}[31m\"\u{202e}b""#);
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(Quoted(&"x".repeat(80)).to_string(), format!("\"{}\"", "x".repeat(80)));
        assert_eq!(Quoted(&"x".repeat(81)).to_string(), format!("\"{}...\"", "x".repeat(80)));
    }
}
