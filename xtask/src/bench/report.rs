//! What a benchmark hands back: figures in sections, each perhaps with a bar to clear, as JSON and as Markdown.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::Findings;
use super::host::Facts;
use super::sample::Samples;

/// How a figure is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    BytesPerSecond,
    Microseconds,
    Bytes,
    Ratio,
    /// Of one, or of all.
    Share,
    Count,
}

impl Unit {
    /// Operations a second say more about small blocks, bytes a second about large ones.
    pub(crate) fn of_rate(block_bytes: u64) -> Self {
        if block_bytes < 64 << 10 { Self::PerSecond } else { Self::BytesPerSecond }
    }

    fn write(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{value:.0}/s"),
            Self::BytesPerSecond => format!("{:.0} MB/s", value / 1e6),
            Self::Microseconds if value < 100.0 => format!("{value:.1} µs"),
            Self::Microseconds if value < 10_000.0 => format!("{value:.0} µs"),
            Self::Microseconds => format!("{:.1} ms", value / 1e3),
            Self::Bytes if value.abs() < 1024.0 => format!("{value:.0} B"),
            Self::Bytes if value.abs() < f64::from(1 << 20) => format!("{:.1} KiB", value / 1024.0),
            Self::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Self::Ratio => format!("{value:.2}"),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Count => format!("{value:.0}"),
        }
    }
}

/// What a figure should reach, from the issue "Speed".
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    /// A value that is not a number meets nothing.
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bar) => value >= bar,
            Self::AtMost(bar) => value <= bar,
        }
    }
}

/// One cell of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    column: String,
    unit: Unit,
    #[serde(flatten)]
    samples: Samples,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    bar: Option<Bar>,
}

impl Figure {
    /// Nothing if there is no sample.
    pub(crate) fn new(column: impl Into<String>, unit: Unit, samples: Option<Samples>) -> Option<Self> {
        Some(Self { column: column.into(), unit, samples: samples?, bar: None })
    }

    /// A single value.
    pub(crate) fn one(column: impl Into<String>, unit: Unit, value: f64) -> Option<Self> {
        Self::new(column, unit, Samples::of(vec![value]))
    }

    /// How often `above` is `below`, round by round.
    pub(crate) fn ratio(column: impl Into<String>, above: &[f64], below: &[f64]) -> Option<Self> {
        Self::new(column, Unit::Ratio, Samples::ratio(above, below))
    }

    pub(crate) fn with_bar(mut self, bar: Option<Bar>) -> Self {
        self.bar = bar;
        self
    }

    pub(crate) fn is_met(&self) -> Option<bool> {
        self.bar.map(|bar| bar.is_met(self.samples.median))
    }
}

impl fmt::Display for Figure {
    /// "0.98 (3 %) ≥ 0.95"; in bold what does not clear its bar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.unit.write(self.samples.median);
        if self.samples.samples.len() > 1 {
            let _ = write!(text, " ({:.0} %)", self.samples.spread * 100.0);
        }
        let relation = match (self.bar, self.is_met()) {
            (Some(Bar::AtLeast(bar)), Some(true)) => format!(" ≥ {}", self.unit.write(bar)),
            (Some(Bar::AtLeast(bar)), _) => format!(" < {}", self.unit.write(bar)),
            (Some(Bar::AtMost(bar)), Some(true)) => format!(" ≤ {}", self.unit.write(bar)),
            (Some(Bar::AtMost(bar)), _) => format!(" > {}", self.unit.write(bar)),
            (None, _) => String::new(),
        };
        if self.is_met() == Some(false) {
            write!(f, "**{text}{relation}**")
        } else {
            write!(f, "{text}{relation}")
        }
    }
}

/// One line of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) figures: Vec<Figure>,
}

impl Row {
    /// Leaves out what there was no sample of.
    pub(crate) fn new(name: impl Into<String>, figures: impl IntoIterator<Item = Option<Figure>>) -> Self {
        Self { name: name.into(), figures: figures.into_iter().flatten().collect() }
    }
}

/// One table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
}

impl Section {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    /// The columns of all rows, in the order in which they first appear.
    fn columns(&self) -> Vec<&str> {
        let mut columns = Vec::new();
        for figure in self.rows.iter().flat_map(|row| &row.figures) {
            if !columns.contains(&figure.column.as_str()) {
                columns.push(figure.column.as_str());
            }
        }
        columns
    }

    fn markdown(&self) -> String {
        let columns = self.columns();
        let mut text = format!("| {} | {} |\n", self.title, columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(columns.len()));
        for row in &self.rows {
            let cell = |column: &&str| {
                let figure = row.figures.iter().find(|figure| figure.column == *column);
                figure.map_or_else(|| "–".to_owned(), Figure::to_string)
            };
            let cells: Vec<String> = columns.iter().map(cell).collect();
            let _ = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
        }
        text
    }
}

/// All that one command found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The command: "peers".
    pub(crate) bench: String,
    /// What all of it was measured with, in words.
    pub(crate) setting: String,
    pub(crate) host: Facts,
    pub(crate) rounds: usize,
    pub(crate) sections: Vec<Section>,
    /// What could not be measured, each with its reason.
    pub(crate) skipped: Vec<String>,
    /// Bars that were met, and all that had something to stand on.
    pub(crate) bars_met: usize,
    pub(crate) bars: usize,
    /// Bars that had nothing to stand on, for a reason in `skipped`.
    #[serde(default)]
    pub(crate) bars_skipped: usize,
}

impl Outcome {
    pub(crate) fn new(bench: &str, setting: &str, host: Facts, rounds: usize, findings: Findings) -> Self {
        let Findings { sections, skipped, bars_skipped, programs } = findings;
        let rows = sections.iter().flat_map(|section| &section.rows);
        let verdicts: Vec<bool> = rows.flat_map(|row| &row.figures).filter_map(Figure::is_met).collect();
        let bars_met = verdicts.iter().filter(|met| **met).count();
        let bars = verdicts.len();
        Self {
            bench: bench.to_owned(),
            setting: setting.to_owned(),
            host: host.with(programs),
            rounds,
            sections,
            skipped,
            bars_met,
            bars,
            bars_skipped,
        }
    }

    /// The whole report. The last line is the sum.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for section in self.sections.iter().filter(|section| !section.rows.is_empty()) {
            let _ = writeln!(text, "{}", section.markdown());
        }
        let _ = writeln!(
            text,
            "{} Median of {} rounds, in brackets (largest - smallest) / median; a ratio is the median of the rounds' \
             own. {}",
            self.setting,
            self.rounds,
            self.host.sentence()
        );
        for skipped in &self.skipped {
            let _ = writeln!(text, "\nSkipped: {skipped}");
        }
        let _ = write!(text, "\n{} of {} bars met", self.bars_met, self.bars);
        if self.bars_skipped > 0 {
            let _ = write!(text, ", {} skipped", self.bars_skipped);
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(value: f64, bar: Option<Bar>) -> Figure {
        Figure::one("ratio", Unit::Ratio, value).expect("a sample").with_bar(bar)
    }

    #[test]
    fn a_missed_bar_stands_out() {
        assert_eq!(ratio(0.95, Some(Bar::AtLeast(0.95))).to_string(), "0.95 ≥ 0.95");
        assert_eq!(ratio(0.5, Some(Bar::AtLeast(0.95))).to_string(), "**0.50 < 0.95**");
        assert_eq!(ratio(1.2, Some(Bar::AtMost(1.15))).to_string(), "**1.20 > 1.15**");
        assert_eq!(ratio(1.2, None).to_string(), "1.20");
        assert!(!Bar::AtLeast(1.0).is_met(f64::NAN) && !Bar::AtMost(1.0).is_met(f64::NAN));
    }

    #[test]
    fn units_are_written_for_people() {
        let written = [
            Unit::of_rate(4096).write(1234.4),
            Unit::of_rate(65536).write(524_288_000.0),
            Unit::Microseconds.write(4.71),
            Unit::Microseconds.write(29_000.0),
            Unit::Bytes.write(1023.4),
            Unit::Bytes.write(65536.0),
            Unit::Bytes.write(3.0 * 1024.0 * 1024.0),
        ];
        assert_eq!(written, ["1234/s", "524 MB/s", "4.7 µs", "29.0 ms", "1023 B", "64.0 KiB", "3.0 MiB"]);
    }

    #[test]
    fn a_table_has_every_column_and_the_sum_is_last() {
        let mut section = Section::new("4 KiB");
        let rate = Figure::new("Lunette", Unit::PerSecond, Samples::of(vec![90.0, 100.0, 110.0]));
        section.rows.push(Row::new("read", [rate, Some(ratio(0.5, Some(Bar::AtLeast(0.95))))]));
        section.rows.push(Row::new("write", [Some(ratio(2.0, Some(Bar::AtLeast(0.95)))), None]));
        let mut findings = Findings { sections: vec![section], ..Findings::default() };
        findings.skip_bars("x", 2, &anyhow::anyhow!("none"));
        findings.ran("fio-3.33");
        findings.ran("fio-3.33");
        let outcome = Outcome::new("floor", "One.", Facts::default(), 3, findings);
        let text = outcome.markdown();
        assert!(text.contains("| 4 KiB | Lunette | ratio |\n|---|---:|---:|\n"), "{text}");
        assert!(
            text.contains("| read | 100/s (20 %) | **0.50 < 0.95** |\n| write | – | 2.00 ≥ 0.95 |\n"),
            "{text}"
        );
        assert!(text.ends_with("Skipped: x, 2 bars: none\n\n1 of 2 bars met, 2 skipped\n"), "{text}");
        assert_eq!(text.matches("fio-3.33").count(), 1, "{text}");
        let json = serde_json::to_string(&outcome).expect("JSON");
        let back: Outcome = serde_json::from_str(&json).expect("the same");
        assert_eq!(back.markdown(), text);
    }
}
