//! What is to be said of a result in words.

use super::table::LINKS_MAX;
use super::{figure_text, fixed};
use crate::study::{CellResult, Failed, LinkFacts, OFF, REACHED, StudyResult, UNEXPLAINED, median};

/// What is to be said about single cells, under headings: of which runs have failed, where the time of operations went, where this
/// machine was the limit, and why figures differ from the model and from what was published.
#[must_use]
pub fn sections(result: &StudyResult) -> Vec<(&'static str, Vec<String>)> {
    let parts = |cell: &CellResult| {
        let parts = cell.parts?;
        let told = parts.named().map(|(name, ms)| format!("{name} {}", figure_text(ms)));
        Some(format!(
            "{}: {} ms are {} (means of {} of {} operations).",
            named(cell),
            figure_text(parts.whole),
            told.join(" + "),
            parts.operations,
            parts.of
        ))
    };
    let reason = |cell: &CellResult| {
        let (ours, theirs) = (figure_text(cell.measured), figure_text(cell.published?));
        let why = cell.why.as_ref()?;
        Some(format!("{}: {ours} here, {theirs} published; {why}.", named(cell)))
    };
    let above = |cell: &CellResult| {
        let (measured, model) = (figure_text(cell.measured), figure_text(cell.model?));
        let above = cell.above.as_ref()?;
        Some(format!("{}: {measured} {} here, {model} by the model; {above}.", named(cell), cell.unit))
    };
    let machine = |cell: &CellResult| {
        let (machine, measured) = (cell.machine.as_ref()?, figure_text(cell.measured));
        let model =
            cell.model.map(|model| format!(", {} by the model", figure_text(model))).unwrap_or_default();
        Some(format!("{}: {measured} {} here{model}; {machine}.", named(cell), cell.unit))
    };
    let because = |cell: &CellResult| {
        let (because, measured) = (cell.because.as_ref()?, figure_text(cell.measured));
        Some(format!("{}: {measured} {}, {}: {because}.", named(cell), cell.unit, cell.limit))
    };
    let sections = [
        ("Runs that have failed", result.failed.iter().map(lost).collect()),
        ("Where the time of an operation went", result.cells.iter().filter_map(parts).collect::<Vec<_>>()),
        ("Where this machine was the limit", result.cells.iter().filter_map(machine).collect()),
        ("What other limits follow from", result.cells.iter().filter_map(because).collect()),
        (
            "Why cells are better than the model by more than 10 %",
            result.cells.iter().filter_map(above).collect(),
        ),
        ("Why published figures differ by more than 10 %", result.cells.iter().filter_map(reason).collect()),
    ];
    sections.into_iter().filter(|section| !section.1.is_empty()).collect()
}

/// A cell's parameters in words.
pub(super) fn named(cell: &CellResult) -> String {
    in_words(&cell.parameters)
}

pub(super) fn in_words(parameters: &[(String, String)]) -> String {
    let words: Vec<String> = parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    words.join(", ")
}

/// A cell that has lost runs, and why.
pub(super) fn lost(failed: &Failed) -> String {
    let runs = if failed.runs == 1 { "1 run".to_owned() } else { format!("{} runs", failed.runs) };
    let figure = if failed.is_measured { "others count" } else { "there is no figure" };
    format!("{}: {runs}, {figure}; {}.", in_words(&failed.parameters), failed.reason)
}

/// How many cells a result has, beside those of its study where these are more.
pub(super) fn counted(result: &StudyResult) -> String {
    let (count, of) = (result.cells.len(), result.cells_in_study);
    if count < of { format!("{count} of {of} cells") } else { format!("All {count} cells") }
}

/// What is to be said about the figures, in sentences.
#[must_use]
pub fn notes(result: &StudyResult) -> Vec<String> {
    let cells = &result.cells;
    let mut notes = Vec::new();
    let only: Vec<String> = result.only.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !only.is_empty() {
        notes.push(format!("{}: only those with {}.", counted(result), only.join(", ")));
    } else if cells.len() < result.cells_in_study {
        notes.push(format!("{}.", counted(result)));
    }
    notes.push(result.differs.clone());
    if !result.failed.is_empty() {
        let without = result.failed.iter().filter(|failed| !failed.is_measured).count();
        notes.push(format!(
            "Runs of {} cells have failed; {without} of these cells have no figure. Each stands below with its reason.",
            result.failed.len()
        ));
    }
    let off = |to: fn(&CellResult) -> Option<f64>| {
        let is_off = |cell: &&CellResult| to(cell).is_some_and(|to| (cell.measured / to - 1.0).abs() > OFF);
        (cells.iter().filter(is_off).count(), cells.iter().filter(|cell| to(cell).is_some()).count())
    };
    for (name, (off, of)) in
        [("the model", off(|cell| cell.model)), ("the published figure", off(|cell| cell.published))]
    {
        if of > 0 {
            notes.push(format!("{off} of {of} cells are off {name} by more than 10 %."));
        }
    }
    let is_without = |cell: &&CellResult| cell.is_off_published() == Some(true) && cell.why.is_none();
    let without = cells.iter().filter(is_without).count();
    if without > 0 {
        notes.push(format!(
            "For {without} published figures that are off no reason follows from what was measured."
        ));
    }
    notes.extend(limits(cells));
    let mut absent: Vec<(&str, usize)> = Vec::new();
    for reason in cells.iter().filter_map(|cell| cell.model_absent.as_deref()) {
        match absent.iter_mut().find(|known| known.0 == reason) {
            Some(known) => known.1 += 1,
            None => absent.push((reason, 1)),
        }
    }
    notes.extend(absent.iter().map(|(reason, count)| format!("{count} cells have no model: {reason}.")));
    if let Some(cached) = cells.iter().filter_map(|cell| cell.cached).reduce(f64::max) {
        let percent = fixed(cached * 100.0, 1);
        notes.push(format!(
            "When a run with a cold image began, {percent} % of it at most was in this machine's page cache."
        ));
    }
    notes.extend(links(result));
    if result.is_quick {
        let more = match result.cells_with_more_runs {
            0 => String::new(),
            of => format!(", and up to two more of {of} cells for what came of it"),
        };
        notes.push(format!("One short run a cell, five of a login{more}: the figures are rough."));
    }
    if result.is_partial {
        notes.push("The study was ended early: cells are missing.".to_owned());
    }
    let host = &result.host;
    let gib = host.memory_bytes as f64 / f64::from(1_u32 << 30);
    let commit = host.commit.as_ref().map(|commit| format!(" at {commit}")).unwrap_or_default();
    let told = |(name, version): (&String, &Option<String>)| Some(format!("{name}: {}", version.as_ref()?));
    let versions: Vec<String> = result.versions.iter().filter_map(told).collect();
    let versions =
        if versions.is_empty() { String::new() } else { format!(" Beside it {}.", versions.join(", ")) };
    notes.push(format!(
        "Lunette {}{commit} on {}, {} processors, {gib:.1} GiB, {}, load {} before; seed {}.{versions}",
        host.lunette, host.processor, host.cores, host.kernel, host.load_average, result.seed
    ));
    notes
}

/// What is to be said of limits that are no property of link or session: of cells that are behind their model, and of the others.
fn limits(cells: &[CellResult]) -> Vec<String> {
    const PROCESSING: &str =
        "processors had the most of the time, though not all of them nor one thread had nothing to spare.";
    const OVERLAP: &str =
        "disk and processors were at work side by side, and neither had half of the time for certain.";
    let told = [
        (
            "machine",
            "this machine, which runs both ends and the network, was the reason: all processors were busy, or one thread had one to itself, or \
             what both ends and the network do for a command takes as long, or packets were late or lost, or a host had given processors to \
             others. The figures of each stand below.",
            "this machine was the limit: all processors were busy, or one thread had one to itself, or a host had given processors to others, or \
             the processor of a virtual machine is emulated. The figures of each stand below, but for what is emulated.",
        ),
        ("processing", PROCESSING, PROCESSING),
        ("overlap", OVERLAP, OVERLAP),
        (
            UNEXPLAINED,
            "nothing that was measured explains it, or the line lost what it is not to lose.",
            "nothing that was measured says what the limit was, or the line lost what it is not to lose.",
        ),
    ];
    let behind = format!(" less came than {:.0} % of what the model expects, and", REACHED * 100.0);
    let ways = |(limit, of_behind, of_others)| {
        [
            (limit, true, behind.as_str(), of_behind),
            (limit, false, ", which have no model or reach it,", of_others),
        ]
    };
    let told = told.into_iter().flat_map(ways).filter_map(|(limit, is_behind, which, told)| {
        let is_one =
            |cell: &&CellResult| cell.limit == limit && (cell.reaches_model() == Some(false)) == is_behind;
        let count = cells.iter().filter(is_one).count();
        (count > 0).then(|| format!("In {count} cells{which} {told}"))
    });
    told.collect()
}

/// What is to be said of figures without a network.
const PROXY: &str = "this is no network but a TCP proxy (`link.proxy`), which has the delay and the rate; TCP sees neither of them, so its windows and \
                     its congestion control are not in the figures.";

/// What TEST UNIT READY took at rest on a link, in microseconds: the middle one of its cells. Only of our own target, and only where plain
/// TCP was at rest, too: beside other traffic it is not.
pub(super) fn command_us(result: &StudyResult, link: &str) -> Option<f64> {
    let is_own = |cell: &&CellResult| cell.link.as_deref() == Some(link) && cell.is_ours();
    let own = result.cells.iter().filter(is_own).filter(|cell| cell.echo_us.is_some());
    median(own.filter_map(|cell| cell.round_trip_us).collect())
}

/// Plain TCP and a command beside each other.
fn at_rest(link: &LinkFacts, command_us: Option<f64>) -> String {
    let Some(echo_us) = link.echo_us else { return String::new() };
    let command = command_us.map(|command_us| {
        format!(
            ", and TEST UNIT READY {} us, of which {} us are the part of both ends",
            figure_text(command_us),
            figure_text((command_us - echo_us).max(0.0))
        )
    });
    format!(
        "; at rest 48 bytes took {} us there and back by plain TCP{}",
        figure_text(echo_us),
        command.unwrap_or_default()
    )
}

/// How late proxies were, where they say so; older ones did not.
fn late_at_proxy<'a>(links: impl IntoIterator<Item = &'a LinkFacts>) -> String {
    let (mut late_us, mut is_doubtful) = (0, false);
    for link in links {
        (late_us, is_doubtful) = (late_us.max(link.late_us), is_doubtful || link.is_doubtful);
    }
    let late = format!(" Bytes were up to {late_us} us late there and back.");
    let doubt = " This machine did not keep up with it, so that figures are its own.";
    [Some(late).filter(|_| late_us > 0), Some(doubt.to_owned()).filter(|_| is_doubtful)]
        .into_iter()
        .flatten()
        .collect()
}

/// How the links were kept.
fn links(result: &StudyResult) -> Vec<String> {
    let lost = |overrun| match overrun {
        0 => String::new(),
        overrun => format!("; {overrun} packets were lost because this machine was too slow"),
    };
    let links = &result.link;
    if links.len() <= LINKS_MAX {
        let each = |(name, link): (&String, &LinkFacts)| {
            if link.proxy {
                return format!("Link {name}: {}; {PROXY}{}", link.description, late_at_proxy([link]));
            }
            format!(
                "Link {name}: {}, {}; packets were {} us late there and back{}{}.",
                link.description,
                link.congestion_control,
                link.late_us,
                lost(link.overrun),
                at_rest(link, command_us(result, name))
            )
        };
        return links.iter().map(each).collect();
    }
    if links.values().any(|link| link.proxy) {
        return vec![format!("{} links; {PROXY}{}", links.len(), late_at_proxy(links.values()))];
    }
    let late_us = links.values().map(|link| link.late_us).max().unwrap_or_default();
    let overrun = links.values().map(|link| link.overrun).sum();
    let mut controls: Vec<&str> = links.values().map(|link| &*link.congestion_control).collect();
    controls.dedup();
    let controls = controls.join(", ");
    vec![format!(
        "{} links, {controls}; packets were up to {late_us} us late there and back{}.",
        links.len(),
        lost(overrun)
    )]
}
