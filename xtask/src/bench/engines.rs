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
use super::targets::Target;
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str = "One session over loopback; each side has a file of its own on the same disk, or behind a loop device of its \
                                  own with direct I/O.";

const ENGINES: &[&str] = &["sync", "threads", "direct", "uring", "auto"];

/// Those that go past the page cache, as fio does.
const DIRECT_ENGINES: &[&str] = &["direct", "uring"];

/// The side that is no engine.
const FIO: &str = "fio, O_DIRECT";

const DEPTHS: &[u32] = &[1, 8, 32, 128];
const BLOCK_BYTES: u64 = 4 << 10;

/// Of what local fio with io_uring does.
const LOCAL_BAR: Bar = Bar::AtLeast(0.9);

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
    let rates = interleave_warm(stand.rounds(), workloads.len(), names.len(), |row, side| {
        match (targets.get(side), local_path) {
            (Some(target), _) => {
                Ok(target.load(stand, &workloads[row], stand.until())?.measured.operations_per_s)
            }
            (None, Some(path)) => local(path, &workloads[row]).run(),
            (None, None) => anyhow::bail!("a side without a name"),
        }
    })?;
    let mut section = Section::new(title);
    section.rows =
        workloads.iter().zip(rates).map(|(workload, rates)| row(workload, &names, &rates)).collect();
    targets.into_iter().try_for_each(Target::stop)?;
    Ok(section)
}

/// One rate a round for each name.
fn row(workload: &Workload, names: &[&str], rates: &[Vec<f64>]) -> Row {
    let mut figures: Vec<Option<Figure>> = names
        .iter()
        .zip(rates)
        .map(|(name, rates)| Figure::new(*name, Unit::PerSecond, Samples::of(rates.clone())))
        .collect();
    if let Some(place) = names.iter().position(|name| *name == FIO) {
        for (name, ours) in names.iter().zip(rates).filter(|(name, _)| DIRECT_ENGINES.contains(name)) {
            let ratio = Figure::ratio(format!("{name} / fio"), ours, &rates[place]);
            figures.push(ratio.map(|figure| figure.with_bar(Some(LOCAL_BAR))));
        }
    }
    Row::new(workload.title(), figures)
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
}
