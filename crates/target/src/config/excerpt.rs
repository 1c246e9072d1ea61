//! One line of the user's text with carets under the part that is meant.

use std::fmt;
use std::ops::Range;

/// A line of text and a part of it, shown as two lines: the text, and carets below the part.
///
/// Control characters become single printable ones, so that the carets stay in place and a terminal is not steered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    line: String,
    /// In characters.
    before: usize,
    /// In characters, at least one.
    marked: usize,
}

impl Excerpt {
    /// The part `marked`, in bytes, of `line`. What of the part lies outside the line is cut off; an empty part is
    /// the place where something is missing.
    #[must_use]
    pub fn new(line: &str, marked: Range<usize>) -> Self {
        let characters = |range: Range<usize>| {
            line.char_indices().filter(|(at, _)| range.contains(at) && *at < line.len()).count()
        };
        Self {
            line: line.chars().map(printable).collect(),
            before: characters(0..marked.start),
            marked: characters(marked).max(1),
        }
    }
}

fn printable(character: char) -> char {
    match character {
        '\t' => ' ',
        character if character.is_control() => '\u{fffd}',
        character => character,
    }
}

impl fmt::Display for Excerpt {
    /// Without a line end behind the carets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}", self.line)?;
        write!(f, "  {}{}", " ".repeat(self.before), "^".repeat(self.marked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets_stand_under_the_part() {
        assert_eq!(Excerpt::new("0=vm.img,rw", 9..11).to_string(), "  0=vm.img,rw\n           ^^");
        assert_eq!(Excerpt::new("a\u{e9}\u{e9}b", 5..6).to_string(), "  a\u{e9}\u{e9}b\n     ^");
    }

    #[test]
    fn an_end_has_a_caret_too() {
        assert_eq!(Excerpt::new("mem:", 4..4).to_string(), "  mem:\n      ^");
        assert_eq!(Excerpt::new("", 0..9).to_string(), "  \n  ^");
        assert_eq!(Excerpt::new("ab", 7..9).to_string(), "  ab\n    ^");
    }

    #[test]
    fn a_terminal_is_not_steered() {
        assert_eq!(Excerpt::new("\ta\u{1b}b", 3..4).to_string(), "   a\u{fffd}b\n     ^");
    }
}
