//! Many busy sessions, and several connections of one.

use anyhow::Result;

use super::super::generator::Workload;
use super::super::report::{Bar, Figure, Row, Section, Unit};
use super::super::sample::{Run, Samples, interleave, interleave_turns};
use super::super::targets::{Floor, Target};
use super::super::{Findings, Stand, own};
use super::KIB;

const SESSIONS: &[u32] = &[1, 8, 64, 256];
/// What 256 sessions must reach of the best, and the slowest of the mean.
const TOTAL_BAR: Bar = Bar::AtLeast(0.9);
const FAIR_BAR: Bar = Bar::AtLeast(0.5);

/// A session with so many connections must not be slower than with one.
const CONNECTIONS: u32 = 4;
const CONNECTIONS_BAR: Bar = Bar::AtLeast(1.0);

pub(super) fn sessions(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let target = Target::lunette(stand, "mem:256M")?;
    // What it loses is what so many sockets and their generator cost by themselves.
    let floor = Target::floor(stand, "mem:256M", Floor::Plain)?;
    let sides: Vec<(&Target, u32)> =
        [&target, &floor].into_iter().flat_map(|of| SESSIONS.iter().map(move |count| (of, *count))).collect();
    let samples = interleave(stand.rounds(), 1, sides.len(), |_, side| {
        let (of, sessions) = sides[side];
        Ok(of.load(stand, &Workload { sessions, ..Workload::read(4 * KIB, 4) }, stand.until())?.measured)
    })?;
    let totals: Vec<Vec<f64>> = samples
        .iter()
        .flatten()
        .map(|rounds| rounds.iter().map(|measured| measured.operations_per_s).collect())
        .collect();
    let (ours, floors) = totals.split_at(SESSIONS.len());
    let (best, floor_best) = (best(ours), best(floors));
    let mut section = Section::new("Sessions, 4 KiB random read, depth 4 each");
    for (rounds, (count, (ours, floors))) in
        samples.iter().flatten().zip(SESSIONS.iter().zip(ours.iter().zip(floors)))
    {
        let per_session = rounds.iter().map(|measured| &measured.per_session);
        let fair = per_session.map(|all| all.slowest_operations_per_s / all.mean_operations_per_s).collect();
        let is_last = SESSIONS.last() == Some(count);
        section.rows.push(Row::new(
            count.to_string(),
            [
                Figure::new("all together", Unit::PerSecond, Samples::of(ours.clone())),
                Figure::ratio("of the best", ours, &best)
                    .map(|figure| figure.with_bar(is_last.then_some(TOTAL_BAR))),
                Figure::ratio("of the best of a floor", floors, &floor_best),
                Figure::new("slowest / mean", Unit::Ratio, Samples::of(fair))
                    .map(|figure| figure.with_bar(Some(FAIR_BAR))),
            ],
        ));
    }
    target.stop()?;
    Ok(section)
}

/// The rounds of the side with the largest median.
fn best(totals: &[Vec<f64>]) -> Vec<f64> {
    let median = |rounds: &Vec<f64>| Samples::of(rounds.clone()).map_or(0.0, |samples| samples.median);
    totals.iter().max_by(|a, b| median(a).total_cmp(&median(b))).cloned().unwrap_or_default()
}

pub(super) fn connections(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let target = Target::lunette(stand, "mem:256M")?;
    // It knows no order over connections: what it loses is what as many sockets, each with its part of the commands, cost by themselves.
    let floor = Target::floor(stand, "mem:256M", Floor::Plain)?;
    let workloads = [Workload::read(4 * KIB, 32), Workload::write(4 * KIB, 32), Workload::read(512 * KIB, 8)];
    // Nothing: Lunette's own initiator, at Lunette.
    let of_generator = [Some(&target), Some(&floor), None];
    let sides: Vec<_> = of_generator.iter().flat_map(|of| [(*of, 1), (*of, CONNECTIONS)]).collect();
    let samples =
        interleave_turns(stand.rounds(), stand.turns(), workloads.len(), sides.len(), |row, side| {
            let (of_generator, connections) = sides[side];
            let workload = Workload { connections, ..workloads[row].clone() };
            let Some(of_generator) = of_generator else {
                let own = own::load(stand.lunette(), target.url(), &workload, stand.turn_seconds())?;
                let is_small = Unit::of_rate(workload.block_bytes) == Unit::PerSecond;
                let rate = own.operations_per_s * if is_small { 1.0 } else { workload.block_bytes as f64 };
                return Ok(Some(Run { rate, processor_us: None }));
            };
            Ok(Some(of_generator.load(stand, &workload, stand.turn())?.run(workload.block_bytes)))
        })?;
    let mut section = Section::new("Connections of one session");
    for (workload, runs) in workloads.iter().zip(samples) {
        let rates: Vec<Vec<f64>> = runs.iter().map(|runs| Run::rates(runs)).collect();
        let unit = Unit::of_rate(workload.block_bytes);
        let figure = |name: String, side: usize| Figure::new(name, unit, Samples::of(rates[side].clone()));
        let ratio = |name: &str, side: usize| Figure::ratio(name, &rates[side + 1], &rates[side]);
        let with_bar = |figure: Option<Figure>| figure.map(|figure| figure.with_bar(Some(CONNECTIONS_BAR)));
        section.rows.push(Row::new(
            workload.title(),
            [
                figure("one".to_owned(), 0),
                figure(CONNECTIONS.to_string(), 1),
                with_bar(ratio("ratio", 0)),
                ratio("ratio of a floor", 2),
                figure("Lunette's initiator, one".to_owned(), 4),
                figure(format!("Lunette's initiator, {CONNECTIONS}"), 5),
                with_bar(ratio("ratio with Lunette's initiator", 4)),
            ],
        ));
    }
    target.stop()?;
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_side_has_the_largest_median() {
        assert_eq!(best(&[vec![1.0, 9.0, 2.0], vec![5.0, 3.0, 4.0]]), [5.0, 3.0, 4.0]);
        assert!(best(&[]).is_empty());
    }
}
