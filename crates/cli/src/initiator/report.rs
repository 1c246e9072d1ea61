//! How results are told: lines for people, or one line of JSON.

use std::io::{self, Write};

use rustix::fs::FileType;
use serde::Serialize;

use crate::failure::Failure;

/// Writes text to the standard output. A reader that has seen enough is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe || is_of_closed_terminal(&error) => Ok(()),
        result => result.map_err(|error| Failure::new("cannot write to the standard output", &error)),
    }
}

/// Nobody looks at a terminal that is closed, which has no other error.
fn is_of_closed_terminal(error: &io::Error) -> bool {
    let is_device = || {
        rustix::fs::fstat(io::stdout())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
    };
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) && is_device()
}

/// Tells a result: as JSON, or as what `text` makes of it.
pub(crate) fn tell<T: Serialize>(
    json: bool,
    result: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    if !json {
        return print(&text(result));
    }
    let line = serde_json::to_string(result)
        .map_err(|error| Failure::new("cannot write JSON", &io::Error::from(error)))?;
    print(&format!("{line}\n"))
}

/// Lines of a name and a value, the values in one column.
pub(crate) struct Facts {
    rows: Vec<(String, String)>,
}

impl Facts {
    pub(crate) fn new() -> Facts {
        Facts { rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: &str, value: impl Into<String>) -> &mut Facts {
        self.rows.push((name.to_owned(), value.into()));
        self
    }

    /// The same where there is something to tell.
    pub(crate) fn some(&mut self, name: &str, value: Option<String>) -> &mut Facts {
        if let Some(value) = value {
            self.row(name, value);
        }
        self
    }

    pub(crate) fn render(&self, indent: usize) -> String {
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
        table(indent, &rows)
    }
}

/// Rows with their cells in columns, two spaces apart.
pub(crate) fn table(indent: usize, rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut facts = Facts::new();
        facts.row("a", "one").some("longer", None).some("bb", Some("two words".into()));
        assert_eq!(facts.render(2), "  a   one\n  bb  two words\n");
        let rows = vec![vec!["1".into(), "x".into(), "y".into()], vec!["22".into(), "éé".into()]];
        assert_eq!(table(0, &rows), "1   x   y\n22  éé\n");
        assert_eq!(table(0, &[]), "");
    }
}
