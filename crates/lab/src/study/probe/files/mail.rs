//! A mail server's work: PostMark (Debian's package), on a new file system with nothing in any cache.
//!
//! What it is told is what the paper tells of its runs; all else is as PostMark has it. Its report counts whole seconds, and at
//! least one. This machine's clock tells more, if PostMark's lines were read when they were written: where both agree the clock's
//! time is taken, and else the report's.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Figure, Files, Observer, Outcome, Told, Way, over_iscsi, prepared, site_of};
use crate::LabError;
use crate::study::peer::command;
use crate::study::probe::{Design, Duty, Keys, Place};
use crate::study::{Further, tool};

const PROGRAM: &str = "postmark";
/// Files at the beginning, and transactions: the paper's, and of a quick run.
const FULL: (u32, u32) = (20_000, 50_000);
const QUICK: (u32, u32) = (1000, 75_000);
/// The shortest and the longest file, in bytes.
const LENGTHS_BYTES: (u32, u32) = (512, 16 << 10);
/// Far more than any design takes; less than what the file system below is waited for.
const PATIENCE: Duration = Duration::from_secs(3000);
/// What it says before its files are made, before its transactions, behind them, and behind all of it.
const STEPS: [&str; 4] = ["Creating files", "Performing transactions", "Deleting files", "Time:"];
/// How far its seconds may be off the clock's: it takes the difference of two whole ones.
const WHOLE_S: f64 = 1.0;
/// With fewer seconds its report says nothing that a clock could be held to.
const TOLD_MIN_S: f64 = 2.0;

/// Room for the files, and as much again for what is appended.
const fn image_bytes(duty: Duty) -> u64 {
    if duty.is_quick { 128 << 20 } else { 1 << 30 }
}

/// What is run, with Debian's package that has it.
pub(super) const PROGRAMS: [(&str, &str); 1] = [(PROGRAM, "postmark")];

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
            let reported = Further::new("by its report", report.reported_per_s, "1/s");
            let further = Vec::from_iter((figure == Figure::Transactions).then_some(reported));
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

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Report {
    transactions_per_s: f64,
    read_bytes_per_s: f64,
    written_bytes_per_s: f64,
    /// Transactions per second as PostMark has them.
    reported_per_s: f64,
}

/// How long something took, by what PostMark says of it and by a clock that has heard it say so.
fn took_s(reported_s: f64, by_clock_s: f64) -> f64 {
    let agrees = reported_s >= TOLD_MIN_S && (by_clock_s - reported_s).abs() <= WHOLE_S;
    if agrees { by_clock_s } else { reported_s.max(1.0) }
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
    let mut heard = [None; STEPS.len()];
    let said = tool::listen(program, PROGRAM, &words, PATIENCE, |said| {
        for (text, at) in STEPS.iter().zip(&mut heard) {
            if at.is_none() && said.contains(text) {
                *at = Some(Instant::now());
            }
        }
    })?;
    let between = |from: usize, to: usize| {
        let both = heard[from].zip(heard[to]);
        both.map_or(0.0, |(from, to): (Instant, Instant)| to.duration_since(from).as_secs_f64())
    };
    let report = read(&said, f64::from(transactions), between(1, 2), between(0, 3));
    report.ok_or_else(|| LabError::NotReady(format!("{PROGRAM} says: {}", tool::end_of(&said))))
}

/// Takes its report apart; nothing where something of it is missing, or it says of an error, after which it goes on. The times
/// are the clock's, of its transactions and of all of it.
fn read(said: &str, transactions: f64, transactions_s: f64, all_s: f64) -> Option<Report> {
    if said.contains("Error:") {
        return None;
    }
    let line = |text: &str| said.lines().find(|line| line.contains(text));
    let seconds = |text: &str| line(text)?.split_whitespace().next()?.parse::<f64>().ok();
    // `	N seconds of transactions (N per second)`.
    let reported_per_s =
        line(" seconds of transactions (")?.split_once('(')?.1.split(' ').next()?.parse().ok()?;
    let transactions_per_s = transactions / took_s(seconds(" seconds of transactions (")?, transactions_s);
    let told_s = seconds(" seconds total")?.max(1.0);
    let rate = |what: &str| {
        // `	N megabytes read (N megabytes per second)`.
        let (all, per_second) = line(&format!("bytes {what} ("))?.split_once('(')?;
        let bytes = |words: &str| {
            let mut words = words.split_whitespace();
            let number: f64 = words.next()?.parse().ok()?;
            let unit = match words.next()? {
                "bytes" => 1,
                "kilobytes" => 1 << 10,
                "megabytes" => 1 << 20,
                _ => return None,
            };
            Some(number * f64::from(unit))
        };
        bytes(per_second)?;
        Some(bytes(all)? / took_s(told_s, all_s))
    };
    let (read_bytes_per_s, written_bytes_per_s) = (rate("read")?, rate("written")?);
    Some(Report { transactions_per_s, read_bytes_per_s, written_bytes_per_s, reported_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::files::lacks_programs;

    const SAID: &str = "Deleting files...Done\nTime:\n\t8 seconds total\n\t5 seconds of transactions (10000 per second)\n\n\
                        Files:\n\t44991 created (5623 per second)\n\t24917 read (4983 per second)\n\nData:\n\
                        \t234.25 megabytes read (29.28 megabytes per second)\n\
                        \t901.00 kilobytes written (512.00 kilobytes per second)\n";

    #[test]
    fn a_report_is_read_with_its_units() {
        let near =
            |value: f64, wanted: f64| assert!((value / wanted - 1.0).abs() < 1e-9, "{value}, {wanted}");
        let report = read(SAID, 50_000.0, 5.4, 8.2).expect("a report");
        near(report.transactions_per_s, 50_000.0 / 5.4);
        near(report.reported_per_s, 10_000.0);
        near(report.read_bytes_per_s, 234.25 * 1_048_576.0 / 8.2);
        near(report.written_bytes_per_s, 901.0 * 1024.0 / 8.2);
        // All of it was read at once, or late: its own seconds are what there is.
        for wrong_s in [0.0, 3.9, 6.1] {
            let report = read(SAID, 50_000.0, wrong_s, wrong_s).expect("a report");
            near(report.transactions_per_s, 10_000.0);
            near(report.read_bytes_per_s, 234.25 * 1_048_576.0 / 8.0);
        }
        for (from, to) in [
            ("seconds of transactions (10000", "seconds of transactions (many"),
            ("megabytes per", "pages per"),
            ("kilobytes written", "nothing"),
            ("seconds total", "hours"),
            ("Data:", "Error: cannot open '1' for writing"),
        ] {
            assert_eq!(read(&SAID.replace(from, to), 50_000.0, 5.4, 8.2), None, "{to}");
        }
    }

    #[test]
    fn less_than_two_seconds_are_no_proof_of_a_clock() {
        let near = |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{value}, {wanted}");
        near(took_s(1.0, 0.000_1), 1.0);
        near(took_s(0.0, 0.5), 1.0);
        near(took_s(3.0, 3.7), 3.7);
        near(took_s(3.0, 2.1), 2.1);
    }

    #[test]
    fn the_program_itself_works_where_it_is_put() {
        if let Some(lack) = lacks_programs(&PROGRAMS) {
            lunette_skip::record_lacking(&lack);
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        let blanks = root.path().join("a b");
        std::fs::create_dir(&blanks).expect("a directory");
        let report = postmark(&blanks, (50, 100), u64::MAX).expect("a report");
        assert!(
            report.transactions_per_s > 0.0 && report.transactions_per_s <= report.reported_per_s * 2.0,
            "{report:?}"
        );
        assert!(report.read_bytes_per_s > 0.0 && report.written_bytes_per_s > 0.0, "{report:?}");
        assert_eq!(std::fs::read_dir(&blanks).expect("a directory").count(), 0, "it removes its files");
        // Where it may not write, it says so, and that is no figure.
        let refused = postmark(Path::new("/proc/self"), (5, 5), 1).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.contains("postmark ")), "somebody wrote to /proc");
    }
}
