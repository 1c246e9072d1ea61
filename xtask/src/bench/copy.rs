//! `bench copy`: `lunette copy` beside `qemu-img convert` and `qemu-img dd` over emulated lines, in both directions, and beside what the
//! line carries.
//!
//! Not here: the lines themselves, which `lunette wan up` makes.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lunette_link::{Link, Shape};
use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use lunette_tests::server::Server;

use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::{Findings, Stand};

/// What stands under the table.
pub(crate) const SETTING: &str = "Wall time of the whole command, login and logout included, one connection, to and from a memory unit \
                                  of Lunette at the far end of the line; `qemu-img convert -n -m 16 -W`; `qemu-img dd bs=1M`, which has \
                                  one command under way, with an eighth of the data. The line's payload is what one TCP \
                                  connection carries at best.";

const LINKS: [&str; 2] = ["gige", "oc3-50"];
const IMAGE_BYTES: u64 = 1 << 30;
const QUICK_IMAGE_BYTES: u64 = 16 << 20;
/// What a tool with one command under way copies of that: it has no beginning that would count.
const DD_SHARE: u64 = 8;
const PIECE_BYTES: u64 = 1 << 20;

/// Of the line's payload.
const BAR: Bar = Bar::AtLeast(0.95);

/// Longer than any of these takes.
const LIMIT: Duration = Duration::from_secs(1200);
const START_LIMIT: Duration = Duration::from_secs(20);

/// What every segment has besides its data: IPv4 without options, TCP with timestamps (RFC 791, 3.1; RFC 9293, 3.1; RFC 7323, 3.2).
const HEADERS_BYTES: u16 = 20 + 20 + 12;

const FAR: &str = "198.18.0.2:3260";
const TARGET: &str = "iqn.2026-11.io.lunette:far";

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
    let bytes = stand.or_quick(IMAGE_BYTES, QUICK_IMAGE_BYTES);
    let image = stand.file_of("source.img", bytes)?;
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let mut section = Section::new(format!("{} MiB over a line, TCP with {}", bytes >> 20, control.trim()));
    for link in LINKS {
        match over_line(stand, link, &image, bytes) {
            Ok(rows) => section.rows.extend(rows),
            Err(error) => findings.skip(link, &error),
        }
    }
    findings.sections.push(section);
    Ok(())
}

fn over_line(stand: &Stand<'_>, link: &str, image: &Path, bytes: u64) -> Result<Vec<Row>> {
    let name = |direction: Direction| match direction {
        Direction::To => format!("{link}, file to disk"),
        Direction::From => format!("{link}, disk to file"),
    };
    let wanted: Vec<Direction> =
        DIRECTIONS.into_iter().filter(|direction| stand.wants(&name(*direction))).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let Link { mtu, up, down } = link.parse().map_err(|error| anyhow!("{link}: {error}"))?;
    let line = Line::up(stand, link)?;
    let far = line.serve(stand, bytes)?;
    // What is read is the image, whichever direction comes first.
    line.copy(Tool::Lunette, Direction::To, image, bytes)?;
    let results = interleave(stand.rounds(), wanted.len(), TOOLS.len(), |row, tool| {
        line.copy(TOOLS[tool], wanted[row], image, bytes)
    })?;
    drop(far);
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

/// A network that is up until this is dropped.
struct Line {
    lunette: PathBuf,
    name: String,
    directory: PathBuf,
}

impl Line {
    fn up(stand: &Stand<'_>, link: &str) -> Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let mut command = Command::new(stand.lunette());
        command.args(["wan", "up", "--name", &name, "--link", link]);
        let finished = run(&mut command, LIMIT)?;
        ensure!(finished.success(), "lunette wan up: {}: {}", finished.ending(), finished.output);
        Ok(Self { lunette: stand.lunette().to_owned(), name, directory: stand.path("") })
    }

    fn serve(&self, stand: &Stand<'_>, bytes: u64) -> Result<Server> {
        let mut command = Command::new(&self.lunette);
        command.args(["wan", "exec", &self.name, "--far", "--"]).arg(&self.lunette);
        command.args(["serve", "--portal", FAR, "--target", TARGET, "--lun", &format!("mem:{bytes}")]);
        Server::start(&mut command, &stand.path("far.log"), START_LIMIT)
    }

    /// Copies the image, or as much of it as the tool is given; answers bytes per second. What comes back must be what was sent.
    fn copy(&self, tool: Tool, direction: Direction, image: &Path, bytes: u64) -> Result<f64> {
        let bytes = if tool == Tool::Dd { (bytes / DD_SHARE).max(PIECE_BYTES) } else { bytes };
        let (url, copied) = (format!("iscsi://{FAR}/{TARGET}/0"), self.directory.join("copied.img"));
        let [source, destination] = match direction {
            Direction::To => [image.display().to_string(), url],
            Direction::From => [url, copied.display().to_string()],
        };
        let mut command = Command::new(&self.lunette);
        command.args(["wan", "exec", &self.name, "--"]);
        match tool {
            Tool::Lunette => command.arg(&self.lunette).args(["copy", "--quiet", &source, &destination]),
            Tool::Convert => {
                command.args(["qemu-img", "convert", "-f", "raw", "-O", "raw", "-m", "16", "-W"]);
                if direction == Direction::To {
                    command.arg("-n");
                }
                command.args([source, destination])
            }
            Tool::Dd => {
                command.args(["qemu-img", "dd", "-f", "raw", "-O", "raw"]);
                command.args([format!("bs={PIECE_BYTES}"), format!("count={}", bytes / PIECE_BYTES)]);
                command.args([format!("if={source}"), format!("of={destination}")])
            }
        };
        let began = Instant::now();
        let finished = run(&mut command, LIMIT)?;
        let took = began.elapsed();
        ensure!(finished.success(), "{tool:?}: {}: {}", finished.ending(), finished.output);
        if direction == Direction::From {
            let is_same = begins_alike(image, &copied, bytes)?;
            std::fs::remove_file(&copied)?;
            ensure!(is_same, "{tool:?}: what was copied is not what was there");
        }
        Ok(bytes as f64 / took.as_secs_f64())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let down = run(Command::new(&self.lunette).args(["wan", "down", &self.name]), LIMIT);
        if !down.is_ok_and(|down| down.success()) {
            eprintln!("the network {} is left; lunette wan down ends it", self.name);
        }
    }
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
