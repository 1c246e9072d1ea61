//! `bench copy`: `lunette copy` beside `qemu-img convert` and `qemu-img dd` over emulated lines, in both directions, and beside what the
//! line carries.
//!
//! Not here: the lines themselves ([`super::line`]).

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use lunette_link::{Link, Shape};
use lunette_tests::packages::find_program;

use super::host::version;
use super::line::Line;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::{Findings, Stand};

/// What stands under the table.
pub(crate) const SETTING: &str = "Wall time of the whole command, login and logout included, one connection, to and from a memory unit \
                                  of Lunette at the far end of the line; `qemu-img convert -n -m 16 -W`; `qemu-img dd bs=1M`, which has \
                                  one command under way, with a sixteenth of the data. The line's payload is what one TCP \
                                  connection carries at best.";

/// Each with the length of the image: half a minute's worth of the slower one, so that the beginning counts for little.
const LINKS: [(&str, u64); 2] = [("gige", 1 << 30), ("oc3-50", 512 << 20)];
const QUICK_IMAGE_BYTES: u64 = 16 << 20;
/// What a tool with one command under way copies of that: it has no beginning that would count.
const DD_SHARE: u64 = 16;
const PIECE_BYTES: u64 = 1 << 20;

/// Of the line's payload.
const BAR: Bar = Bar::AtLeast(0.95);

/// Longer than any of these takes.
const LIMIT: Duration = Duration::from_secs(1200);

/// What every segment has besides its data: IPv4 without options, TCP with timestamps (RFC 791, 3.1; RFC 9293, 3.1; RFC 7323, 3.2).
const HEADERS_BYTES: u16 = 20 + 20 + 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    To,
    From,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Lunette,
    Convert,
    Dd,
}

const TOOLS: [Tool; 3] = [Tool::Lunette, Tool::Convert, Tool::Dd];
const DIRECTIONS: [Direction; 2] = [Direction::To, Direction::From];

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    ensure!(
        find_program("qemu-img").is_some(),
        "qemu-img is missing: install qemu-utils and qemu-block-extra"
    );
    findings.ran(&version("qemu-img", "--version"));
    let mut section = Section::new("Over a line");
    for (link, bytes) in LINKS {
        match over_line(stand, link, stand.or_quick(bytes, QUICK_IMAGE_BYTES)) {
            Ok(rows) => section.rows.extend(rows),
            Err(error) => findings.skip(link, &error),
        }
    }
    findings.sections.push(section);
    Ok(())
}

fn over_line(stand: &Stand<'_>, link: &str, bytes: u64) -> Result<Vec<Row>> {
    let name = |direction: Direction| match direction {
        Direction::To => format!("{link}, file to disk, {} MiB", bytes >> 20),
        Direction::From => format!("{link}, disk to file, {} MiB", bytes >> 20),
    };
    let wanted: Vec<Direction> =
        DIRECTIONS.into_iter().filter(|direction| stand.wants(&name(*direction))).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let Link { mtu, up, down } = link.parse().map_err(|error| anyhow!("{link}: {error}"))?;
    let (path, copied) = (stand.file_of("source.img", bytes)?, stand.path("copied.img"));
    let image = Image { path: &path, bytes, copied: &copied };
    let mut line = Line::up(stand.lunette(), link, &format!("mem:{bytes}"), &stand.path(""))?;
    // What is read is the image, whichever direction comes first.
    copy(&mut line, Tool::Lunette, Direction::To, &image, stand.lunette())?;
    let results = interleave(stand.rounds(), wanted.len(), TOOLS.len(), |row, tool| {
        copy(&mut line, TOOLS[tool], wanted[row], &image, stand.lunette())
    })?;
    let rows = wanted.iter().zip(&results).map(|(direction, rates)| {
        let shape = if *direction == Direction::To { &up } else { &down };
        table_row(name(*direction), payload_bytes_per_s(shape, mtu), rates)
    });
    Ok(rows.collect())
}

/// What one TCP connection carries at best; nothing is known of a line without a rate.
fn payload_bytes_per_s(shape: &Shape, mtu: u16) -> Option<f64> {
    let rate = shape.rate?.bits_per_s() as f64 / 8.0;
    Some(rate * f64::from(mtu - HEADERS_BYTES) / f64::from(mtu + shape.overhead_bytes))
}

fn table_row(name: String, payload: Option<f64>, rates: &[Vec<f64>]) -> Row {
    let [ours, convert, dd] = [0, 1, 2].map(|tool| rates[tool].as_slice());
    let of =
        |column: &str, rates: &[f64]| Figure::new(column, Unit::BytesPerSecond, Samples::of(rates.to_vec()));
    let payloads = vec![payload.unwrap_or(0.0); ours.len()];
    Row::new(
        name,
        [
            payload.and_then(|payload| Figure::one("the line's payload", Unit::BytesPerSecond, payload)),
            of("lunette copy", ours),
            of("qemu-img convert", convert),
            of("qemu-img dd", dd),
            Figure::ratio("copy / payload", ours, &payloads).map(|figure| figure.with_bar(Some(BAR))),
            Figure::ratio("convert / payload", convert, &payloads),
            Figure::ratio("copy / convert", ours, convert),
            Figure::ratio("copy / dd", ours, dd),
        ],
    )
}

/// Copies the image, or as much of it as the tool is given; answers bytes per second. What comes back must be what was sent.
fn copy(line: &mut Line, tool: Tool, direction: Direction, image: &Image<'_>, lunette: &Path) -> Result<f64> {
    let bytes = if tool == Tool::Dd { (image.bytes / DD_SHARE).max(PIECE_BYTES) } else { image.bytes };
    let (path, url) = (image.path.display().to_string(), Line::url());
    let back = image.copied.display().to_string();
    let [source, destination] = match direction {
        Direction::To => [&path, &url],
        Direction::From => [&url, &back],
    };
    let program = lunette.display().to_string();
    let dd = [format!("bs={PIECE_BYTES}"), format!("count={}", bytes / PIECE_BYTES)];
    let files = [format!("if={source}"), format!("of={destination}")];
    let mut command: Vec<&str> = Vec::new();
    match tool {
        Tool::Lunette => command.extend([&program, "copy", "--quiet", source, destination]),
        Tool::Convert => {
            command.extend(["qemu-img", "convert", "-f", "raw", "-O", "raw", "-m", "16", "-W"]);
            if direction == Direction::To {
                command.push("-n");
            }
            command.extend([source.as_str(), destination]);
        }
        Tool::Dd => {
            command.extend(["qemu-img", "dd", "-f", "raw", "-O", "raw"]);
            command.extend(dd.iter().chain(&files).map(String::as_str));
        }
    }
    let took = line.run(command, LIMIT)?;
    if direction == Direction::From {
        let is_same = begins_alike(image.path, image.copied, bytes)?;
        std::fs::remove_file(image.copied)?;
        ensure!(is_same, "{tool:?}: what was copied is not what was there");
    }
    Ok(bytes as f64 / took.as_secs_f64())
}

/// What is copied.
struct Image<'a> {
    path: &'a Path,
    bytes: u64,
    /// Where it comes back to.
    copied: &'a Path,
}

fn begins_alike(left: &Path, right: &Path, bytes: u64) -> Result<bool> {
    let open = |path: &Path| -> Result<_> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        Ok(BufReader::with_capacity(PIECE_BYTES as usize, file).take(bytes))
    };
    let (mut left, mut right) = (open(left)?, open(right)?);
    let (mut first, mut second) = (vec![0; PIECE_BYTES as usize], vec![0; PIECE_BYTES as usize]);
    for _ in 0..bytes / PIECE_BYTES {
        left.read_exact(&mut first)?;
        right.read_exact(&mut second)?;
        if first != second {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload_megabits(link: &str) -> f64 {
        let link: Link = link.parse().unwrap();
        payload_bytes_per_s(&link.up, link.mtu).unwrap() * 8.0 / 1e6
    }

    #[test]
    fn what_a_line_carries_is_less_than_its_rate() {
        assert!((payload_megabits("gige") - 941.48).abs() < 0.01);
        assert!((payload_megabits("oc3-50") - 149.63).abs() < 0.01);
        let free: Link = "local".parse().unwrap();
        assert_eq!(payload_bytes_per_s(&free.up, free.mtu), None);
    }

    #[test]
    fn the_bar_is_of_the_payload() {
        let row =
            table_row("a".to_owned(), Some(100.0), &[vec![95.0, 96.0, 97.0], vec![80.0; 3], vec![10.0; 3]]);
        assert_eq!(row.figures.iter().filter_map(Figure::is_met).collect::<Vec<_>>(), [true]);
        let row =
            table_row("a".to_owned(), Some(100.0), &[vec![90.0, 96.0, 94.0], vec![80.0; 3], vec![10.0; 3]]);
        assert_eq!(row.figures.iter().filter_map(Figure::is_met).collect::<Vec<_>>(), [false]);
        assert!(table_row("a".to_owned(), None, &[vec![1.0], vec![1.0], vec![1.0]]).figures.len() == 5);
    }

    #[test]
    fn what_differs_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let (left, right) = (directory.path().join("left"), directory.path().join("right"));
        let mut data = vec![1; 3 << 20];
        std::fs::write(&left, &data).unwrap();
        data[2 << 20] = 2;
        std::fs::write(&right, &data).unwrap();
        assert!(begins_alike(&left, &right, 2 << 20).unwrap());
        assert!(!begins_alike(&left, &right, 3 << 20).unwrap());
    }
}
