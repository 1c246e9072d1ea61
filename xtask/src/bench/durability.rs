//! What durability costs, beside `pwrite` and `fdatasync` of a local fio; a part of `bench engines`.

use anyhow::Result;

use super::engines::{WAY_STORE, WITH_WAY_BAR, with_way};
use super::fio::{self, LocalFio, Method};
use super::generator::Workload;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave_warm};
use super::targets::{Floor, Target};
use super::{Findings, Stand};

const BLOCK_BYTES: u64 = 4 << 10;

/// What 32 writes at a time give over one at a time.
const GROUP_COMMIT_BAR: Bar = Bar::AtLeast(8.0);
/// Of what `pwrite` and `fdatasync` do locally.
const FDATASYNC_BAR: Bar = Bar::AtLeast(0.9);
/// How many rows need fio.
const FDATASYNC_BARS: usize = 2;

/// Writes between two SYNCHRONIZE CACHE commands.
const FLUSH_EVERY: u32 = 100;

/// The sides, in this order.
const THROUGH_1: usize = 0;
const THROUGH_32: usize = 1;
const FDATASYNC_1: usize = 2;
const BACK_1: usize = 3;
const BACK_32: usize = 4;
const FDATASYNC_100: usize = 5;
/// The way to a target and back.
const WAY: usize = 6;
const SIDES: usize = 7;

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<Section> {
    let lun = |name: &str, mode: &str| -> Result<String> {
        Ok(format!("file:{},write={mode}", stand.file(name)?.display()))
    };
    let through = Target::lunette(stand, &lun("through.img", "through")?)?;
    let back = Target::lunette(stand, &lun("back.img", "back")?)?;
    let way = Target::floor(stand, WAY_STORE, Floor::Awake)?;
    let file = stand.file("fdatasync.img")?;
    let local = |every: u32| {
        let method = Method::Fdatasync(every);
        LocalFio { file: &file, is_write: true, depth: 1, method, seconds: stand.seconds() }.run()
    };
    let has_fio = match local(1) {
        Ok(_) => {
            findings.ran(&fio::program());
            true
        }
        Err(error) => {
            findings.skip_bars("local fio with fdatasync", FDATASYNC_BARS, &error);
            false
        }
    };
    let loaded = |target: &Target, depth: u32, flush_every: u32| {
        let workload = Workload { flush_every, ..Workload::write(BLOCK_BYTES, depth) };
        target.load(stand, &workload, stand.until()).map(|sample| sample.measured.operations_per_s)
    };
    let rates = interleave_warm(stand.rounds(), 1, SIDES, |_, side| {
        Ok(match side {
            THROUGH_1 => Some(loaded(&through, 1, 0)?),
            THROUGH_32 => Some(loaded(&through, 32, 0)?),
            BACK_1 => Some(loaded(&back, 1, FLUSH_EVERY)?),
            BACK_32 => Some(loaded(&back, 32, FLUSH_EVERY)?),
            WAY => Some(loaded(&way, 1, 0)?),
            FDATASYNC_1 if has_fio => Some(local(1)?),
            FDATASYNC_100 if has_fio => Some(local(FLUSH_EVERY)?),
            _ => None,
        })
    })?;
    let rates: Vec<Vec<f64>> =
        rates.into_iter().flatten().map(|side| side.into_iter().flatten().collect()).collect();
    let mut section = Section::new("4 KiB random write");
    section.rows = rows(&rates);
    through.stop()?;
    back.stop()?;
    way.stop()?;
    Ok(section)
}

fn rows(rates: &[Vec<f64>]) -> Vec<Row> {
    let row = |name: &str, side: usize, other: usize, bar: Bar| {
        let ratio = Figure::ratio("ratio", &rates[side], &rates[other]);
        let is_local = [FDATASYNC_1, FDATASYNC_100].contains(&other);
        let way = if is_local { &rates[WAY][..] } else { &[] };
        let with_way = Figure::ratio("beside it and the way", &rates[side], &with_way(&rates[other], way));
        Row::new(
            name,
            [
                Figure::new("Lunette", Unit::PerSecond, Samples::of(rates[side].clone())),
                Figure::new("beside", Unit::PerSecond, Samples::of(rates[other].clone())),
                ratio.map(|figure| figure.with_bar(Some(bar))),
                with_way.map(|figure| figure.with_bar(Some(WITH_WAY_BAR))),
            ],
        )
    };
    vec![
        row("write=through, depth 32, beside depth 1", THROUGH_32, THROUGH_1, GROUP_COMMIT_BAR),
        row("write=through, depth 1, beside fio, fdatasync=1", THROUGH_1, FDATASYNC_1, FDATASYNC_BAR),
        row(
            "write=back, SYNCHRONIZE CACHE after 100, depth 32, beside depth 1",
            BACK_32,
            BACK_1,
            GROUP_COMMIT_BAR,
        ),
        row(
            "write=back, SYNCHRONIZE CACHE after 100, depth 1, beside fio, fdatasync=100",
            BACK_1,
            FDATASYNC_100,
            FDATASYNC_BAR,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_have_both_bars_and_nothing_is_said_of_a_fio_that_is_not_there() {
        let cells = |rates: &[Vec<f64>]| -> Vec<Vec<String>> {
            rows(rates).iter().map(|row| row.figures.iter().map(ToString::to_string).collect()).collect()
        };
        let with_fio =
            [vec![100.0], vec![900.0], vec![105.0], vec![50.0], vec![300.0], vec![100.0], vec![400.0]];
        assert_eq!(
            cells(&with_fio),
            [
                vec!["900/s", "100/s", "9.00 ≥ 8.00"],
                vec!["100/s", "105/s", "0.95 ≥ 0.90", "1.20 ≥ 0.90"],
                vec!["300/s", "50/s", "**6.00 < 8.00**"],
                vec!["50/s", "100/s", "**0.50 < 0.90**", "**0.62 < 0.90**"]
            ]
        );
        let without = [vec![100.0], vec![900.0], vec![], vec![50.0], vec![300.0], vec![], vec![400.0]];
        assert_eq!(cells(&without)[1], ["100/s"]);
        assert_eq!(cells(&without).iter().filter(|row| row.len() < 3).count(), FDATASYNC_BARS);
    }
}
