//! Why more came than the model expects: what it does not know.

use lunette_workload::model::Limit;

use super::link_of;
use crate::report::figure_text;
use crate::study::collected::STOLEN_MAX;
use crate::study::lasted::Lasted;
use crate::study::probe::{
    CommandTurn, ORDER_CARRIES, PEER_WINDOW, PEER_WINDOWS_CARRY, Probe, WINDOWS_CARRY,
};
use crate::study::{Cell, CellResult};

/// Names what the model does not know, where more came than it expects.
///
/// `turn` is what the model has of its commands, and `lasted` how long all runs were measured.
pub(in crate::study) fn above(
    cell: &Cell,
    result: &CellResult,
    limit: Option<Limit>,
    turn: Option<&CommandTurn>,
    lasted: Lasted,
) -> Option<String> {
    if !result.exceeds_model() {
        return None;
    }
    if let Probe::Login(_) = cell.probe {
        return sooner(cell, result);
    }
    match limit? {
        Limit::TcpWindow => window(result),
        Limit::Loss => {
            let by_windows = || by_windows(cell, result, lasted).filter(|_| lasted.is_final);
            by_chance(cell, result, lasted).or_else(by_windows)
        }
        Limit::Window => [stolen_echo, awake, held_up_echo].iter().find_map(|reason| reason(result, turn?)),
        // No link carries more than its rate.
        Limit::Link => None,
    }
}

fn figure(result: &CellResult, name: &str) -> Option<f64> {
    result.further.iter().find(|one| one.name == name).map(|one| one.measured)
}

/// Whether this is what the model expects with something else in the place of what it knows, and what came: no more than that by as
/// much as a reason is asked for.
fn is_it(result: &CellResult, predicted: f64) -> bool {
    result.model.is_some_and(|model| result.is_near(predicted, model) && !result.exceeds(predicted))
}

/// The windows that receivers' kernels made of buffers that are set, where that is what came.
fn window(result: &CellResult) -> Option<String> {
    let window_kb = figure(result, PEER_WINDOW)?;
    let carried = figure(result, PEER_WINDOWS_CARRY).filter(|carried| is_it(result, *carried))?;
    (result.unit == "MB/s").then(|| {
        format!(
            "TCP's buffers are set, and a kernel makes a window of them by what packets really take: the receiver's was {} KB, which let {} MB/s through in \
             the round trips that TCP measured",
            figure_text(window_kb),
            figure_text(carried)
        )
    })
}

/// How many times its deviation a rate may be off its mean: one of some hundred is further off by chance.
const DEVIATIONS: f64 = 3.0;

/// All was too short for a mean over losses, which the model's rate is; how many there were is held against the link in `conclusion`.
/// Where losses are independent, the deviation of what is between two of them is its mean, and that of the mean over n of them the
/// root of n less. A rate varies less, by a power below one of that.
fn by_chance(cell: &Cell, result: &CellResult, lasted: Lasted) -> Option<String> {
    let link = link_of(cell)?;
    let model = result.model.filter(|_| result.unit == "MB/s")?;
    // Far fewer than a double counts; where none was lost yet, as many as there are at the model's rate.
    let expected =
        model * 1e6 * lasted.all_s / f64::from(link.mtu) * link.up.loss.mean().max(link.down.loss.mean());
    let losses = if lasted.lost > 0 { lasted.lost as f64 } else { expected };
    let most = model * (1.0 + DEVIATIONS / losses.sqrt());
    (expected > 0.0 && result.measured <= most).then(|| {
        format!(
            "the model's rate under losses is a mean over many of them, and the line lost {} packets of data in the {} s of all runs, which may leave {} by chance",
            lasted.lost,
            figure_text(lasted.all_s),
            figure_text(most)
        )
    })
}

/// A connection that has lost so few packets may not yet have the window that many leave: it begins with one that grows until the first
/// loss, and each halves it.
const FEW_LOSSES: u64 = 10;

/// TCP's windows let through what came, after losses that were few for each connection.
fn by_windows(cell: &Cell, result: &CellResult, lasted: Lasted) -> Option<String> {
    let Probe::Disk(disk) = &cell.probe else { return None };
    let off = |carried: f64| (result.measured - carried).abs();
    let windows = figure(result, WINDOWS_CARRY).map(|carried| (carried, ""));
    let in_order =
        figure(result, ORDER_CARRIES).map(|carried| (carried, ", where commands are taken in their order"));
    let carried = windows.into_iter().chain(in_order);
    let (carried, how) = carried.min_by(|one, other| off(one.0).total_cmp(&off(other.0)))?;
    // In each run, of the packets with data.
    let runs = result.runs.len().max(1) as u64;
    let (lost, dropped) = (lasted.lost.div_ceil(runs), result.dropped);
    let are_few = lost + dropped > 0 && lost + dropped <= FEW_LOSSES * u64::from(disk.connections);
    (are_few && is_it(result, carried) && result.unit == "MB/s").then(|| {
        format!(
            "{lost} packets with data were lost in a run and {dropped} dropped by queues, which are too few to leave the windows that the model expects of many: what TCP's congestion windows let through \
             meanwhile is {} MB/s{how}",
            figure_text(carried)
        )
    })
}

/// What the model would say if each round trip of a command took so much less, in microseconds.
fn sooner_by(result: &CellResult, turn: &CommandTurn, saved_us: f64) -> Option<f64> {
    let turn_us = turn.time.as_secs_f64() * 1e6;
    let left = 1.0 - turn.round_trips * saved_us / turn_us;
    let model = result.model.filter(|_| turn_us > 0.0 && left > 0.0)?;
    Some(if result.unit == "ms" { model * left } else { model / left })
}

/// The host held up what the model's round trip was measured with, and as much came as without that.
fn stolen_echo(result: &CellResult, turn: &CommandTurn) -> Option<String> {
    let told_us = result.model_round_trip_us.filter(|_| result.echo_stolen > STOLEN_MAX)?;
    let without = sooner_by(result, turn, told_us * result.echo_stolen)?;
    is_it(result, without).then(|| {
        format!(
            "the model's round trip was measured while the host gave {:.0} % of the processor time that this machine wanted to others, without which it \
             would say {}",
            result.echo_stolen * 100.0,
            figure_text(without)
        )
    })
}

/// A round trip of headers was shorter than the model's, which was not measured at the same moment, and as much came as that allows.
fn held_up_echo(result: &CellResult, turn: &CommandTurn) -> Option<String> {
    let times = result.model_round_trip_us.zip(result.echo_us).filter(|(told, header)| header < told);
    let (told_us, header_us) = times?;
    let with_that = sooner_by(result, turn, told_us - header_us)?;
    is_it(result, with_that).then(|| {
        format!(
            "the model's round trip is {} µs, and 48 bytes each way took {} by plain TCP at another moment, with which it would say {}",
            figure_text(told_us),
            figure_text(header_us),
            figure_text(with_that)
        )
    })
}

/// The target was awake for its commands, which who waits for the bytes of plain TCP is not, and as much came as that saves.
fn awake(result: &CellResult, turn: &CommandTurn) -> Option<String> {
    let times = result.round_trip_us.zip(result.echo_us).filter(|(command, header)| command < header);
    let (command_us, header_us) = times?;
    let with_that = sooner_by(result, turn, header_us - command_us)?;
    is_it(result, with_that).then(|| {
        format!(
            "TEST UNIT READY took {} µs, and 48 bytes each way took {} by plain TCP, whose far end has to be woken: if the target is awake for each command, as \
             it was for those, the model would say {}",
            figure_text(command_us),
            figure_text(header_us),
            figure_text(with_that)
        )
    })
}

/// A login whose round trips were all short ones: by no more than jitter makes of each.
fn sooner(cell: &Cell, result: &CellResult) -> Option<String> {
    let link = link_of(cell)?;
    let jitter_ms = (link.up.jitter.most + link.down.jitter.most).as_secs_f64() * 1e3;
    let each_ms = result.echo_us.map_or(link.round_trip().as_secs_f64() * 1e3, |us| us / 1e3);
    let model = result.model?;
    (result.measured >= model - model / each_ms * jitter_ms).then(|| {
        format!(
            "round trips of this link are up to {} ms shorter or longer, and a few logins have few of them",
            figure_text(jitter_ms)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::study::{Further, study};

    fn lasted(lost: u64) -> Lasted {
        Lasted { all_s: 1.0, lost, is_final: true }
    }

    /// A command of one round trip that takes so long by the model.
    fn turn(us: u64) -> CommandTurn {
        CommandTurn {
            time: Duration::from_micros(us),
            round_trips: 1.0,
            round_trip: Duration::ZERO,
            at_ends: Duration::ZERO,
            commands: 1,
            line: Duration::ZERO,
            is_packed: false,
            is_asked: false,
            ends: Duration::ZERO,
        }
    }

    #[test]
    fn more_than_the_model_has_is_what_a_receivers_window_let_through() {
        let cells = (study("dr-wan").expect("a study").cells)(1);
        let is_it = |cell: &&Cell| cell.link.as_deref() == Some("gige,rtt=50ms,loss=0%");
        let cell = cells.iter().find(is_it).expect("a cell");
        let of = |measured, carried: &[f64], limit| {
            let mut further = vec![Further::new(PEER_WINDOW, 85.5, "KB")];
            further.extend(carried.iter().map(|carried| Further::new(PEER_WINDOWS_CARRY, *carried, "MB/s")));
            let figures = CellResult::of(Vec::new(), measured, "MB/s");
            above(cell, &CellResult { model: Some(1.31), further, ..figures }, limit, None, lasted(0))
        };
        let text = of(1.62, &[1.71], Some(Limit::TcpWindow)).unwrap_or_default();
        assert!(text.contains("the receiver's was 85.5 KB, which let 1.71 MB/s through"), "{text}");
        // The window was not as large, or so large that it held up nothing; nobody knows; that is no reason for anything else.
        for carried in [&[1.31] as &[f64], &[2.1], &[]] {
            assert_eq!(of(1.62, carried, Some(Limit::TcpWindow)), None, "{carried:?}");
        }
        assert_eq!(of(1.62, &[1.71], Some(Limit::Loss)), None, "this line loses nothing");
        assert_eq!((of(1.40, &[1.40], Some(Limit::TcpWindow)), of(1.62, &[1.71], None)), (None, None));
        assert_eq!(
            (of(1.62, &[1.71], Some(Limit::Link)), of(1.62, &[1.71], Some(Limit::Window))),
            (None, None)
        );
    }

    #[test]
    fn an_echo_that_was_held_up_is_a_reason_for_as_much_as_it_made_of_the_model() {
        let cells = (study("dr-wan").expect("a study").cells)(1);
        let of = |(measured, unit), echo_stolen, limit| {
            let figures = CellResult::of(Vec::new(), measured, unit);
            let result =
                CellResult { model: Some(1.31), model_round_trip_us: Some(1000.0), echo_stolen, ..figures };
            above(&cells[0], &result, Some(limit), Some(&turn(1000)), lasted(0))
        };
        let text = of((1.62, "MB/s"), 0.2, Limit::Window).unwrap_or_default();
        assert!(text.contains("gave 20 %") && text.ends_with("it would say 1.64"), "{text}");
        assert!(of((1.05, "ms"), 0.2, Limit::Window).is_some());
        // 2.62 would have come; less than that was held up; a full line has no round trips.
        assert_eq!(of((1.62, "MB/s"), 0.5, Limit::Window), None);
        assert_eq!(of((1.62, "MB/s"), 0.04, Limit::Window), None);
        assert_eq!(of((1.62, "MB/s"), 0.2, Limit::Link), None);
    }

    #[test]
    fn a_round_trip_that_was_held_up_is_a_reason_where_that_of_headers_was_as_much_shorter() {
        let cells = (study("dalgic-sweep").expect("a study").cells)(1);
        let of = |measured, echo_us, limit| {
            let result = CellResult {
                model: Some(9.88),
                model_round_trip_us: Some(386.0),
                echo_us,
                ..CellResult::of(Vec::new(), measured, "MB/s")
            };
            above(&cells[0], &result, Some(limit), Some(&turn(386)), lasted(0))
        };
        let text = of(19.0, Some(181.0), Limit::Window).unwrap_or_default();
        assert!(text.contains("386 µs") && text.contains("took 181") && text.ends_with("say 21.1"), "{text}");
        assert_eq!(of(12.7, Some(181.0), Limit::Window), None, "that is less than it makes");
        assert_eq!(of(27.0, Some(181.0), Limit::Window), None, "that is more than it makes");
        let others = [of(19.0, Some(386.0), Limit::Window), of(19.0, None, Limit::Window)];
        assert_eq!(others, [None, None]);
        assert_eq!(of(19.0, Some(181.0), Limit::Link), None);
    }

    #[test]
    fn a_target_that_was_awake_is_a_reason_for_what_it_saved_of_a_command() {
        let cells = (study("dalgic-lan").expect("a study").cells)(1);
        let of = |(measured, unit), round_trip_us, turn_us, limit| {
            let result = CellResult {
                model: Some(8.0),
                round_trip_us,
                echo_us: Some(108.0),
                model_round_trip_us: Some(108.0),
                ..CellResult::of(Vec::new(), measured, unit)
            };
            above(&cells[0], &result, Some(limit), Some(&turn(turn_us)), lasted(0))
        };
        let text = of((9.0, "MB/s"), Some(94.0), 110, Limit::Window).unwrap_or_default();
        assert!(
            text.contains("took 94.0 µs") && text.contains("took 108") && text.ends_with("say 9.17"),
            "{text}"
        );
        assert!(of((7.0, "ms"), Some(94.0), 110, Limit::Window).is_some());
        // Most of a long command is not the round trip.
        assert_eq!(of((9.2, "MB/s"), Some(94.0), 500, Limit::Window), None);
        assert_eq!(of((11.2, "MB/s"), Some(94.0), 110, Limit::Window), None, "that is more than it saved");
        let saved_nothing = [Some(108.0), Some(120.0), None];
        assert_eq!(saved_nothing.map(|us| of((9.0, "MB/s"), us, 110, Limit::Window)), [None, None, None]);
        assert_eq!(of((9.0, "MB/s"), Some(94.0), 110, Limit::Link), None, "a full line has no round trips");
    }

    #[test]
    fn a_few_losses_are_no_mean_and_many_are() {
        let cells = (study("dalgic-connections").expect("a study").cells)(1);
        let is_it = |cell: &&Cell| cell.link.as_deref() == Some("oc3-50,queue=16M,loss=0.1%");
        let cell = cells.iter().find(is_it).expect("a cell");
        let of = |measured, lost| {
            let result = CellResult { model: Some(1.5), ..CellResult::of(Vec::new(), measured, "MB/s") };
            above(cell, &result, Some(Limit::Loss), None, lasted(lost))
        };
        // Four of them may be two and a half times as far apart, and no more.
        let text = of(3.7, 4).unwrap_or_default();
        assert!(
            text.contains("lost 4 packets of data in the 1.00 s") && text.ends_with("leave 3.75 by chance"),
            "{text}"
        );
        assert_eq!(of(3.8, 4), None);
        assert!(of(3.8, 2).is_some() && of(2.0, 400).is_none());
        // At that rate there is one in a second.
        assert!(of(5.9, 0).is_some() && of(6.1, 0).is_none());
    }

    #[test]
    fn few_losses_have_not_cut_windows_yet() {
        let cells = (study("dalgic-connections").expect("a study").cells)(1);
        let wanted = [("loss_percent", "0.1"), ("rtt_ms", "50"), ("connections", "2"), ("figure", "rate")];
        let has =
            |cell: &Cell, pair: &(&str, &str)| cell.parameters.iter().any(|own| (own.0, &*own.1) == *pair);
        let cell = cells.iter().find(|cell| wanted.iter().all(|pair| has(cell, pair))).expect("a cell");
        let of = |measured, lost, [windows, order]: [f64; 2], limit, is_final| {
            let further = vec![
                Further::new(WINDOWS_CARRY, windows, "MB/s"),
                Further::new(ORDER_CARRIES, order, "MB/s"),
            ];
            let figures = CellResult::of(Vec::new(), measured, "MB/s");
            let result = CellResult { model: Some(2.2), lost, further, ..figures };
            above(cell, &result, Some(limit), None, Lasted { all_s: 15.0, lost, is_final })
        };
        let text = of(7.0, 19, [6.5, 3.0], Limit::Loss, true).unwrap_or_default();
        assert!(
            text.starts_with("19 packets with data were lost in a run and 0 dropped")
                && text.ends_with("is 6.50 MB/s"),
            "{text}"
        );
        let text = of(7.0, 19, [14.0, 6.5], Limit::Loss, true).unwrap_or_default();
        assert!(text.ends_with("is 6.50 MB/s, where commands are taken in their order"), "{text}");
        // Farther off than windows are seen; nothing was lost, or much; no link loses its rate; another run may tell.
        for (measured, lost, windows, limit, is_final) in [
            (8.0, 19, 6.5, Limit::Loss, true),
            (7.0, 0, 6.5, Limit::Loss, true),
            (7.0, 21, 6.5, Limit::Loss, true),
            (7.0, 19, 6.5, Limit::Link, true),
            (7.0, 19, 6.5, Limit::Loss, false),
        ] {
            assert_eq!(
                of(measured, lost, [windows, 1.0], limit, is_final),
                None,
                "{measured} {lost} {windows}"
            );
        }
    }
}
