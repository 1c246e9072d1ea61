//! A result for people.

use lunette_lab::{BenchResult, DiskFacts, Ending, Latency, Measured, Stage, Stages};

use crate::banner::size;
use crate::initiator::{Facts, table};

/// Lines about one measurement.
pub(crate) fn text(result: &BenchResult) -> String {
    let measured = &result.measured;
    let mut facts = Facts::new();
    facts.row("disk", disk(&result.disk));
    facts.row("workload", result.workload.to_string());
    facts.some("link", result.link.clone());
    facts.some("doubt", result.link_doubt.clone());
    facts.some("doubt", result.times_doubt.clone());
    if let Some(agreed) = &result.negotiated {
        facts.row("session", agreed.to_string());
    }
    let told = match &result.ending {
        Ending::NothingMeasured(_) => "nothing".to_owned(),
        _ => rates(measured),
    };
    facts.row("measured", told);
    if result.content_seed.is_some() {
        facts.row("verified", format!("{} read and compared", size(measured.verified_bytes)));
    }
    facts.row("processor", processor(result));
    let mut troubles = Vec::new();
    let given_up =
        [&measured.read, &measured.write].into_iter().flatten().map(|latency| latency.given_up).sum();
    for (count, what) in [
        (measured.busy, "times the unit had no room"),
        (measured.again, "unit attentions"),
        (measured.session_losses, "losses of a session"),
        (measured.unserved, "arrivals still waiting at the end: the disk does not keep up"),
        (given_up, "were given up, and take longer (>=) than they had by then"),
    ] {
        if count > 0 {
            troubles.push(format!("{count} {what}"));
        }
    }
    troubles.extend(stall(measured));
    facts.some("besides", (!troubles.is_empty()).then(|| troubles.join("; ")));
    facts.row("ended", ending(&result.ending));
    facts.render(0) + &latencies(result)
}

fn disk(disk: &DiskFacts) -> String {
    let engine = disk.engine.as_ref().map(|engine| format!(", engine {engine}")).unwrap_or_default();
    let write = disk.write.map(|write| format!(", write={write}")).unwrap_or_default();
    format!("{} ({}){engine}{write}", disk.name, size(disk.capacity_bytes))
}

fn rates(measured: &Measured) -> String {
    format!(
        "{} operations in {:.1} s: {:.0}/s, {:.1} MiB/s",
        measured.operations,
        measured.seconds,
        measured.operations_per_s,
        measured.bytes_per_s / f64::from(1 << 20)
    )
}

/// What was under way at the end, where it took longer than all that counts: that is in no row below.
fn stall(measured: &Measured) -> Option<String> {
    let latencies = [&measured.read, &measured.write].into_iter().flatten();
    let longest_us = latencies.map(|latency| latency.max).fold(0.0, f64::max);
    let (operations, took_us) = (measured.under_way_at_end, measured.under_way_longest_us);
    // Of an open loop it may be among them, to three digits.
    (operations > 0 && took_us > longest_us * 1.001).then(|| {
        format!("{operations} operations under way at the end, which do not count: the longest took {took_us:.1} us")
    })
}

fn processor(result: &BenchResult) -> String {
    let measured = &result.measured;
    let share = measured.processor_s / measured.seconds.max(1e-9);
    let each_us = measured.processor_s * 1e6 / measured.operations.max(1) as f64;
    format!("{:.0} % of one, {each_us:.2} us an operation (this process)", share * 100.0)
}

fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Complete => "as planned".to_owned(),
        Ending::Interrupted => "early, on request".to_owned(),
        Ending::InterruptedFilling => "early, on request, while the range was still being written".to_owned(),
        Ending::Mismatch(what) => format!("data differ: {what}"),
        Ending::NothingMeasured(why) => format!("as planned, but {why}"),
        Ending::Refused(what) | Ending::Lost(what) => what.clone(),
    }
}

/// The parts of a latency, as far as they can be told apart.
fn stages(stages: &Stages) -> Vec<(&'static str, Option<Stage>)> {
    let late = ("late", stages.schedule);
    match &stages.told_apart {
        Some(told) => vec![
            late,
            ("command window", Some(told.command_window)),
            ("network", Some(told.network)),
            ("R2T wait", Some(told.r2t_wait)),
            ("target queue", Some(told.target_queue)),
            ("store", Some(told.store)),
            ("reply", Some(told.reply)),
            ("whole", Some(told.whole)),
        ],
        None => vec![
            late,
            ("command window", stages.command_window),
            ("network and target", stages.network_and_target),
            ("reply", stages.reply),
        ],
    }
}

fn latencies(result: &BenchResult) -> String {
    let cell = |us: f64| format!("{us:.1}");
    let row = |name: &str, latency: &Latency| {
        let columns = [
            ("min", latency.min),
            ("mean", latency.mean),
            ("p50", latency.p50),
            ("p90", latency.p90),
            ("p99", latency.p99),
            ("p999", latency.p999),
            ("p9999", latency.p9999),
            ("max", latency.max),
            ("standard_deviation", latency.standard_deviation),
        ];
        let columns = columns.map(|(name, us)| {
            let bound = if latency.at_least.contains(&name) { ">= " } else { "" };
            format!("{bound}{us:.1}")
        });
        std::iter::once(name.to_owned()).chain(columns).collect::<Vec<_>>()
    };
    let words =
        ["latency, us", "min", "mean", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "max", "deviation"];
    let mut rows = vec![words.map(str::to_owned).to_vec()];
    rows.extend(result.measured.read.as_ref().map(|latency| row("read", latency)));
    rows.extend(result.measured.write.as_ref().map(|latency| row("write", latency)));
    if rows.len() == 1 {
        return String::new();
    }
    let stage = |name: &str, stage: Stage| {
        let columns = [stage.mean, stage.p50, stage.p99, stage.max].map(cell);
        std::iter::once(name.to_owned()).chain(columns).collect::<Vec<_>>()
    };
    let words = ["of which, us", "mean", "50 %", "99 %", "max"];
    let mut parts = vec![words.map(str::to_owned).to_vec()];
    for (name, part) in stages(&result.measured.stages) {
        parts.extend(part.map(|part| stage(name, part)));
    }
    let parts = if parts.len() > 1 { format!("\n{}", table(0, &parts)) } else { String::new() };
    let told = result.measured.stages.told_apart.as_ref().map_or_else(String::new, |told| {
        format!(
            "\nThe parts are of {} of {} operations, with the target's times.\n",
            told.operations, told.of
        )
    });
    format!("\n{}{parts}{told}", table(0, &rows))
}
