//! `bench engines`: each I/O engine beside fio on a local file, and what durability costs beside `pwrite` and
//! `fdatasync`.
//!
//! Every side has a file of its own on the same disk, so that no page cache is shared.

use anyhow::Result;

use super::fio::{LocalFio, Method};
use super::generator::Workload;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::targets::Target;
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str =
    "One session over loopback; each side has a file of its own on the same disk.";

const ENGINES: &[&str] = &["sync", "threads", "direct", "uring", "auto"];

/// Those that go past the page cache, as fio does.
const DIRECT_ENGINES: &[&str] = &["direct", "uring"];

const DEPTHS: &[u32] = &[1, 8, 32, 128];
const BLOCK_BYTES: u64 = 4 << 10;

/// Of what local fio with io_uring does.
const LOCAL_BAR: Bar = Bar::AtLeast(0.9);
/// What group commit gives 32 writes at a time over one at a time.
const GROUP_COMMIT_BAR: Bar = Bar::AtLeast(8.0);
/// Of what `pwrite` and `fdatasync` do locally.
const FDATASYNC_BAR: Bar = Bar::AtLeast(0.9);

/// Writes between two SYNCHRONIZE CACHE commands.
const FLUSH_EVERY: u32 = 100;

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    let engines = engines(stand, findings)?;
    let durability = durability(stand, findings)?;
    findings.sections.extend([engines, durability]);
    Ok(())
}

/// One running target for each engine that this binary and this machine have.
fn started(stand: &Stand<'_>, findings: &mut Findings) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for engine in ENGINES {
        let file = stand.file(&format!("{engine}.img"))?;
        match Target::lunette(stand, &format!("file:{},write=back,engine={engine}", file.display())) {
            Ok(target) => targets.push(target.named(engine)),
            Err(error) => findings.skip(&format!("engine={engine}"), &error),
        }
    }
    Ok(targets)
}

fn engines(stand: &Stand<'_>, findings: &mut Findings) -> Result<Section> {
    let mut workloads: Vec<Workload> = DEPTHS
        .iter()
        .flat_map(|depth| [Workload::read(BLOCK_BYTES, *depth), Workload::write(BLOCK_BYTES, *depth)])
        .collect();
    workloads.retain(|workload| stand.wants(&workload.title()));
    let mut section = Section::new("File, write=back");
    if workloads.is_empty() {
        return Ok(section);
    }
    let targets = started(stand, findings)?;
    let file = stand.file("fio.img")?;
    let local = |workload: &Workload| LocalFio {
        file: &file,
        is_write: workload.read_percent == 0,
        depth: workload.depth,
        method: Method::Ring,
        seconds: stand.seconds(),
    };
    let has_fio = local(&workloads[0]).run().inspect_err(|error| findings.skip("local fio", error)).is_ok();
    let sides = targets.len() + usize::from(has_fio);
    let rates = interleave(stand.rounds(), workloads.len(), sides, |row, side| match targets.get(side) {
        Some(target) => Ok(target.load(stand, &workloads[row], stand.until())?.measured.operations_per_s),
        None => local(&workloads[row]).run(),
    })?;
    for (workload, rates) in workloads.iter().zip(rates) {
        section.rows.push(engines_row(workload, &targets, &rates));
    }
    targets.into_iter().try_for_each(Target::stop)?;
    Ok(section)
}

/// `rates` has one more side than there are targets, if fio could be run.
fn engines_row(workload: &Workload, targets: &[Target], rates: &[Vec<f64>]) -> Row {
    let names: Vec<&str> = targets.iter().map(Target::name).collect();
    let named = names.iter().copied().chain(["fio, O_DIRECT"]);
    let mut figures: Vec<Option<Figure>> = named
        .zip(rates)
        .map(|(name, rates)| Figure::new(name, Unit::PerSecond, Samples::of(rates.clone())))
        .collect();
    if let Some(fio) = rates.get(names.len()) {
        for (name, rates) in names.iter().zip(rates).filter(|(name, _)| DIRECT_ENGINES.contains(name)) {
            let ratio = Figure::ratio(format!("{name} / fio"), rates, fio);
            figures.push(ratio.map(|figure| figure.with_bar(Some(LOCAL_BAR))));
        }
    }
    Row::new(workload.title(), figures)
}

/// The sides of the durability section, in this order.
const THROUGH_1: usize = 0;
const THROUGH_32: usize = 1;
const FDATASYNC_1: usize = 2;
const BACK_1: usize = 3;
const FDATASYNC_100: usize = 4;

fn durability(stand: &Stand<'_>, findings: &mut Findings) -> Result<Section> {
    let mut section = Section::new("4 KiB random write");
    if !stand.wants("durability") {
        return Ok(section);
    }
    let path = |name: &str| stand.file(name).map(|path| path.display().to_string());
    let through = Target::lunette(stand, &format!("file:{},write=through", path("through.img")?))?;
    let back = Target::lunette(stand, &format!("file:{},write=back", path("back.img")?))?;
    let file = stand.file("fdatasync.img")?;
    let local = |every: u32| {
        let method = Method::Fdatasync(every);
        LocalFio { file: &file, is_write: true, depth: 1, method, seconds: stand.seconds() }.run()
    };
    let has_fio = local(1).inspect_err(|error| findings.skip("local fio with fdatasync", error)).is_ok();
    let loaded = |target: &Target, workload: Workload| {
        target.load(stand, &workload, stand.until()).map(|sample| sample.measured.operations_per_s)
    };
    let rates = interleave(stand.rounds(), 1, 5, |_, side| {
        Ok(match side {
            THROUGH_1 => Some(loaded(&through, Workload::write(BLOCK_BYTES, 1))?),
            THROUGH_32 => Some(loaded(&through, Workload::write(BLOCK_BYTES, 32))?),
            BACK_1 => {
                let workload = Workload { flush_every: FLUSH_EVERY, ..Workload::write(BLOCK_BYTES, 1) };
                Some(loaded(&back, workload)?)
            }
            FDATASYNC_1 if has_fio => Some(local(1)?),
            FDATASYNC_100 if has_fio => Some(local(FLUSH_EVERY)?),
            _ => None,
        })
    })?;
    let rates: Vec<Vec<f64>> =
        rates.into_iter().flatten().map(|side| side.into_iter().flatten().collect()).collect();
    section.rows = durability_rows(&rates);
    through.stop()?;
    back.stop()?;
    Ok(section)
}

fn durability_rows(rates: &[Vec<f64>]) -> Vec<Row> {
    let row = |name: &str, side: usize, other: usize, bar: Bar| {
        let ratio = Figure::ratio("ratio", &rates[side], &rates[other]);
        Row::new(
            name,
            [
                Figure::new("Lunette", Unit::PerSecond, Samples::of(rates[side].clone())),
                Figure::new("beside", Unit::PerSecond, Samples::of(rates[other].clone())),
                ratio.map(|figure| figure.with_bar(Some(bar))),
            ],
        )
    };
    vec![
        row("write=through, depth 32, beside depth 1", THROUGH_32, THROUGH_1, GROUP_COMMIT_BAR),
        row("write=through, depth 1, beside fio, fdatasync=1", THROUGH_1, FDATASYNC_1, FDATASYNC_BAR),
        row(
            "write=back, depth 1, SYNCHRONIZE CACHE after 100, beside fio, fdatasync=100",
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
    fn durability_has_its_bars_and_leaves_out_what_fio_did_not_say() {
        let with_fio = [vec![100.0], vec![900.0], vec![105.0], vec![50.0], vec![100.0]];
        let cells = |rates: &[Vec<f64>]| -> Vec<Vec<String>> {
            let rows = durability_rows(rates);
            rows.iter().map(|row| row.figures.iter().map(ToString::to_string).collect()).collect()
        };
        assert_eq!(
            cells(&with_fio),
            [
                vec!["900/s", "100/s", "9.00 ≥ 8.00"],
                vec!["100/s", "105/s", "0.95 ≥ 0.90"],
                vec!["50/s", "100/s", "**0.50 < 0.90**"]
            ]
        );
        let without = [vec![100.0], vec![900.0], vec![], vec![50.0], vec![]];
        assert_eq!(cells(&without)[1], ["100/s"]);
    }
}
