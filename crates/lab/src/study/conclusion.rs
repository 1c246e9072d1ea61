//! What the runs of a study come to: one figure for each cell, beside what the model expects, with its limit, and the object that
//! holds them all.

use lunette_link::Link;
use lunette_wan::Keeping;

use super::collected::Collected;
use super::judgement::UNEXPLAINED;
use super::lasted::Lasted;
use super::peer::Peer;
use super::probe::{AtRest, Run};
use super::result::{CellResult, FORM, Further, StudyResult};
use super::runner::Laboratory;
use super::selection::Aimed;
use super::statistics::{deviation, mean, median};
use super::times::Times;
use super::{Study, expected, limits, setting, versions, why};
use crate::{Host, Negotiated};

/// What limits a cell of a peer that nothing else explains.
const OF_PEER: &str = "target";

/// What a cell is told by of which one run at least was not over in time.
pub(crate) const UNFINISHED: &str = "not-recovered";

/// Of the runs of a cell, where the published table has them.
const MEAN: &str = "mean";
pub(super) const DEVIATION: &str = "std";

/// What is to be said where there are peers.
const PEERS_DIFFER: &str = "tgtd and istgt are Debian's, with a disk of memory and otherwise as they come, each on a link of its own like \
                            ours; where the target is the limit, nothing else explains that less came. \
                            LIO is in a virtual machine, behind the far end as behind a router.";

impl Laboratory<'_> {
    pub(super) fn conclude(
        &self,
        study: &Study,
        host: Host,
        (cells, cells_in_study): (&[Aimed], usize),
        collected: Collected,
    ) -> StudyResult {
        let mut agreements: Vec<Negotiated> = Vec::new();
        let cells_with_more_runs = collected.with_more_runs();
        let failures = &collected.failures;
        let is_in = |aimed: &&Aimed| !failures.is_left_out(aimed.peer);
        let of_peer = |aimed: &Aimed| match aimed.peer {
            Some(Peer::Lio) => Some("qemu"),
            peer => peer.map(Peer::name),
        };
        let took_part = cells
            .iter()
            .filter(is_in)
            .flat_map(|aimed| aimed.cell.probe.programs().iter().copied().chain(of_peer(aimed)));
        let took_part: Vec<&str> = took_part.collect();
        let has_peers = cells.iter().filter(is_in).any(|aimed| aimed.peer.is_some());
        let is_partial = (0..cells.len()).any(|at| is_in(&&cells[at]) && collected.is_short(at));
        let failed = failures.told(cells, |at| collected.runs[at].len());
        let results = cells.iter().zip(&collected.runs).filter(|(aimed, _)| is_in(aimed));
        let results = results
            .filter_map(|(aimed, runs)| result(study, aimed, runs, &mut agreements, (self.is_quick, true)));
        let mut cells: Vec<CellResult> = results.collect();
        // What the study knows of the difference is of other keys.
        let is_set = |cell: &CellResult| {
            let mut set = self.set.iter().map(|setting| setting.key.name());
            set.any(|key| cell.parameters.iter().any(|(name, value)| name == key && value != "-"))
        };
        let is_concerned = |cell: &&mut CellResult| {
            is_set(cell) && cell.limit != UNEXPLAINED && cell.is_off_published() == Some(true)
        };
        for cell in cells.iter_mut().filter(is_concerned) {
            cell.why = Some(format!("{} is set", setting::text(self.set)));
        }
        StudyResult {
            form: FORM,
            study: study.name.to_owned(),
            paper: study.paper.to_owned(),
            question: study.question.to_owned(),
            differs: if has_peers {
                format!("{} {PEERS_DIFFER}", study.differs)
            } else {
                study.differs.to_owned()
            },
            axes: study.axes.map(|(across, curves)| (across.to_owned(), curves.to_owned())),
            host,
            versions: versions::versions(&took_part, collected.guest_versions),
            targets: collected.targets,
            link: collected.links,
            seed: self.seed,
            is_quick: self.is_quick,
            cells_with_more_runs,
            is_partial,
            only: self.only.to_vec(),
            cells_in_study,
            lacking: Vec::new(),
            altered: self.altered(),
            negotiated: agreements,
            cells,
            failed,
        }
    }

    /// What makes another study of it than the one that was published, if anything does.
    fn altered(&self) -> Option<String> {
        let set = (!self.set.is_empty()).then(|| format!("{} is set", setting::text(self.set)));
        let control = self.congestion_control.map(|name| format!("TCP's congestion control is {name}"));
        let proxy = self.is_proxied.then(|| "a proxy is in the place of each network".to_owned());
        let all: Vec<String> = [set, control, proxy].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// The run with the figure that is nearest to this one, of those that will do.
fn near(runs: &[Run], measured: f64, will_do: impl Fn(&Run) -> bool) -> Option<&Run> {
    let distance = |run: &Run| (run.measured - measured).abs();
    runs.iter().filter(|run| will_do(run)).min_by(|one, other| distance(one).total_cmp(&distance(other)))
}

/// How many times the deviation of such a count losses may be off what a link is to lose: one cell of a million is further off by chance.
const LOSSES_OFF: f64 = 5.0;

/// What is wrong with the losses of all runs over a link, if they are not what it is to lose.
fn wrong_losses(link: &Link, keepings: &[Keeping]) -> Option<String> {
    let passed = |way: usize| keepings.iter().map(|keeping| keeping.passed[way]).sum::<u64>() as f64;
    let ways = [(&link.up.loss, passed(0)), (&link.down.loss, passed(1))];
    let lost = keepings.iter().flat_map(|keeping| keeping.lost).sum::<u64>();
    let expected: f64 = ways.iter().map(|(loss, packets)| loss.mean() * packets).sum();
    let variance: f64 = ways.iter().map(|(loss, packets)| loss.variance(*packets) * packets * packets).sum();
    let off = (lost as f64 - expected).abs();
    // Single packets are no statistics.
    (off > LOSSES_OFF * variance.sqrt() + 1.0).then(|| {
        let of: f64 = ways.iter().map(|way| way.1).sum();
        format!("the line lost {lost} packets of {of:.0}, where it is to lose {expected:.0}")
    })
}

/// The run whose model is the one that is told, or the nearest to it; nothing where none has one.
fn with_model(runs: &[Run], told: Option<f64>) -> Option<&Run> {
    let distance =
        |run: &Run| run.model.zip(told).map_or(f64::MAX, |((model, _), told)| (model - told).abs());
    runs.iter()
        .filter(|run| run.model.is_some())
        .min_by(|one, other| distance(one).total_cmp(&distance(other)))
}

/// Makes one figure of a cell's runs; nothing without any. What few or short runs cannot tell is a reason where no other is done.
fn result(
    study: &Study,
    aimed: &Aimed,
    runs: &[Run],
    agreements: &mut Vec<Negotiated>,
    (is_quick, is_final): (bool, bool),
) -> Option<CellResult> {
    let cell = &aimed.cell;
    let figures: Vec<f64> = runs.iter().map(|run| run.measured).collect();
    let is_mean = cell.probe.is_mean();
    let middle = median(figures.clone())?;
    let measured = if is_mean { mean(&figures) } else { middle };
    let largest = figures.iter().copied().fold(f64::MIN, f64::max);
    let smallest = figures.iter().copied().fold(f64::MAX, f64::min);
    let model = median(runs.iter().filter_map(|run| run.model).map(|model| model.0).collect());
    let modelled = with_model(runs, model);
    let limit = modelled.and_then(|run| run.model).map(|model| model.1);
    let told_us = |of: &dyn Fn(&Run) -> Option<f64>| median(runs.iter().filter_map(of).collect());
    let echo_us = told_us(&|run| Some(run.exchanged?.header.as_secs_f64() * 1e6));
    let model = model.or_else(|| expected::expected(cell, is_quick, echo_us));
    let middle = |of: &dyn Fn(&Run) -> f64| median(runs.iter().map(of).collect()).unwrap_or_default();
    let round_trips = middle(&|run| run.round_trips);
    let (idle, processor, busiest) =
        (middle(&|run| run.shares.idle), middle(&|run| run.processor), middle(&|run| run.busy.busiest));
    let (loaded, processors) = (middle(&|run| run.busy.loaded), middle(&|run| run.shares.at_work));
    let stolen = middle(&|run| run.shares.stolen_for_sure());
    let echo_stolen = modelled.map_or(0.0, Run::echo_stolen);
    let together = middle(&|run| run.busy.together);
    // Far fewer of both than a double counts.
    let late_us = middle(&|run| run.keeping.lateness_median.as_micros() as f64) as u64;
    let packets = |of: fn(&Run) -> u64| middle(&|run| of(run) as f64) as u64;
    let overrun = packets(|run| run.keeping.overrun);
    let outpaced = middle(&|run| run.keeping.outpaced_share());
    let keepings: Vec<Keeping> = runs.iter().map(|run| run.keeping).collect();
    let lost = packets(|run| run.keeping.lost.iter().sum());
    let dropped = packets(|run| run.keeping.dropped);
    let lost_before = packets(|run| run.lost_before);
    let cached = runs.iter().filter_map(|run| run.cached).reduce(f64::max);
    let parts = near(runs, measured, |run| run.parts.is_some()).and_then(|run| run.parts);
    let nearest_times = near(runs, measured, |run| run.times.is_some()).and_then(|run| run.times);
    let times = if is_mean { Some(Times::of_few(&figures)) } else { nearest_times };
    let is_unfinished = runs.iter().any(|run| run.is_unfinished);
    let of_run = runs.iter().find_map(|run| run.limit);
    let told: Vec<&[Further]> = runs.iter().map(|run| run.further.as_slice()).collect();
    let mut further = Further::of_runs(&told, &cell.beside, is_mean);
    if let Some((_, published)) = cell.beside.iter().find(|named| named.0 == DEVIATION)
        && figures.len() > 1
    {
        further.push(Further::new(MEAN, mean(&figures), ""));
        further.push(Further {
            published: Some(*published),
            ..Further::new(DEVIATION, deviation(&figures), "")
        });
    }
    let at_rest = AtRest::of(runs);
    let round_trip_us = told_us(&|run| run.negotiated.as_ref()?.idle_round_trip_us);
    let model_round_trip_us = told_us(&|run| Some(run.round_trip?.as_secs_f64() * 1e6));
    let negotiated = runs.iter().find_map(|run| run.negotiated.clone()).map(|agreed| {
        let known = agreements.iter().position(|known| known.is_like(&agreed));
        known.unwrap_or_else(|| {
            agreements.push(agreed);
            agreements.len() - 1
        })
    });
    let own = |&(name, ref value): &(&str, String)| (name.to_owned(), value.clone());
    let mut result = CellResult {
        parameters: cell.parameters.iter().map(own).collect(),
        link: cell.link.clone(),
        model,
        model_absent: model.is_none().then(|| expected::absent(cell).to_owned()),
        published: cell.published.filter(|_| !(is_quick && cell.probe.differs_when_quick())),
        // A single run tells nothing of it.
        spread: (figures.len() > 1 && measured > 0.0).then(|| (largest - smallest) / measured),
        processor,
        idle,
        further,
        busiest,
        loaded,
        together,
        processors,
        stolen,
        echo_stolen,
        late_us,
        overrun,
        outpaced,
        lost,
        dropped,
        lost_before,
        times,
        published_times: cell.published_times,
        round_trip_us: round_trip_us.filter(|us| *us > 0.0),
        echo_us,
        model_round_trip_us,
        negotiated,
        cached,
        parts,
        ..CellResult::of(figures, measured, cell.probe.unit())
    };
    let beside = if aimed.peer.is_some() { Some(OF_PEER) } else { cell.probe.beside() };
    let link = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
    let turn = model.zip(link.as_ref());
    let turn = turn.and_then(|(model, link)| cell.probe.turn(model, link, at_rest, round_trips));
    result.judge(limit, turn.as_ref(), beside);
    let lasted = Lasted::of(cell, runs, is_final);
    if let Some(named) = limits::named(cell, &result, of_run) {
        named.tell(&mut result);
    }
    // What has no model may change its link meanwhile.
    let held = link.as_ref().filter(|_| model.is_some());
    if let Some(why) = held.and_then(|link| wrong_losses(link, &keepings)) {
        // Whatever came, it is not what this link lets through.
        (result.limit, result.because) = (UNEXPLAINED.to_owned(), Some(why));
    }
    if let Some(why) = why::beyond_line(cell, &result) {
        (result.limit, result.machine, result.because) = (UNEXPLAINED.to_owned(), None, Some(why));
    }
    if is_unfinished {
        result.limit = UNFINISHED.to_owned();
    }
    result.above = why::above(cell, &result, limit, turn.as_ref(), lasted);
    result.why = why::why(study, cell, &result);
    Some(result)
}

/// What a cell's runs come to so far.
pub(super) fn so_far(study: &Study, aimed: &Aimed, runs: &[Run], is_quick: bool) -> Option<CellResult> {
    result(study, aimed, runs, &mut Vec::new(), (is_quick, false))
}

#[cfg(test)]
mod tests {
    use lunette_wan::Outpaced;
    use lunette_workload::model::Limit;

    use super::*;
    use crate::study::{Cell, study};

    /// What comes of runs with a figure, and what the model expects of each.
    fn concluded(
        name: &str,
        wanted: &[(&str, &str)],
        runs: &[(f64, Option<(f64, Limit)>)],
        is_quick: bool,
    ) -> CellResult {
        let study = study(name).expect("a study");
        let has =
            |cell: &Cell, pair: &(&str, &str)| cell.parameters.iter().any(|own| (own.0, &*own.1) == *pair);
        let mut cells = (study.cells)(1).into_iter();
        let cell = cells.find(|cell| wanted.iter().all(|pair| has(cell, pair))).expect("a cell");
        let runs: Vec<Run> = runs.iter().map(|&(measured, model)| Run::of(measured, model)).collect();
        result(study, &Aimed { cell, peer: None }, &runs, &mut Vec::new(), (is_quick, true)).expect("runs")
    }

    #[test]
    fn losses_are_those_that_the_link_is_to_have() {
        let link: Link = "oc3-50,loss=1%".parse().expect("a link");
        let of = |lost, passed| {
            let keeping = Keeping { lost: [lost, 0], passed: [passed; 2], ..Keeping::default() };
            wrong_losses(&link, &[keeping, keeping])
        };
        // 400 of 40,000, with a deviation of 20.
        assert_eq!((of(200, 10_000), of(240, 10_000), of(160, 10_000)), (None, None, None));
        assert!(of(0, 10_000).is_some_and(|why| why.contains("lost 0 packets of 40000")));
        assert!(of(300, 10_000).is_some() && of(1, 10).is_none(), "one of few tells nothing");
        let clear: Link = "oc3-50".parse().expect("a link");
        let lost = Keeping { lost: [1; 2], passed: [100; 2], ..Keeping::default() };
        assert!(
            wrong_losses(&clear, &[lost]).is_some() && wrong_losses(&clear, &[Keeping::default()]).is_none()
        );
    }

    /// Whatever limits that has.
    #[test]
    fn a_line_that_loses_what_it_is_not_to_lose_has_no_other_name() {
        let study = study("dr-shared").expect("a study");
        for cell in (study.cells)(1).into_iter().filter(|cell| cell.link.is_some()) {
            let told = cell.parameters.clone();
            let keeping = Keeping { lost: [70, 30], passed: [1000; 2], ..Keeping::default() };
            let run = Run { keeping, ..Run::of(1.0, Some((0.9, Limit::Window))) };
            let aimed = Aimed { cell, peer: None };
            let result = result(study, &aimed, &[run], &mut Vec::new(), (false, true)).expect("a run");
            assert_eq!(result.limit, UNEXPLAINED, "{told:?}");
            assert!(result.because.is_some_and(|because| because.contains("lost 100 packets")), "{told:?}");
        }
    }

    #[test]
    fn more_than_a_line_carries_is_explained_by_nothing() {
        let wanted = [("request_kib", "64"), ("window", "32"), ("rtt_ms", "2"), ("mode", "read")];
        let of =
            |measured| concluded("dalgic-sweep", &wanted, &[(measured, Some((18.7, Limit::Link)))], false);
        let too_much = of(19.6);
        assert_eq!((&*too_much.limit, too_much.is_unexplained()), (UNEXPLAINED, true));
        assert!(too_much.because.is_some_and(|because| because.contains("more than the 18.7 MB/s")));
        assert_eq!(of(18.9).limit, "link-rate", "it was measured with some error");
    }

    #[test]
    fn the_limit_is_that_of_the_run_whose_model_is_told() {
        let wanted = [("request_kib", "64"), ("window", "32"), ("rtt_ms", "2"), ("mode", "read")];
        let (link, window) = (Limit::Link, Limit::Window);
        let runs = [(9.0, Some((9.1, window))), (18.6, Some((18.7, link))), (18.7, Some((18.8, link)))];
        let cell = concluded("dalgic-sweep", &wanted, &runs, false);
        assert_eq!((cell.measured, cell.model, &*cell.limit), (18.6, Some(18.7), "link-rate"));
        let cell = concluded("dalgic-sweep", &wanted, &[runs[1], runs[0], runs[0]], false);
        assert_eq!((cell.measured, cell.model, &*cell.limit), (9.0, Some(9.1), "command-window"));
    }

    #[test]
    fn logins_have_a_mean_as_the_papers_have() {
        let wanted =
            [("session", "normal"), ("phase", "total"), ("authentication", "none"), ("digests", "none")];
        let runs = [10.0, 11.0, 18.0].map(|measured| (measured, None));
        let cell = concluded("lu-login", &wanted, &runs, true);
        let times = cell.times.expect("of all logins");
        assert_eq!((cell.measured, times.of, times.min, times.max), (13.0, Some(3), Some(10.0), Some(18.0)));
        let published = cell.published_times.expect("the paper's");
        assert_eq!((cell.published, published.min), (Some(10_136.0), Some(10_014.0)));
    }

    #[test]
    fn what_has_no_limit_of_a_network_has_its_own_and_what_has_no_model_says_why() {
        let of = |phase, measured| {
            let wanted =
                [("session", "normal"), ("phase", phase), ("authentication", "chap"), ("digests", "none")];
            concluded("lu-login", &wanted, &[(measured, None)], true)
        };
        let security = of("security", 6.3);
        assert_eq!(security.reaches_model(), Some(true));
        assert_eq!(
            (security.model, &*security.limit, security.model_absent),
            (Some(6.0), UNEXPLAINED, None),
            "nobody has counted its exchanges"
        );
        let initiator = of("initiator", 0.4);
        assert_eq!((initiator.model, &*initiator.limit), (None, "initiator"));
        assert!(initiator.model_absent.is_some_and(|why| why.contains("between its exchanges")));
    }

    #[test]
    fn what_does_less_stands_beside_no_published_figure() {
        let wanted = [("figure", "hit-rate"), ("files", "512"), ("design", "threads")];
        let published =
            |is_quick| concluded("fujita-netserver", &wanted, &[(99.0, None)], is_quick).published;
        assert_eq!((published(false), published(true)), (Some(85.4), None));
    }

    #[test]
    fn what_a_command_takes_at_rest_is_the_median_of_all_runs() {
        let wanted = [("request_kib", "64"), ("window", "32"), ("rtt_ms", "2"), ("mode", "read")];
        let cells = (study("dalgic-sweep").expect("a study").cells)(1).into_iter();
        let has =
            |cell: &Cell, pair: &(&str, &str)| cell.parameters.iter().any(|own| (own.0, &*own.1) == *pair);
        let mut cells = cells.filter(|cell| wanted.iter().all(|pair| has(cell, pair)));
        let aimed = Aimed { cell: cells.next().expect("a cell"), peer: None };
        let run = |idle_round_trip_us| {
            let negotiated = Negotiated { idle_round_trip_us, ..Negotiated::of_tests() };
            Run { negotiated: Some(negotiated), ..Run::of(9.0, None) }
        };
        let runs = Vec::from([Some(9000.0), Some(2200.0), Some(2100.0), None].map(run));
        let study = study("dalgic-sweep").expect("a study");
        let cell = result(study, &aimed, &runs, &mut Vec::new(), (false, true)).expect("runs");
        assert_eq!(cell.round_trip_us, Some(2200.0));
    }

    #[test]
    fn a_machine_that_was_slow_in_one_run_of_three_limits_none() {
        let study = study("dr-shared").expect("a study");
        let mut cells = (study.cells)(1).into_iter();
        let cell = cells.find(|cell| cell.link.is_some()).expect("a cell with a link");
        let run = |packets| {
            let outpaced = [Outpaced { packets, of: 10_000 }, Outpaced::default()];
            Run { keeping: Keeping { outpaced, ..Keeping::default() }, ..Run::of(1.0, None) }
        };
        let runs = [9_000, 1_000, 2_000].map(run);
        let aimed = Aimed { cell, peer: None };
        let cell = result(study, &aimed, &runs, &mut Vec::new(), (false, true)).expect("runs");
        assert_eq!(cell.outpaced, 0.2);
    }

    #[test]
    fn a_single_run_has_no_spread() {
        let wanted = [("request_kib", "64"), ("window", "32"), ("rtt_ms", "2"), ("mode", "read")];
        let spread = |runs: &[(f64, Option<(f64, Limit)>)]| {
            concluded("dalgic-sweep", &wanted, runs, false).spread.map(|spread| (spread * 100.0).round())
        };
        assert_eq!(
            (spread(&[(9.0, None)]), spread(&[(9.0, None), (10.0, None), (12.0, None)])),
            (None, Some(30.0))
        );
    }
}
