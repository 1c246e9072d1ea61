//! Published figures of work on files: what disks, a file server and a page cache made of them.

use super::disks::Disks;
use super::value;
use crate::report::figure_text;
use crate::study::judgement::OFF;
use crate::study::memory::SERVER_BYTES;
use crate::study::published::{LU_FILES_NFS, LU_FILES_SMB, LU_SPREAD};
use crate::study::{Cell, CellResult};

/// What the accesses to disks make of a deviation has to be this share of it at least.
const ACCESSES_SHARE: f64 = 0.5;
/// What the paper calls the network of `lu-files` in its table 3.
const CONFIGURATIONS: [(&str, &str); 2] = [("gige", "gige-lan-iscsi"), ("campus", "campus-iscsi")];
/// What Fujita and Ogawara's target had for its page cache, and ours may have, in bytes.
const PAGE_CACHE_BYTES: f64 = SERVER_BYTES as f64;
/// A file of theirs.
const FILE_BYTES: f64 = 2.0 * 1_048_576.0;

/// Files: what disks took of it there, and what a file server did.
pub(super) fn files(
    disks: Disks,
    cell: &Cell,
    result: &CellResult,
    published: f64,
    is_deviation: bool,
) -> Option<String> {
    let half_turn_ms = disks.half_turn_ms();
    let here = format!(
        "here a file system on one disk image takes {} ms, and the limit is {}{}",
        figure_text(result.measured),
        result.limit,
        result
            .machine
            .as_ref()
            .or(result.because.as_ref())
            .map(|figures| format!(" ({figures})"))
            .unwrap_or_default()
    );
    let speed = disks.speed;
    let over_iscsi = |column| {
        let table = match value(cell, "scheme")? {
            "nfs" => LU_FILES_NFS,
            "smb" => LU_FILES_SMB,
            _ => return None,
        };
        table.one(
            &[("scheme", "iscsi"), ("op", value(cell, "op")?), ("size_kib", value(cell, "size_kib")?)],
            column,
        )
    };
    if is_deviation {
        let column = "std_ms";
        // Delays that know nothing of each other: their variances add up.
        let accesses = (published_mean(cell)? / half_turn_ms).max(1.0);
        let of_all = |of_one: f64| {
            let of_all = of_one * accesses.sqrt();
            (of_all >= published * ACCESSES_SHARE && published >= of_one).then_some(of_all)
        };
        let room = |of_all| {
            format!(
                "and up to {} ms of as many as the published mean has room for; {here}",
                figure_text(of_all)
            )
        };
        // A block is anywhere on a turn.
        let of_turn = 2.0 * half_turn_ms / 12_f64.sqrt();
        if let Some(of_all) = of_all(of_turn) {
            return Some(format!(
                "disks: one that turns {speed} times a minute makes a deviation of {} ms for each access by its turning alone, {}",
                figure_text(of_turn),
                room(of_all)
            ));
        }
        // Arms and the network have their part, too.
        if let Some((of_read, of_all)) =
            read_deviation(cell).and_then(|of_read| Some((of_read, of_all(of_read)?)))
        {
            return Some(format!(
                "disks: in table 3 of the paper one read of this length over iSCSI, at random and without a file system, has a deviation of {} ms on the same disks, {}",
                figure_text(of_read),
                room(of_all)
            ));
        }
        let iscsi = over_iscsi(column)?;
        if iscsi < published * (1.0 - OFF) {
            // Of two delays that know nothing of each other, the variances add up.
            let server = (published * published - iscsi * iscsi).sqrt();
            return Some(format!(
                "disks and server: over iSCSI, with the same disks and without this server, the paper has a deviation of {} ms; what the server and its protocol add \
                 has one of {} ms, if it does not depend on the disks; {here}",
                figure_text(iscsi),
                figure_text(server)
            ));
        }
        return Some(format!(
            "disks and hosts: over iSCSI, with the same disks and without this server, the paper has a deviation of {} ms as well; {here}",
            figure_text(iscsi)
        ));
    }
    if let Some(iscsi) = over_iscsi("mean_ms").filter(|iscsi| *iscsi >= half_turn_ms && *iscsi < published) {
        return Some(format!(
            "disks and server: {} of the published {} ms are there over iSCSI as well, with the same disks, of which one that turns {speed} times a minute takes \
             {} ms for each access by half a turn; {} are what the server and its protocol add; {here}",
            figure_text(iscsi),
            figure_text(published),
            figure_text(half_turn_ms),
            figure_text(published - iscsi)
        ));
    }
    // None of the paper's files was in a cache, so that each took one access at least.
    (published >= half_turn_ms && over_iscsi("mean_ms").is_none()).then(|| {
        format!(
            "disks: an access to one that turns {speed} times a minute waits for {} ms of turning on average, and {} ms there have room for {:.0} of \
             them; {here}",
            figure_text(half_turn_ms),
            figure_text(published),
            (published / half_turn_ms).floor()
        )
    })
}

/// The deviation of one read over iSCSI, of the length of a cell's files and over its network.
fn read_deviation(cell: &Cell) -> Option<f64> {
    let network = value(cell, "network")?;
    let (_, configuration) = CONFIGURATIONS.iter().find(|(own, _)| *own == network)?;
    let wanted = [("configuration", *configuration), ("size_kib", value(cell, "size_kib")?)];
    (value(cell, "op")? == "read").then(|| LU_SPREAD.one(&wanted, "std_ms"))?
}

/// The mean time of the files whose deviation a cell has.
fn published_mean(cell: &Cell) -> Option<f64> {
    let table = if value(cell, "scheme")? == "smb" { LU_FILES_SMB } else { LU_FILES_NFS };
    let wanted = ["scheme", "op", "size_kib"].map(|name| value(cell, name).map(|value| (name, value)));
    let wanted: Option<Vec<(&str, &str)>> = wanted.into_iter().collect();
    table.one(&wanted?, "mean_ms")
}

/// How much of the files a page cache had, by its hit rate: both are of the same length, and kernels do not fill them with the same.
pub(super) fn cached(files: u32, measured_percent: f64, published_percent: f64) -> Option<String> {
    let all_bytes = f64::from(files) * FILE_BYTES;
    let held = |percent: f64| percent / 100.0 * all_bytes;
    let most = PAGE_CACHE_BYTES.min(all_bytes);
    // More than fits was not in memory, and less than half of what was there is no other kernel's way.
    let is_possible =
        held(measured_percent) <= most * (1.0 + OFF) && measured_percent >= published_percent / 2.0;
    let mebibytes = |bytes: f64| figure_text(bytes / 1_048_576.0);
    is_possible.then(|| {
        format!(
            "cache: by these rates {} MiB of the files were in memory there and {} MiB here, of {} MiB that there are for all of a page cache; two kernels \
             fill it in their own ways, and what ours reads ahead of neighbouring files counts against it",
            mebibytes(held(published_percent)),
            mebibytes(held(measured_percent)),
            mebibytes(most)
        )
    })
}
