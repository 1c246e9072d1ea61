//! Why more came than the model expects: what it does not know.

use lunette_link::Link;
use lunette_workload::model::Limit;

use super::link_of;
use crate::report::figure_text;
use crate::study::collected::STOLEN_MAX;
use crate::study::judgement::{OFF, SAMPLED};
use crate::study::probe::{ORDER_CARRIES, Probe, WINDOWS_CARRY};
use crate::study::resolution::{self, Lasted};
use crate::study::{Cell, CellResult};

/// Names what the model does not know, where more came than it expects.
///
/// `lasted` is how long all runs were measured.
pub(in crate::study) fn above(
    cell: &Cell,
    result: &CellResult,
    limit: Option<Limit>,
    lasted: Lasted,
) -> Option<String> {
    if !result.exceeds_model() {
        return None;
    }
    if let Probe::Login(_) = cell.probe {
        return sooner(cell, result);
    }
    let reason = match limit? {
        Limit::TcpWindow => return is_of_buffer(result).then(|| window(cell, result)),
        Limit::Loss => {
            let by_windows = || by_windows(cell, result).filter(|_| lasted.is_final);
            return by_chance(cell, result, lasted.all_s).or_else(by_windows);
        }
        Limit::Window if is_of_echo(result) => format!(
            "the model's round trip was measured while the host gave {:.0} % of the processor time that this machine wanted to others",
            result.echo_stolen * 100.0
        ),
        Limit::Window if is_of_busy_echo(result) => format!(
            "the model's round trip, {} µs, was measured while this machine had other work: 48 bytes took {} µs there and back at another time",
            figure_text(result.model_round_trip_us.unwrap_or_default()),
            figure_text(result.echo_us.unwrap_or_default())
        ),
        // No link carries more than its rate, and no command takes less than its round trips: what came was under way before.
        Limit::Link | Limit::Window => {
            return resolution::of_losses(cell, result, lasted);
        }
    };
    Some(reason)
}

/// A kernel takes twice what is set for a buffer (socket(7), SO_RCVBUF), and no window is larger than that.
fn is_of_buffer(result: &CellResult) -> bool {
    result.model.is_some_and(|model| result.measured <= 2.0 * model * (1.0 + OFF))
}

/// How many times its deviation a rate may be off its mean: one of some hundred is further off by chance.
const DEVIATIONS: f64 = 3.0;

/// All was too short for a mean over losses, which the model's rate is; how many there were is held against the link in `conclusion`.
/// Where losses are independent, the deviation of what is between two of them is its mean, and that of the mean over n of them the
/// root of n less. A rate varies less, by a power below one of that.
fn by_chance(cell: &Cell, result: &CellResult, lasted_s: f64) -> Option<String> {
    let link = link_of(cell)?;
    let model = result.model.filter(|_| result.unit == "MB/s")?;
    let packets = model * 1e6 * lasted_s / f64::from(link.mtu);
    let losses = packets * link.up.loss.mean().max(link.down.loss.mean());
    let is_few = losses > 0.0 && result.measured <= model * (1.0 + DEVIATIONS / losses.sqrt());
    is_few.then(|| {
        format!(
            "the model's rate under losses is a mean over many of them, and at that rate there are {} in the {} s of all runs",
            figure_text(losses),
            figure_text(lasted_s)
        )
    })
}

/// A connection that has lost so few packets may not yet have the window that many leave: it begins with one that grows until the first
/// loss, and each halves it.
const FEW_LOSSES: u64 = 10;

/// TCP's windows let through what came, after losses that were few for each connection.
fn by_windows(cell: &Cell, result: &CellResult) -> Option<String> {
    let Probe::Disk(disk) = &cell.probe else { return None };
    let figure = |name| result.further.iter().find(|one| one.name == name).map(|one| one.measured);
    let off = |carried: f64| (result.measured - carried).abs();
    let windows = figure(WINDOWS_CARRY).map(|carried| (carried, ""));
    let in_order =
        figure(ORDER_CARRIES).map(|carried| (carried, ", where commands are taken in their order"));
    let carried = windows.into_iter().chain(in_order);
    let (carried, how) = carried.min_by(|one, other| off(one.0).total_cmp(&off(other.0)))?;
    let lost = result.lost + result.dropped;
    let are_few = lost > 0 && lost <= FEW_LOSSES * u64::from(disk.connections);
    let is_it = Some(carried) > result.model && off(carried) <= carried * SAMPLED;
    (are_few && is_it && result.unit == "MB/s").then(|| {
        format!(
            "{lost} packets were lost, which are too few to leave the windows that the model expects of many: what TCP's congestion windows let through \
             meanwhile is {} MB/s{how}",
            figure_text(carried)
        )
    })
}

/// The host held up what the model's round trip was measured with, and no more came than without that.
fn is_of_echo(result: &CellResult) -> bool {
    let left = 1.0 - result.echo_stolen;
    let faster = result
        .model
        .map(|model| if result.unit == "ms" { model / result.measured } else { result.measured / model });
    result.echo_stolen > STOLEN_MAX && faster.is_some_and(|faster| faster * left <= 1.0 + OFF)
}

/// Another round trip of the same link was shorter than the model's, and no more came than that allows.
fn is_of_busy_echo(result: &CellResult) -> bool {
    let times = result.model_round_trip_us.zip(result.echo_us).filter(|(told, shortest)| shortest < told);
    let faster = result.model.filter(|_| result.unit != "ms").map(|model| result.measured / model);
    times.zip(faster).is_some_and(|((told, shortest), faster)| faster <= told / shortest * (1.0 + OFF))
}

/// A login whose round trips were all short ones: by no more than jitter makes of each.
fn sooner(cell: &Cell, result: &CellResult) -> Option<String> {
    let link = link_of(cell)?;
    let jitter_ms = (link.up.jitter.most + link.down.jitter.most).as_secs_f64() * 1e3;
    let round_trips = result.model? / (link.round_trip().as_secs_f64() * 1e3);
    (result.measured >= round_trips * (link.round_trip().as_secs_f64() * 1e3 - jitter_ms)).then(|| {
        format!(
            "round trips of this link are up to {} ms shorter or longer, and a few logins have few of them",
            figure_text(jitter_ms)
        )
    })
}

/// The window that there was, by Little's law.
fn window(cell: &Cell, result: &CellResult) -> String {
    let round_trip = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
    let round_trip_s = round_trip.map(|link| link.round_trip().as_secs_f64()).unwrap_or_default();
    let kilobytes = result.measured * 1e3 * round_trip_s;
    let under_way = if result.unit == "MB/s" && kilobytes >= 1.0 {
        format!("{kilobytes:.0} KB were under way in each round trip: ")
    } else {
        String::new()
    };
    format!(
        "{under_way}TCP's buffers are set, and the kernel makes a window of them; newer ones count what packets really take, which lets \
         more be under way than was set"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Further, study};

    fn lasted(all_s: f64) -> Lasted {
        Lasted { all_s, runs: 1, is_final: true }
    }

    #[test]
    fn more_than_the_model_has_a_reason_and_the_window_a_figure() {
        let cells = (study("dr-wan").expect("a study").cells)(1);
        let is_it = |cell: &&Cell| cell.link.as_deref() == Some("gige,rtt=50ms,loss=0%");
        let cell = cells.iter().find(is_it).expect("a cell");
        let of = |measured, limit| {
            let result = CellResult { model: Some(1.31), ..CellResult::of(Vec::new(), measured, "MB/s") };
            above(cell, &result, limit, lasted(1.0))
        };
        let text = of(1.62, Some(Limit::TcpWindow)).unwrap_or_default();
        assert!(text.starts_with("81 KB were under way in each round trip: "), "{text}");
        assert_eq!(of(1.62, Some(Limit::Loss)), None, "this line loses nothing");
        assert_eq!((of(1.40, Some(Limit::TcpWindow)), of(1.62, None)), (None, None));
        assert_eq!(of(3.0, Some(Limit::TcpWindow)), None, "no kernel makes that of a buffer");
        // Nobody knows a reason why more came than a line carries, or sooner than round trips take.
        assert_eq!((of(1.62, Some(Limit::Link)), of(1.62, Some(Limit::Window))), (None, None));
        let held_up = |echo_stolen, limit| {
            let result =
                CellResult { model: Some(1.31), echo_stolen, ..CellResult::of(Vec::new(), 1.62, "MB/s") };
            above(cell, &result, Some(limit), lasted(1.0))
        };
        assert!(held_up(0.2, Limit::Window).is_some_and(|why| why.contains("gave 20 %")));
        assert_eq!((held_up(0.1, Limit::Window), held_up(0.2, Limit::Link)), (None, None), "1.24 of it");
    }

    #[test]
    fn a_round_trip_of_a_busy_machine_is_a_reason_as_far_as_another_was_shorter() {
        let cells = (study("dalgic-sweep").expect("a study").cells)(1);
        let of = |measured, echo_us, limit| {
            let result = CellResult {
                model: Some(9.88),
                model_round_trip_us: Some(386.0),
                echo_us,
                ..CellResult::of(Vec::new(), measured, "MB/s")
            };
            above(&cells[0], &result, Some(limit), lasted(1.0))
        };
        let text = of(12.7, Some(181.0), Limit::Window).unwrap_or_default();
        assert!(text.contains("386 µs") && text.contains("181 µs"), "{text}");
        assert_eq!(of(24.0, Some(181.0), Limit::Window), None, "that is more than it allows");
        let others = [of(12.7, Some(386.0), Limit::Window), of(12.7, None, Limit::Window)];
        assert_eq!(others, [None, None]);
        assert_eq!(of(12.7, Some(181.0), Limit::Link), None);
    }

    #[test]
    fn a_few_losses_are_no_mean_and_many_are() {
        let cells = (study("dalgic-connections").expect("a study").cells)(1);
        let is_it = |cell: &&Cell| cell.link.as_deref() == Some("oc3-50,queue=16M,loss=0.1%");
        let cell = cells.iter().find(is_it).expect("a cell");
        let of = |measured, lasted_s| {
            let result = CellResult { model: Some(1.5), ..CellResult::of(Vec::new(), measured, "MB/s") };
            above(cell, &result, Some(Limit::Loss), lasted(lasted_s))
        };
        // One packet in a thousand, of a thousand in each second: four of them may be two and a half times as far apart, and no more.
        let text = of(3.7, 4.0).unwrap_or_default();
        assert!(text.ends_with("there are 4.00 in the 4.00 s of all runs"), "{text}");
        assert_eq!(of(3.8, 4.0), None);
        assert!(of(3.8, 2.0).is_some() && of(2.0, 400.0).is_none());
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
            above(cell, &result, Some(limit), Lasted { all_s: 15.0, runs: 3, is_final })
        };
        let text = of(7.0, 19, [6.5, 3.0], Limit::Loss, true).unwrap_or_default();
        assert!(text.starts_with("19 packets were lost, ") && text.ends_with("is 6.50 MB/s"), "{text}");
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
