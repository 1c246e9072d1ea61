//! `bench engines`: each I/O engine beside fio on a local file and on a block device, and what durability costs
//! ([`super::durability`]).
//!
//! Every side has a file of its own on the same disk, so that no page cache is shared.

use std::path::PathBuf;

use anyhow::Result;

use super::durability;
use super::fio::{self, LocalFio, Method};
use super::generator::Workload;
use super::loop_device::LoopDevice;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave_warm};
use super::targets::{Floor, Target};
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str = "One session over loopback; each side has a file of its own on the same disk, or behind a loop device of its \
                                  own with direct I/O. \"And way\": each of fio's operations takes the time, too, in which the bare loop, \
                                  awake, answers one from memory.";

const ENGINES: &[&str] = &["sync", "threads", "direct", "uring", "auto"];

/// Those that go past the page cache, as fio does.
const DIRECT_ENGINES: &[&str] = &["direct", "uring"];

/// The side that is no engine.
const FIO: &str = "fio, O_DIRECT";

const DEPTHS: &[u32] = &[1, 8, 32, 128];
const BLOCK_BYTES: u64 = 4 << 10;

/// Of what local fio with io_uring does.
const LOCAL_BAR: Bar = Bar::AtLeast(0.9);

/// Of what local fio would do if each of its operations also took the way to a target and back.
pub(super) const WITH_WAY_BAR: Bar = Bar::AtLeast(0.9);

/// The unit of the loop that is asked for nothing but the way.
pub(super) const WAY_STORE: &str = "mem:64M";

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    let mut workloads: Vec<Workload> = DEPTHS
        .iter()
        .flat_map(|depth| [Workload::read(BLOCK_BYTES, *depth), Workload::write(BLOCK_BYTES, *depth)])
        .collect();
    workloads.retain(|workload| stand.wants(&workload.title()));
    if !workloads.is_empty() {
        let mut files = Vec::new();
        for side in ENGINES.iter().chain(&[FIO]) {
            files.push((*side, stand.file(&image(side))?));
        }
        let section = compare(stand, findings, "File, write=back", &workloads, &files)?;
        findings.sections.push(section);
        match loop_devices(stand) {
            Ok(devices) => {
                let paths: Vec<(&str, PathBuf)> =
                    devices.iter().map(|(side, device)| (*side, device.path().to_owned())).collect();
                let section = compare(stand, findings, "Block device, write=back", &workloads, &paths)?;
                findings.sections.push(section);
            }
            Err(error) => {
                let bars = workloads.len() * DIRECT_ENGINES.len();
                findings.skip_bars("a block device (loop)", bars, &error);
            }
        }
    }
    if stand.wants("durability") {
        let section = durability::measure(stand, findings)?;
        findings.sections.push(section);
    }
    Ok(())
}

fn image(side: &str) -> String {
    format!("{}.img", side.split(',').next().unwrap_or(side))
}

fn loop_devices(stand: &Stand<'_>) -> Result<Vec<(&'static str, LoopDevice)>> {
    let attach =
        |side: &&'static str| Ok((*side, LoopDevice::attach(stand.file(&format!("loop-{}", image(side)))?)?));
    DIRECT_ENGINES.iter().chain(&[FIO]).map(attach).collect()
}

/// One table of these sides, each with the file or device that it serves; fio is the last.
fn compare(
    stand: &Stand<'_>,
    findings: &mut Findings,
    title: &str,
    workloads: &[Workload],
    sides: &[(&str, PathBuf)],
) -> Result<Section> {
    let mut targets = Vec::new();
    let mut local_path = None;
    for (side, path) in sides {
        if *side == FIO {
            local_path = Some(path);
            continue;
        }
        match Target::lunette(stand, &format!("file:{},write=back,engine={side}", path.display())) {
            Ok(target) => targets.push(target.named(side)),
            Err(error) if DIRECT_ENGINES.contains(side) => {
                findings.skip_bars(&format!("engine={side}"), workloads.len(), &error);
            }
            Err(error) => findings.skip(&format!("engine={side}"), &error),
        }
    }
    let way = Target::floor(stand, WAY_STORE, Floor::Awake)?;
    let local = |path, workload: &Workload| LocalFio {
        file: path,
        is_write: workload.read_percent == 0,
        depth: workload.depth,
        method: Method::Ring,
        seconds: stand.seconds(),
    };
    if let Some(path) = local_path {
        match local(path, &workloads[0]).run() {
            Ok(_) => findings.ran(&fio::program()),
            Err(error) => {
                let beside = targets.iter().filter(|target| DIRECT_ENGINES.contains(&target.name())).count();
                findings.skip_bars("local fio", beside * workloads.len(), &error);
                local_path = None;
            }
        }
    }
    let names: Vec<&str> =
        targets.iter().map(Target::name).chain(local_path.is_some().then_some(FIO)).collect();
    let loaded = |target: &Target, workload: &Workload| -> Result<f64> {
        Ok(target.load(stand, workload, stand.until())?.measured.operations_per_s)
    };
    // The way is the last side.
    let rates = interleave_warm(stand.rounds(), workloads.len(), names.len() + 1, |row, side| {
        let workload = &workloads[row];
        Ok(match (targets.get(side), local_path) {
            (Some(target), _) => Some(loaded(target, workload)?),
            (None, Some(path)) if side < names.len() => Some(local(path, workload).run()?),
            _ if workload.depth == 1 => Some(loaded(&way, workload)?),
            _ => None,
        })
    })?;
    let mut section = Section::new(title);
    section.rows = workloads
        .iter()
        .zip(rates)
        .map(|(workload, sides)| {
            let rates: Vec<Vec<f64>> =
                sides.into_iter().map(|side| side.into_iter().flatten().collect()).collect();
            row(workload, &names, &rates)
        })
        .collect();
    targets.into_iter().chain([way]).try_for_each(Target::stop)?;
    Ok(section)
}

/// One rate a round for each name, and, where one command is under way at a time, for the way behind them.
fn row(workload: &Workload, names: &[&str], rates: &[Vec<f64>]) -> Row {
    let mut figures: Vec<Option<Figure>> = names
        .iter()
        .zip(rates)
        .map(|(name, rates)| Figure::new(*name, Unit::PerSecond, Samples::of(rates.clone())))
        .collect();
    if let Some(place) = names.iter().position(|name| *name == FIO) {
        let way = rates.get(names.len()).map_or(&[][..], Vec::as_slice);
        let with_way = with_way(&rates[place], way);
        for (name, ours) in names.iter().zip(rates).filter(|(name, _)| DIRECT_ENGINES.contains(name)) {
            let ratio = Figure::ratio(format!("{name} / fio"), ours, &rates[place]);
            figures.push(ratio.map(|figure| figure.with_bar(Some(LOCAL_BAR))));
            let ratio = Figure::ratio(format!("{name} / fio and way"), ours, &with_way);
            figures.push(ratio.map(|figure| figure.with_bar(Some(WITH_WAY_BAR))));
        }
    }
    Row::new(workload.title(), figures)
}

/// Operations a second, one after the other, of which each takes its time locally and then that of the way.
pub(super) fn with_way(local: &[f64], way: &[f64]) -> Vec<f64> {
    local.iter().zip(way).map(|(local, way)| 1.0 / (1.0 / local + 1.0 / way)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_past_the_page_cache_are_held_to_fio() {
        let rates = [vec![300.0], vec![95.0], vec![80.0], vec![100.0]];
        let names = ["threads", "direct", "uring", FIO];
        let cells = |count: usize| -> Vec<String> {
            let row = row(&Workload::read(BLOCK_BYTES, 8), &names[..count], &rates[..count]);
            row.figures.iter().map(ToString::to_string).collect()
        };
        assert_eq!(cells(4), ["300/s", "95/s", "80/s", "100/s", "0.95 ≥ 0.90", "**0.80 < 0.90**"]);
        assert_eq!(cells(3), ["300/s", "95/s", "80/s"], "no fio, no ratio");
    }

    #[test]
    fn one_after_the_other_the_way_is_on_top_of_the_disk() {
        // 10 ms of the disk's, 2.5 of the way's.
        let rates = [vec![76.0], vec![100.0], vec![400.0]];
        let row = row(&Workload::read(BLOCK_BYTES, 1), &["uring", FIO], &rates);
        let cells: Vec<String> = row.figures.iter().map(ToString::to_string).collect();
        assert_eq!(cells, ["76/s", "100/s", "**0.76 < 0.90**", "0.95 ≥ 0.90"]);
    }
}
