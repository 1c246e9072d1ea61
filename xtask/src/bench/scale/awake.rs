//! What it costs that a reactor stays awake between commands, and what it takes from others
//! (docs/decisions/0008-awake-between-commands.md): beside the bare loop, which sleeps whenever nothing is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::super::generator::Workload;
use super::super::own::{self, Paced};
use super::super::report::{Bar, Figure, Row, Section, Unit};
use super::super::sample::{Run, Samples, interleave_turns, interleave_warm};
use super::super::targets::{Floor, Target};
use super::super::{Findings, Stand};
use super::KIB;

/// From one read to the next, in microseconds: where being awake pays, and where it does not.
const DISTANCES_US: [u32; 4] = [20, 60, 140, 300];
/// From here on it does not.
const UNPAID_US: u32 = 140;

/// Of a processor, while a session does nothing.
const IDLE_BAR: Bar = Bar::AtMost(0.01);
/// Time awake in vain, of the time that is waited.
const VAIN_BAR: Bar = Bar::AtMost(0.125);
/// Who tries out what pays may lose little by it: where rates are steady a twentieth of the time goes to trials.
const QUEUES_BAR: Bar = Bar::AtLeast(0.95);
/// What programs that never sleep keep of the processors beside Lunette, of what they keep beside the loop.
const RIVALS_BAR: Bar = Bar::AtLeast(0.9);

/// One run at a target.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// The target's processor time for each second.
    share: f64,
    paced: Paced,
}

/// What a target costs that is asked every so often.
pub(super) fn paced(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let processors = thread::available_parallelism().context("the number of processors")?.get();
    ensure!(
        processors > 1,
        "who reads at equal distances stays awake, and needs a processor beside the target's"
    );
    let target = Target::lunette(stand, "mem:256M")?;
    let floor = Target::floor(stand, "mem:256M", Floor::Plain)?;
    let mut section = Section::new("Awake between commands, 4 KiB random reads");
    let mut idle = Vec::new();
    for _ in 0..stand.rounds() {
        let (holder, _) = stand.generator().idle(target.url(), 1, &stand.path("awake.log"))?;
        let wait = Duration::from_secs_f64(stand.seconds());
        idle.push(target.share_of_processor(|| thread::sleep(wait))?.1);
        drop(holder);
    }
    section.rows.push(Row::new("none, an idle session", [share("of a processor", &idle, Some(IDLE_BAR))]));
    let costs = interleave_warm(stand.rounds(), DISTANCES_US.len(), 2, |row, side| {
        let per_second = 1e6 / f64::from(DISTANCES_US[row]);
        let of = [&target, &floor][side];
        let run = || own::paced(stand.lunette(), of.url(), per_second, stand.seconds());
        let (paced, share) = of.share_of_processor(run)?;
        Ok(Cost { share, paced: paced? })
    })?;
    for (distance_us, sides) in DISTANCES_US.iter().zip(costs) {
        let [ours, floors] = &sides[..] else { anyhow::bail!("two sides") };
        let of = |runs: &[Cost], what: fn(&Cost) -> f64| runs.iter().map(what).collect::<Vec<f64>>();
        let (our_shares, floor_shares) = (of(ours, |cost| cost.share), of(floors, |cost| cost.share));
        let more: Vec<f64> = our_shares.iter().zip(&floor_shares).map(|(ours, floor)| ours - floor).collect();
        let (medians, floor_medians) = (of(ours, |cost| cost.paced.p50), of(floors, |cost| cost.paced.p50));
        let bar = (*distance_us >= UNPAID_US).then_some(VAIN_BAR);
        section.rows.push(Row::new(
            format!("{distance_us} µs apart"),
            [
                share("of a processor", &our_shares, None),
                share("a floor's", &floor_shares, None),
                share("more than a floor's", &more, bar),
                Figure::new("median", Unit::Microseconds, Samples::of(medians.clone())),
                Figure::new("a floor's median", Unit::Microseconds, Samples::of(floor_medians.clone())),
                Figure::ratio("median to a floor's", &medians, &floor_medians),
            ],
        ));
    }
    target.stop()?;
    Ok(section)
}

/// What it brings, and costs, that queues are waited for awake where that pays: beside the same target that always sleeps.
pub(super) fn queues(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let workloads = [
        Workload::read(4 * KIB, 8),
        Workload::write(4 * KIB, 8),
        Workload::read(4 * KIB, 32),
        Workload::write(4 * KIB, 32),
        Workload::read(512 * KIB, 8),
    ];
    let adaptive = Target::lunette(stand, "mem:256M")?;
    let asleep = Target::lunette_with(stand, "mem:256M", &["--poll=never"])?;
    let samples = interleave_turns(stand.rounds(), stand.turns(), workloads.len(), 2, |row, side| {
        let workload = &workloads[row];
        Ok(Some([&adaptive, &asleep][side].load(stand, workload, stand.turn())?.run(workload.block_bytes)))
    })?;
    let mut section = Section::new("Queues, one session, memory");
    for (workload, sides) in workloads.iter().zip(&samples) {
        let [adaptive, asleep] = &sides[..] else { anyhow::bail!("two sides") };
        let [adaptive_rates, asleep_rates] = [adaptive, asleep].map(|runs| Run::rates(runs));
        let [adaptive_us, asleep_us] = [adaptive, asleep].map(|runs| Run::processor_us(runs));
        let rate = |column: &str, rates: &[f64]| {
            Figure::new(column, Unit::of_rate(workload.block_bytes), Samples::of(rates.to_vec()))
        };
        let time = |column: &str, times: &[f64]| {
            Figure::new(column, Unit::Microseconds, Samples::of(times.to_vec()))
        };
        section.rows.push(Row::new(
            workload.title(),
            [
                rate("awake where it pays", &adaptive_rates),
                rate("always asleep", &asleep_rates),
                Figure::ratio("ratio", &adaptive_rates, &asleep_rates)
                    .map(|figure| figure.with_bar(Some(QUEUES_BAR))),
                time("processor time", &adaptive_us),
                time("asleep, processor time", &asleep_us),
                Figure::ratio("ratio of processor time", &adaptive_us, &asleep_us),
            ],
        ));
    }
    adaptive.stop()?;
    asleep.stop()?;
    Ok(section)
}

/// What is left for programs that never sleep, one for each processor, beside one read after the other and beside a queue.
pub(super) fn rivals(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let target = Target::lunette(stand, "mem:256M")?;
    let floor = Target::floor(stand, "mem:256M", Floor::Plain)?;
    let workloads = [Workload::default(), Workload::read(4 * KIB, 32)];
    let samples = interleave_warm(stand.rounds(), workloads.len(), 2, |row, side| {
        let of = [&target, &floor][side];
        let (load, kept) = beside_rivals(|| of.load(stand, &workloads[row], stand.until()))?;
        Ok((load?.measured.operations_per_s, kept))
    })?;
    let rate =
        |column: &str, rates: &[f64]| Figure::new(column, Unit::PerSecond, Samples::of(rates.to_vec()));
    let mut section = Section::new("Beside programs that never sleep, one for each processor");
    for (workload, sides) in workloads.iter().zip(&samples) {
        let [ours, floors] = &sides[..] else { anyhow::bail!("two sides") };
        let (rates, kept): (Vec<f64>, Vec<f64>) = ours.iter().copied().unzip();
        let (floor_rates, floor_kept): (Vec<f64>, Vec<f64>) = floors.iter().copied().unzip();
        section.rows.push(Row::new(
            workload.title(),
            [
                share("they keep of the processors", &kept, None),
                share("beside a floor", &floor_kept, None),
                Figure::ratio("ratio", &kept, &floor_kept).map(|figure| figure.with_bar(Some(RIVALS_BAR))),
                rate("reads", &rates),
                rate("a floor's", &floor_rates),
                Figure::ratio("ratio of reads", &rates, &floor_rates),
            ],
        ));
    }
    target.stop()?;
    Ok(section)
}

fn share(column: &str, shares: &[f64], bar: Option<Bar>) -> Option<Figure> {
    let figure = Figure::new(column, Unit::Share, Samples::of(shares.to_vec()));
    figure.map(|figure| figure.with_bar(bar))
}

/// Runs this beside a thread for each processor that never sleeps, and says what part of the processors these had.
fn beside_rivals<T>(run: impl FnOnce() -> T) -> Result<(T, f64)> {
    let count = thread::available_parallelism().context("the number of processors")?.get();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let spin = || {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
        };
        let began = Instant::now();
        let rivals: Vec<_> = (0..count).map(|_| scope.spawn(spin)).collect();
        let done = run();
        is_over.store(true, Ordering::Relaxed);
        let all = began.elapsed() * u32::try_from(count)?;
        let had: Duration = rivals.into_iter().filter_map(|rival| rival.join().ok()).sum();
        ensure!(!had.is_zero(), "a program that never sleeps had nothing of any processor");
        Ok((done, had.as_secs_f64() / all.as_secs_f64()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_take_what_nobody_wants() {
        let sleep = || {
            thread::sleep(Duration::from_millis(50));
            7
        };
        let (done, kept) = beside_rivals(sleep).expect("processors");
        assert_eq!(done, 7);
        assert!(kept > 0.0 && kept < 1.1, "{kept}");
    }
}
