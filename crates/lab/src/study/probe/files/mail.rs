//! A mail server's work: PostMark (Debian's package), on a new file system with nothing in any cache.
//!
//! What it is told is what the paper tells of its runs; all else is as PostMark has it. Its figures are those of its report, which counts whole
//! seconds, and at least one; how fast its transactions were by this machine's clock stands beside them.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Figure, Files, Observer, Outcome, Told, Way, over_iscsi, prepared, site_of};
use crate::LabError;
use crate::study::files::lacks_programs;
use crate::study::peer::command;
use crate::study::probe::{Design, Duty, Keys, Place};
use crate::study::{Further, tool};

const PROGRAM: &str = "postmark";
/// Files at the beginning, and transactions: the paper's, and of a quick run.
const FULL: (u32, u32) = (20_000, 50_000);
const QUICK: (u32, u32) = (500, 1250);
/// The shortest and the longest file, in bytes.
const LENGTHS_BYTES: (u32, u32) = (512, 16 << 10);
/// Far more than any design takes; less than what the file system below is waited for.
const PATIENCE: Duration = Duration::from_secs(3000);
/// What it says before its transactions, and behind them.
const BEGINS: &str = "Performing transactions";
const ENDS: &str = "Deleting files";

/// Room for the files, and as much again for what is appended.
const fn image_bytes(duty: Duty) -> u64 {
    if duty.is_quick { 128 << 20 } else { 1 << 30 }
}

/// What has to be installed and is not.
pub(super) fn lacks() -> Option<String> {
    lacks_programs(&[(PROGRAM, "postmark")])
}

/// Runs it.
pub(super) fn run(place: Place<'_>, design: Design, duty: Duty) -> Result<Outcome, LabError> {
    let (image, cached) = prepared(place, image_bytes(duty), Files::Used, |_| Ok(()))?;
    let (lines, observer) = (design.lines(), Observer::at(place));
    let way =
        Way { lines: &lines, keys: Keys::Fujita, caches: true, is_synchronous: false, memory_bytes: None };
    let amount = if duty.is_quick { QUICK } else { FULL };
    let (told, negotiated) = over_iscsi(place, site_of(place)?, image, way, |mounted, _| {
        let (report, seen) = observer.watch(|| postmark(mounted.root(), amount, duty.seed))?;
        let report = report?;
        let of = |(figure, measured)| {
            let by_clock = Further::new("by this machine's clock", report.by_clock_per_s, "1/s");
            let further = Vec::from_iter((figure == Figure::Transactions).then_some(by_clock));
            Told { figure, measured, seen: seen.clone(), further }
        };
        let figures = [
            (Figure::Transactions, report.transactions_per_s),
            (Figure::Read, report.read_bytes_per_s / 1e6),
            (Figure::Written, report.written_bytes_per_s / 1e6),
        ];
        Ok(figures.map(of).to_vec())
    })?;
    Ok(Outcome { told, cached, negotiated })
}

/// What PostMark says of a run, and how fast its transactions were by another clock.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Report {
    transactions_per_s: f64,
    read_bytes_per_s: f64,
    written_bytes_per_s: f64,
    by_clock_per_s: f64,
}

/// Has it work in a directory, on so many files with so many transactions.
fn postmark(root: &Path, (files, transactions): (u32, u32), seed: u64) -> Result<Report, LabError> {
    let (low, high) = LENGTHS_BYTES;
    // It reads a number with 31 bits.
    let seed = seed & 0x7fff_ffff;
    // Without a place it works where it is: its words may have no blanks.
    let words = format!(
        "set number {files}\nset transactions {transactions}\nset size {low} {high}\nset seed {seed}\nrun\nquit\n"
    );
    let mut program = command(PROGRAM);
    program.current_dir(root);
    let (mut begun, mut ended) = (None, None);
    let said = tool::listen(program, PROGRAM, &words, PATIENCE, |said| {
        for (text, at) in [(BEGINS, &mut begun), (ENDS, &mut ended)] {
            if at.is_none() && said.contains(text) {
                *at = Some(Instant::now());
            }
        }
    })?;
    let took = begun.zip(ended).map(|(begun, ended)| ended.duration_since(begun).as_secs_f64().max(1e-9));
    let report = took.and_then(|took| read(&said, f64::from(transactions) / took));
    report.ok_or_else(|| LabError::NotReady(format!("{PROGRAM} says: {}", tool::end_of(&said))))
}

/// Takes its report apart; nothing where something of it is missing, or it says of an error, after which it goes on.
fn read(said: &str, by_clock_per_s: f64) -> Option<Report> {
    if said.contains("Error:") {
        return None;
    }
    let line = |text: &str| said.lines().find(|line| line.contains(text));
    // `	N seconds of transactions (N per second)`.
    let transactions_per_s =
        line(" seconds of transactions (")?.split_once('(')?.1.split(' ').next()?.parse().ok()?;
    let rate = |what: &str| {
        // `	N megabytes read (N megabytes per second)`.
        let mut words = line(&format!("bytes {what} ("))?.split_once('(')?.1.split(' ');
        let number: f64 = words.next()?.parse().ok()?;
        let unit = match words.next()? {
            "bytes" => 1,
            "kilobytes" => 1 << 10,
            "megabytes" => 1 << 20,
            _ => return None,
        };
        Some(number * f64::from(unit))
    };
    let (read_bytes_per_s, written_bytes_per_s) = (rate("read")?, rate("written")?);
    Some(Report { transactions_per_s, read_bytes_per_s, written_bytes_per_s, by_clock_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Deleting files...Done\nTime:\n\t8 seconds total\n\t5 seconds of transactions (10000 per second)\n\n\
                        Files:\n\t44991 created (5623 per second)\n\t24917 read (4983 per second)\n\nData:\n\
                        \t234.25 megabytes read (29.28 megabytes per second)\n\
                        \t901.00 kilobytes written (512.00 kilobytes per second)\n";

    #[test]
    fn a_report_is_read_with_its_units() {
        let report = Report {
            transactions_per_s: 10_000.0,
            read_bytes_per_s: 29.28 * 1_048_576.0,
            written_bytes_per_s: 512.0 * 1024.0,
            by_clock_per_s: 1.0,
        };
        assert_eq!(read(SAID, 1.0), Some(report));
        for (from, to) in [
            ("seconds of transactions (10000", "seconds of transactions (many"),
            ("megabytes per", "pages per"),
            ("kilobytes written", "nothing"),
            ("Data:", "Error: cannot open '1' for writing"),
        ] {
            assert_eq!(read(&SAID.replace(from, to), 1.0), None, "{to}");
        }
    }

    #[test]
    fn the_program_itself_works_where_it_is_put() {
        if let Some(lack) = lacks() {
            lunette_skip::record_lacking(&lack);
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let blanks = root.path().join("a b");
        std::fs::create_dir(&blanks).expect("a directory");
        let report = postmark(&blanks, (50, 100), u64::MAX).expect("a report");
        // It tells whole seconds, of which there is one at least; N of them may have been almost N + 1 by the clock.
        assert!(
            report.transactions_per_s > 0.0 && report.by_clock_per_s >= report.transactions_per_s / 2.0,
            "{report:?}"
        );
        assert!(report.read_bytes_per_s > 0.0 && report.written_bytes_per_s > 25.0 * 512.0, "{report:?}");
        assert_eq!(std::fs::read_dir(&blanks).expect("a directory").count(), 0, "it removes its files");
        // Where it may not write, it says so, and that is no figure.
        let refused = postmark(Path::new("/proc/self"), (5, 5), 1).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.contains("postmark ")), "somebody wrote to /proc");
    }
}
