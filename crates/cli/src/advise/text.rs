//! An advice for people.

use std::fmt::Write;

use super::{Direction, GIVEN, Path, TIMEOUTS, Told, Workload};
use crate::initiator::table;

/// The path, what is to be expected, what lifts it, and what came of it.
pub(super) fn text(told: &Told) -> String {
    let path = &told.path;
    let mut text = format!(
        "path: {}, {:.3} ms there and back, packets of {} bytes",
        ways(path, "", |way| in_units(way.rate_bits_per_s.map(|rate| rate / 1e6), 1, "Mb/s")),
        path.round_trip_ms,
        path.mtu_bytes
    );
    if path.up.loss_percent + path.down.loss_percent > 0.0 {
        let lost = |way: &Direction| match way.losses_together {
            together if together > 1.0 => format!("{:.4} % lost, {together:.1} together", way.loss_percent),
            _ => format!("{:.4} % lost", way.loss_percent),
        };
        let _ = write!(text, ", {}", ways(path, "", lost));
    }
    if path.up.tcp_window_bytes.is_some() {
        let window =
            |way: &Direction| way.tcp_window_bytes.map_or(String::new(), |bytes| format!("{bytes} bytes"));
        let _ = write!(text, ", TCP windows of {}", ways(path, "", window));
    }
    text.push('\n');
    let (timeouts, of_link): (Vec<&str>, Vec<&str>) =
        told.not_modelled.iter().partition(|name| **name == TIMEOUTS);
    if !of_link.is_empty() {
        let _ = writeln!(text, "not in the model: {} of the link", of_link.join(", "));
    }
    if !timeouts.is_empty() {
        text += "not in the model: timeouts of TCP, after losses that leave nothing of what is under way\n";
    }
    if let Some(seen) = &told.seen {
        let _ = write!(text, "seen: {:.2} MB/s read by one session", seen.one_session_mb_per_s);
        if let Some(rate) = seen.several_sessions_mb_per_s {
            let _ = write!(text, ", {rate:.2} by several");
        }
        let _ = writeln!(text, "\nagreed: {}", seen.negotiated);
        if let Some(link) = &seen.link {
            let _ = writeln!(text, "over: {link}");
        }
        if seen.is_proxy {
            text +=
                "That is no network: a proxy loses nothing, and TCP sees neither its delay nor its rate.\n";
        }
    }
    let line = |way: &Direction, unit| in_units(way.line_mb_per_s, 2, unit);
    let line = if told.line_from == GIVEN {
        format!("the line carries {}", ways(path, " each way", |way| line(way, "MB/s of data")))
    } else {
        format!("the line is taken for the {} that {} got", line(&path.down, "MB/s"), told.line_from)
    };
    let Workload { sizes, size_bytes, read_percent, depth } = &told.workload;
    let (sizes, mean) = if sizes.contains(',') {
        (format!("{sizes}, {size_bytes:.0} bytes on average"), " and on average")
    } else {
        (format!("{size_bytes:.0} bytes"), "")
    };
    let _ = writeln!(
        text,
        "workload: {sizes}, {read_percent} % reads, {} under way{}\n\n\
         {}{:.2} MB/s are to be expected, limited by {}; {line}.\n\
         Alone{mean}, a read takes {:.2} ms, and a write {:.2} ms with {} round trip{}.",
        told.settings.window,
        if *depth > told.settings.window {
            format!(" of {depth}: the target lets no more in")
        } else {
            String::new()
        },
        at_most(told.is_upper_bound),
        told.mb_per_s,
        told.limit,
        told.read_alone_ms,
        told.write_alone_ms,
        told.write_round_trips,
        if told.write_round_trips == 1 { "" } else { "s" }
    );
    if told.steps.is_empty() {
        let other = if told.connections_may_help.is_some() { "other " } else { "" };
        let _ = write!(text, "\nNo {other}setting lifts that.\n");
    } else {
        let mut rows = vec![["with", "MB/s", "limited by"].map(str::to_owned).to_vec()];
        let lines = told.steps.iter();
        rows.extend(lines.map(|step| {
            vec![
                step.change.clone(),
                format!("{}{:.2}", at_most(step.is_upper_bound), step.mb_per_s),
                step.limit.to_owned(),
            ]
        }));
        let _ = write!(text, "\n{}", table(0, &rows));
    }
    if let Some(count) = told.connections_may_help {
        let _ = writeln!(
            text,
            "More connections, up to {count}, may bring more. How much is not in the model: a target takes the writes of a session in \
             their order, so that each connection waits for what others have lost. --connections N --prove tries it."
        );
    }
    for commands in &told.commands {
        let _ = writeln!(text, "\n{}:", commands.system);
        for line in &commands.lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text + &proof(told)
}

/// What is to be said of both directions, once if it is the same.
fn ways(path: &Path, both: &str, say: impl Fn(&Direction) -> String) -> String {
    let (up, down) = (say(&path.up), say(&path.down));
    if up == down { up + both } else { format!("{up} up, {down} down") }
}

/// Before a rate that nobody promises.
const fn at_most(is_upper_bound: bool) -> &'static str {
    if is_upper_bound { "at most " } else { "" }
}

fn in_units(value: Option<f64>, decimals: usize, unit: &str) -> String {
    value.map_or("any rate".to_owned(), |value| format!("{value:.decimals$} {unit}"))
}

/// The congestion control whose losses the model has.
const MODELLED: &str = "cubic";

fn has_losses(path: &Path) -> bool {
    path.up.loss_percent > 0.0 || path.down.loss_percent > 0.0
}

fn proof(told: &Told) -> String {
    let Some(proof) = &told.proof else { return String::new() };
    let mut rows = vec![
        ["emulated", "measured MB/s", "expected", "difference", "limited by"].map(str::to_owned).to_vec(),
    ];
    rows.extend(proof.iter().map(|proof| {
        let difference = (proof.measured_mb_per_s / proof.expected_mb_per_s.max(1e-9) - 1.0) * 100.0;
        vec![
            proof.with.to_owned(),
            format!("{:.2}", proof.measured_mb_per_s),
            format!("{}{:.2}", at_most(proof.is_upper_bound), proof.expected_mb_per_s),
            format!("{difference:+.0} %"),
            proof.limit.to_owned(),
        ]
    }));
    let mut text = format!("\n{}", table(0, &rows));
    let other = proof.iter().find(|proof| proof.congestion_control != MODELLED);
    if let Some(proof) = other.filter(|_| has_losses(&told.path)) {
        let _ = writeln!(
            text,
            "Expected here is what {} makes of losses, which this machine has for an emulated link, and not {MODELLED} as above.",
            proof.congestion_control
        );
    }
    if proof.iter().any(|proof| proof.is_doubtful) {
        text += "This machine was late with packets, slower with them than the link, or lost some: the figures are of the machine, not of the link.\n";
    }
    text
}
