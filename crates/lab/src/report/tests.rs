//! Reports of results that are made up.

use std::collections::BTreeMap;

use super::check::percent;
use super::html::anchor;
use super::notes::command_us;
use super::*;
use crate::study::study;
use crate::{CellResult, FORM, Failed, Further, Host, LatencyParts, LinkFacts, StudyResult, Times};

fn result(parameter: &str) -> StudyResult {
    let cell = |value: &str, measured, model, published| CellResult {
        parameters: vec![("mode".into(), parameter.into()), ("rtt_ms".into(), value.into())],
        link: Some("oc3-0".into()),
        model,
        published,
        limit: "link-rate".into(),
        spread: Some(0.25),
        processor: 0.5,
        idle: 0.5,
        cached: Some(0.004),
        ..CellResult::of(vec![measured, measured * 1.25], measured, "MB/s")
    };
    let link = LinkFacts {
        description: "rate=155M".into(),
        congestion_control: "cubic".into(),
        late_us: 12,
        overrun: 0,
        echo_us: None,
        proxy: false,
        read_back_bytes: BTreeMap::new(),
        is_doubtful: false,
    };
    StudyResult {
        form: FORM,
        study: "made-up".into(),
        paper: "Nobody".into(),
        question: "what comes".into(),
        differs: "Everything.".into(),
        axes: None,
        host: Host::look(),
        versions: BTreeMap::from([
            ("tgtd".to_owned(), Some("1.0.85".to_owned())),
            ("istgt".to_owned(), None),
        ]),
        targets: BTreeMap::new(),
        link: BTreeMap::from([("oc3-0".to_owned(), link)]),
        seed: 1,
        is_quick: true,
        cells_with_more_runs: 2,
        is_partial: false,
        only: Vec::new(),
        cells_in_study: 3,
        lacking: Vec::new(),
        altered: None,
        negotiated: Vec::new(),
        cells: vec![
            cell("0", 18.7, Some(18.8), Some(19.3)),
            cell("50", 0.1, Some(4.0), None),
            cell("2", 0.0, None, Some(0.0)),
        ],
        failed: Vec::new(),
    }
}

#[test]
fn rows_have_what_the_columns_say() {
    let mut result = result("read");
    result.cells[2].runs = vec![0.0];
    assert_eq!(columns(&result).len(), row(&result, &result.cells[0]).len());
    let first = row(&result, &result.cells[0]).join(" ");
    assert_eq!(first, "read 0 18.7 18.8 19.3 0.99 0.97 link-rate 25 %");
    assert_eq!(row(&result, &result.cells[2]).join(" "), "read 2 0.000 - 0.000 - - link-rate -", "one run");
    let further = |published| Further { published, ..Further::new("std", 2.5, "ms") };
    result.cells[0].further = vec![further(None)];
    result.cells[1].further = vec![further(Some(2.6))];
    assert_eq!(columns(&result)[9..], ["std ms", "std published"]);
    for (at, expected) in [(0, ["2.50", "-"]), (1, ["2.50", "2.60"]), (2, ["-", "-"])] {
        assert_eq!(row(&result, &result.cells[at])[9..], expected);
    }
}

#[test]
fn notes_count_what_is_off() {
    let notes = notes(&result("read")).join("\n");
    assert!(notes.contains("; seed 1. Beside it tgtd: 1.0.85."), "{notes}");
    assert!(notes.contains("1 of 2 cells are off the model by more than 10 %."), "{notes}");
    assert!(notes.contains("Link oc3-0: rate=155M, cubic; packets were 12 us late"), "{notes}");
    assert!(
        notes.contains("a login, and up to two more of 2 cells for what came of it: the figures are rough")
            && !notes.contains("no reason follows"),
        "{notes}"
    );
    assert!(notes.contains("0.4 % of it at most was in this machine's page cache"), "{notes}");
}

#[test]
fn a_part_of_a_study_is_told_as_one() {
    let mut result = result("read");
    let told = |result: &StudyResult| notes(result)[0].clone();
    assert_eq!(told(&result), "Everything.");
    assert!(html(std::slice::from_ref(&result)).contains("<summary>All 3 cells</summary>"));
    result.cells_in_study = 24;
    assert_eq!(told(&result), "3 of 24 cells.");
    result.only = vec![("rtt_ms".into(), "0".into()), ("mode".into(), "<read>".into())];
    let part = "3 of 24 cells: only those with rtt_ms=0, mode=<read>.";
    assert_eq!(told(&result), part);
    let results = [result];
    let (page, text) = (html(&results), markdown(&results));
    assert!(
        page.contains("<summary>3 of 24 cells</summary>") && page.contains("mode=&lt;read&gt;."),
        "{page}"
    );
    assert!(page.contains(">3 of 24 cells</a>"), "{page}");
    assert!(text.contains(&format!("- {}", part.replace('<', "&lt;"))), "{text}");
}

#[test]
fn notes_count_published_figures_without_a_reason() {
    let mut result = result("read");
    result.cells[0].published = Some(5.0);
    let told = |result: &StudyResult| {
        notes(result).join("\n").contains("For 1 published figures that are off no reason")
    };
    assert!(told(&result));
    result.cells[0].why = Some("slower hosts".into());
    assert!(!told(&result));
}

#[test]
fn notes_say_why_there_is_no_model() {
    let mut result = result("read");
    for (at, reason) in [(0, "no network"), (1, "chance"), (2, "no network")] {
        result.cells[at].model_absent = Some(reason.into());
    }
    let notes = notes(&result).join("\n");
    assert!(notes.contains("2 cells have no model: no network.\n1 cells have no model: chance."), "{notes}");
}

#[test]
fn what_is_said_of_cells_stands_behind_the_notes_with_their_cells() {
    let mut result = result("read");
    assert!(!html(std::slice::from_ref(&result)).contains("<details open"));
    result.cells[0].why = Some("<slower> hosts".into());
    let reason = "mode read, rtt_ms 0: 18.7 here, 19.3 published; <slower> hosts.";
    let parts = |network| LatencyParts {
        command_window: 0.0,
        network,
        r2t_wait: 0.0,
        target_queue: 0.1,
        store: 0.02,
        reply: 0.03,
        whole: 2.65,
        operations: 900,
        of: 1000,
    };
    result.cells[1].parts = Some(parts(2.5));
    let where_it_went = "mode read, rtt_ms 50: 2.65 ms are command window 0.000 + network 2.50 + R2T wait 0.000 + \
                         target queue 0.100 + store 0.020 + reply 0.030 (means of 900 of 1000 operations).";
    result.cells[0].above = Some("there was more".into());
    let above = "mode read, rtt_ms 0: 18.7 MB/s here, 18.8 by the model; there was more.";
    assert_eq!(row(&result, &result.cells[0])[7], "link-rate, above-model");
    let sections = sections(&result);
    let lines: Vec<&str> = sections.iter().flat_map(|section| &section.1).map(String::as_str).collect();
    assert_eq!(lines, [where_it_went, above, reason]);
    let page = html(std::slice::from_ref(&result));
    assert!(page.contains("&lt;slower&gt; hosts") && page.matches("<details open").count() == 3, "{page}");
    assert!(markdown(&[result]).contains("published; &lt;slower> hosts."));
}

#[test]
fn single_operations_stand_beside_published_ones() {
    let mut result = result("read");
    assert!(times(&result).is_empty());
    result.cells[1].times =
        Some(Times { of: Some(900), min: Some(0.25), p50: Some(2.0), max: Some(31.0), ..Times::default() });
    result.cells[1].published_times = Some(Times { min: Some(2.1), mean: Some(9.57), ..Times::default() });
    let table = times(&result);
    let rows: Vec<String> = table.iter().map(|row| row.join(" | ")).collect();
    let header = "mode | rtt_ms | operations | min | 50 % | mean | max";
    assert_eq!(rows, [header, "read | 50 | 900 | 0.250 (2.10) | 2.00 | - (9.57) | 31.0"]);
    let page = html(std::slice::from_ref(&result));
    assert!(page.contains("<td>0.250 (2.10)</td>") && page.matches("<table>").count() == 3, "{page}");
    assert!(markdown(&[result]).contains("| read | 50 | 900 | 0.250 (2.10) |"));
}

#[test]
fn what_the_machine_had_to_do_with_a_cell_stands_with_its_figures() {
    let mut result = result("read");
    result.cells[1].limit = "machine".into();
    result.cells[1].machine = Some("one thread had 97 % of a processor".into());
    let lines: Vec<String> = sections(&result).into_iter().flat_map(|section| section.1).collect();
    assert_eq!(
        lines,
        ["mode read, rtt_ms 50: 0.100 MB/s here, 4.00 by the model; one thread had 97 % of a processor."]
    );
    assert!(notes(&result).join(" ").contains("and this machine, which runs both ends"));
}

#[test]
fn what_is_said_of_limits_holds_for_the_cells_that_are_counted() {
    // They reach their model, are behind it, and have none.
    let told = |limits: [&str; 3]| {
        let mut result = result("read");
        result.cells.iter_mut().zip(limits).for_each(|(cell, limit)| cell.limit = limit.to_owned());
        let told = notes(&result)
            .into_iter()
            .filter(|note| note.contains("the model expects") || note.contains("which have no model"));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(["link-rate"; 3]), [""; 0]);
    let behind = "less came than 95 % of what the model expects, and";
    let others = "which have no model or reach it,";
    for (limit, why, what) in [
        (
            "machine",
            "this machine, which runs both ends and the network, was the reason",
            "this machine was the limit",
        ),
        (
            "processing",
            "processors had the most of the time, though",
            "processors had the most of the time, though",
        ),
        (
            "unexplained",
            "nothing that was measured explains it",
            "nothing that was measured says what the limit was",
        ),
    ] {
        let [one, two] = &told([limit; 3])[..] else { panic!("two sentences") };
        assert!(one.starts_with(&format!("In 1 cells {behind} {why}")), "{one}");
        assert!(two.starts_with(&format!("In 2 cells, {others} {what}")), "{two}");
    }
}

#[test]
fn studies_are_held_to_the_model_and_to_reasons() {
    let held = |change: &dyn Fn(&mut StudyResult)| {
        let mut result = result("read");
        result.study = "dalgic-tcp".into();
        result.cells = whole("dalgic-tcp", &result.cells[0]);
        change(&mut result);
        let verdicts = check(&[result]);
        assert_eq!(verdicts.len(), 2, "{verdicts:?}");
        assert!(!verdicts[1].is_met() && verdicts[1].to_string() == "dalgic-sweep: there is no result");
        (verdicts[0].is_met(), verdicts[0].to_string())
    };
    let all = "dalgic-tcp: 16 of 16 cells reach 95 % of what link and model let through; 0 are off the model by more than 10 %; 0 of 16 published figures are off by more \
               than 10 %, 0 of them with the reason; short runs";
    assert_eq!(held(&|_| {}), (true, all.to_owned()));
    let (is_met, text) = held(&|result| {
        let cell = &mut result.cells[3];
        (cell.measured, cell.limit, cell.machine) =
            (17.7, "machine".into(), Some("packets were late".into()));
    });
    assert!(
        !is_met
            && text.contains("15 of 16")
            && text.contains("less: max_tcp_window 64KB, direction I-to-T, rtt_ms 50: 17.7 of 18.8 MB/s, 94.1 %; machine: packets"),
        "{text}"
    );
    let off = |why: Option<&'static str>| {
        held(&move |result: &mut StudyResult| {
            (result.cells[0].published, result.cells[0].why) = (Some(5.0), why.map(str::to_owned));
        })
    };
    assert!(off(Some("slower hosts")).0);
    let (is_met, text) = off(None);
    assert!(!is_met && text.contains("without a reason: max_tcp_window 64KB, "), "{text}");
    let (is_met, text) = held(&|result| drop(result.cells.pop()));
    assert!(!is_met && text.contains("1 cells were not measured"), "{text}");
    // Others may reach less, but nobody may be without a reason; and other targets are not ours.
    let mut other = result("read");
    other.cells[2].published = None;
    assert!(check(&[other.clone()])[2].is_met());
    other.cells[1].parameters.push(("target".into(), "tgtd".into()));
    let altered = StudyResult { altered: Some("DataDigest=CRC32C is set".to_owned()), ..other.clone() };
    let verdict = check(&[altered]).remove(2);
    assert!(
        !verdict.is_met() && verdict.to_string().contains("; it is another study: DataDigest=CRC32C is set")
    );
    assert!(check(&[other.clone()])[2].is_met(), "what others reach is theirs");
    // A figure that stands beside theirs has its reason, too.
    other.cells[1].published = Some(9.0);
    assert!(!check(&[other.clone()])[2].is_met());
    other.cells[1].why = Some("other hosts".into());
    assert!(check(&[other])[2].is_met());
}

/// A cell like this one for each of a study.
fn whole(name: &str, cell: &CellResult) -> Vec<CellResult> {
    let cells = study(name).expect("a study").parameters().into_iter();
    let parameters =
        cells.map(|pairs| pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    parameters.map(|parameters| CellResult { parameters, ..cell.clone() }).collect()
}

#[test]
fn only_cells_of_the_study_count_and_each_once() {
    let told = |change: &dyn Fn(&mut Vec<CellResult>)| {
        let mut result = result("read");
        result.study = "dalgic-tcp".into();
        result.cells = whole("dalgic-tcp", &result.cells[0]);
        change(&mut result.cells);
        let verdict = check(&[result]).remove(0);
        (verdict.is_met(), verdict.to_string())
    };
    assert!(told(&|_| ()).0);
    let (is_met, text) = told(&|cells| {
        let first = cells[0].clone();
        cells.iter_mut().for_each(|cell| *cell = first.clone());
    });
    assert!(
        !is_met && text.contains("1 of 1 cells reach") && text.contains("15 cells were not measured"),
        "{text}"
    );
    assert!(
        text.contains("1 cells are there more than once")
            && text.contains("more than once: max_tcp_window 64KB, "),
        "{text}"
    );
    let (is_met, text) = told(&|cells| cells[3].parameters.clear());
    assert!(!is_met && text.contains("none of the study's: one without parameters"), "{text}");
    let (is_met, text) = told(&|cells| cells.push(result("read").cells.remove(0)));
    assert!(!is_met && text.contains("1 cells are none of the study's"), "{text}");
    assert!(text.contains("16 of 16 cells reach") && text.contains("study's: mode read, rtt_ms 0"), "{text}");
    // The same on another target is another cell, and ours may be named.
    let (is_met, text) = told(&|cells| {
        for (at, target) in [(0, "tgtd"), (0, "istgt")] {
            let mut other = cells[at].clone();
            other.parameters.push(("target".into(), target.into()));
            cells.push(other);
        }
        cells[0].parameters.push(("target".into(), "lunette".into()));
    });
    assert!(is_met, "{text}");
}

#[test]
fn what_nobody_can_explain_is_a_defect_in_every_study() {
    let checked = |change: &dyn Fn(&mut CellResult)| {
        let mut result = result("read");
        (result.cells[1].limit, result.cells[1].measured) = ("command-window".into(), 3.99);
        change(&mut result.cells[1]);
        let verdict = check(&[result]).remove(2);
        (verdict.is_met(), verdict.to_string())
    };
    assert!(checked(&|_| ()).0);
    let (is_met, text) = checked(&|cell| (cell.limit, cell.measured) = ("unexplained".into(), 3.798));
    assert!(!is_met && text.contains(" 0 are off the model by more than 10 %; 1 are unexplained;"), "{text}");
    // Not rounded up to what it does not reach.
    assert!(
        text.contains("unexplained: mode read, rtt_ms 50: 3.80 of 4.00 MB/s, 94.9 %; unexplained"),
        "{text}"
    );
    assert_eq!(percent(0.95 - 1e-9), "94.9");
    // Without a model as well.
    let (is_met, text) = checked(&|cell| (cell.limit, cell.model) = ("unexplained".into(), None));
    assert!(!is_met && text.contains("unexplained: mode read, rtt_ms 50: 3.99 MB/s; unexplained"), "{text}");
    // What is better than the model is off it, too, and needs a reason.
    let more = |above: Option<&'static str>| {
        checked(&move |cell| (cell.measured, cell.above) = (4.5, above.map(str::to_owned)))
    };
    let (is_met, text) = more(None);
    assert!(
        !is_met && text.contains(" 1 are off the model") && text.contains("112.5 %; command-window"),
        "{text}"
    );
    assert!(more(Some("TCP had more")).0);
    // What this machine or a disk was too slow for has its figures.
    let (is_met, text) = checked(&|cell| (cell.limit, cell.measured) = ("machine".into(), 3.0));
    assert!(
        is_met && text.contains("less: mode read, rtt_ms 50: 3.00 of 4.00 MB/s, 75.0 %; machine"),
        "{text}"
    );
}

#[test]
fn what_does_not_recover_is_a_defect() {
    let mut result = result("read");
    (result.cells[1].limit, result.cells[1].measured) = ("command-window".into(), 3.99);
    assert!(check(&[result.clone()])[2].is_met());
    let cell = &mut result.cells[1];
    (cell.limit, cell.model, cell.measured, cell.unit) =
        ("not-recovered".into(), None, 20_000.0, "ms".into());
    let verdict = check(&[result]).remove(2);
    let text = verdict.to_string();
    assert!(!verdict.is_met() && text.contains("; 1 have not recovered;"), "{text}");
    assert!(
        text.contains("\n  not recovered: mode read, rtt_ms 50: 20000 ms; not-recovered")
            && !text.contains("unexplained"),
        "{text}"
    );
}

#[test]
fn what_a_file_says_moves_no_cursor_and_has_no_end() {
    let mut result = result("read\u{1b}[2J\0");
    result.cells[0].why = Some("slower\u{7}\nhosts".into());
    result.cells[0].published = Some(5.0);
    result.cells[1].limit = "store\u{1b}[31m".into();
    result.cells[2].measured = 1e308;
    result.cells[1].spread = Some(1e308);
    result.cells[1].model = Some(1e-300);
    result.altered = Some("\u{1b}]0;title\u{7}".into());
    let results = [result];
    let told: String = check(&results).iter().map(|verdict| format!("{verdict}\n")).collect();
    for text in [html(&results), markdown(&results), told] {
        let control = text.chars().find(|character| character.is_control() && *character != '\n');
        assert_eq!(control, None, "{text}");
        let is_long = |word: &str| word.bytes().filter(u8::is_ascii_digit).count() > 40;
        assert!(!text.split([' ', '<', '>', '|']).any(is_long), "{text}");
        assert!(text.contains("read\u{fffd}[2J\u{fffd}"), "{text}");
    }
    assert_eq!(
        [figure_text(1e308), figure_text(-2.5e12), figure_text(9.9e11)],
        ["1.00e308", "-2.50e12", "990000000000"]
    );
}

#[test]
fn curves_have_a_point_for_each_cell() {
    let mut result = result("<read>");
    result.axes = Some(("rtt_ms".into(), "mode".into()));
    let page = html(&[result]);
    // One measured, one of the model, which is dashed, one published; and each again in the legend.
    assert_eq!((page.matches("<svg").count(), page.matches("<polyline").count()), (1, 2 * 3));
    assert_eq!((page.matches("\"5 4\"").count(), page.matches("\"1 3\"").count()), (2, 2));
    for series in ["measured", "model", "published"] {
        assert!(page.contains(&format!(">{series}</text>")), "{page}");
    }
    assert_eq!(page.matches("<circle").count(), 3 + 1);
    assert!(!page.contains("NaN") && !page.contains("inf") && !page.contains("<read>"), "{page}");
}

#[test]
fn designs_of_a_target_are_told_with_their_cache() {
    let mut result = result("read");
    let designs = ["threads", "uring", "diskio"].iter().zip(["2", "4", "4"]);
    for (cell, (design, size)) in result.cells.iter_mut().zip(designs) {
        cell.parameters = vec![("size_kib".into(), size.into()), ("design".into(), design.to_string())];
    }
    let told = ["threads (cached)", "uring (direct)", "diskio (direct)"];
    assert_eq!(row(&result, &result.cells[1])[1], told[1]);
    let across = html(std::slice::from_ref(&result));
    result.axes = Some(("size_kib".into(), "design".into()));
    let down = html(&[result]);
    for design in told {
        assert!(across.contains(&format!("<th>design {design}</th>")), "{design} at the top of its column");
        assert!(down.contains(&format!("<th>{design}</th>")), "{design} before its row");
        assert!(down.contains(&format!(">design {design}</text>")), "{design} as a curve");
    }
    // Those of a figure that differ by it alone.
    assert!(told[1..].iter().all(|design| across.contains(&format!("design {design}</text>"))), "{across}");
}

#[test]
fn many_links_are_told_together() {
    let mut result = result("read");
    let link = result.link.values().next().expect("a link").clone();
    for name in ["a", "b", "c", "d"] {
        result.link.insert(name.into(), LinkFacts { late_us: 40, overrun: 1, ..link.clone() });
    }
    let notes = notes(&result).join("\n");
    let told = "5 links, cubic; packets were up to 40 us late there and back; 4 packets were lost because";
    assert!(notes.contains(told), "{notes}");
    // And each of them is stated.
    let rows: Vec<String> = link_table(&result).iter().map(|row| row.join(" | ")).collect();
    assert_eq!(rows.len(), 1 + 5);
    assert_eq!(
        rows[..2],
        [
            "link | properties | congestion control | late us | lost here | 48 bytes us | command us",
            "a | rate=155M | cubic | 40 | 1 | - | -"
        ]
    );
    assert!(html(std::slice::from_ref(&result)).contains("<td>oc3-0</td><td>rate=155M</td>"));
    assert!(markdown(std::slice::from_ref(&result)).contains("### Links\n\n| link | properties |"));
    result.link.pop_last();
    assert!(link_table(&result).is_empty(), "four are told in sentences");
}

#[test]
fn what_both_ends_take_at_rest_stands_beside_plain_tcp() {
    let mut result = result("read");
    let link = result.link.get_mut("oc3-0").expect("a link");
    link.echo_us = Some(80.0);
    assert!(
        notes(&result).join("\n").contains("; at rest 48 bytes took 80.0 us there and back by plain TCP.")
    );
    for (cell, us) in result.cells.iter_mut().zip([100.0, 120.0, 110.0]) {
        (cell.round_trip_us, cell.echo_us) = (Some(us), Some(80.0));
    }
    // Beside other traffic nothing is at rest.
    let busy = CellResult { round_trip_us: Some(900.0), echo_us: None, ..result.cells[0].clone() };
    result.cells.extend([1, 2, 3].map(|_| busy.clone()));
    // Another target's part is not ours.
    let others = CellResult { round_trip_us: Some(900.0), ..result.cells[0].clone() };
    let parameters = vec![("target".into(), "tgtd".into())];
    result.cells.extend([1, 2, 3].map(|_| CellResult { parameters: parameters.clone(), ..others.clone() }));
    let middle = command_us(&result, "oc3-0").expect("a median");
    let told = notes(&result).join("\n");
    let part = format!(
        "and TEST UNIT READY {} us, of which {} us are the part of both ends",
        figure_text(middle),
        figure_text(middle - 80.0)
    );
    assert!((100.0..=120.0).contains(&middle) && told.contains(&part), "{told}");
}

#[test]
fn the_page_has_its_contents_and_tables_as_papers_have_them() {
    let page = html(&[result("read"), result("<b>")]);
    for target in ["made-up", "made-up-table", "made-up-figures", "made-up-cells", "made-up-notes"] {
        assert!(page.contains(&format!("href=\"#{target}\"")), "{target}");
        assert!(page.contains(&format!("id=\"{target}\"")), "{target}");
    }
    assert!(page.contains("<h3>measured / model / published in MB/s</h3>"), "{page}");
    assert!(
        page.contains("<tr><th>mode</th><th>rtt_ms 0</th><th>rtt_ms 50</th><th>rtt_ms 2</th></tr>"),
        "{page}"
    );
    assert!(page.contains("<tr><th>read</th><td>18.7 / 18.8 / 19.3<small>link-rate</small></td><td class=\"off\">0.100 / 4.00 / -"));
    assert!(page.contains("<th>&lt;b&gt;</th>") && page.contains("<summary>All 3 cells</summary>"));
    let text = markdown(&[result("read")]);
    assert!(
        text.contains("| read | 18.7 / 18.8 / 19.3 (link-rate) | 0.100 / 4.00 / - (link-rate) |"),
        "{text}"
    );
    assert_eq!(anchor("a b\"<>"), "a-b---");
}

#[test]
fn a_proxy_is_named_as_such() {
    let mut result = result("read");
    let mut link = result.link.values().next().expect("a link").clone();
    (link.proxy, link.late_us) = (true, 0);
    result.link.insert("oc3-0".into(), link.clone());
    assert!(notes(&result).join("\n").contains("this is no network but a TCP proxy"));
    let late = LinkFacts { late_us: 700, is_doubtful: true, ..link.clone() };
    let told = notes(&StudyResult { link: BTreeMap::from([("oc3-0".into(), late)]), ..result.clone() });
    let told = told.join("\n");
    assert!(told.contains("up to 700 us late there and back. This machine did not keep up"), "{told}");
    for name in ["a", "b", "c", "d"] {
        result.link.insert(name.into(), link.clone());
    }
    let notes = notes(&result).join("\n");
    assert!(notes.contains("5 links; this is no network") && !notes.contains("late there"), "{notes}");
}

#[test]
fn a_page_has_each_study_with_its_figures_and_no_markup_of_others() {
    let page = html(&[result("<script>alert(1)</script>&\""), result("read")]);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
    assert_eq!((page.matches("<h2 id=\"made-up\">").count(), page.matches("<svg").count()), (2, 2));
    assert_eq!(page.matches("class=\"measured\" x=").count(), 2 * (3 + 1), "bars and the legend");
    assert!(!page.contains("NaN") && !page.contains("inf\""), "{page}");
    assert_eq!(page.matches("<tr class=\"off\">").count(), 2);
    let text = markdown(&[result("a|b")]);
    assert!(text.contains("| a\\|b | 0 | 18.7 |"), "{text}");
}

#[test]
fn runs_that_have_failed_are_told_everywhere_and_never_pass() {
    let mut result = result("read");
    result.cells[1].limit = "link-rate".into();
    (result.cells[1].measured, result.cells[2].published) = (3.99, None);
    assert!(check(&[result.clone()])[2].is_met());
    let lost = |rtt_ms: &str, runs, is_measured| Failed {
        parameters: vec![("mode".into(), "read".into()), ("rtt_ms".into(), rtt_ms.into())],
        link: Some("oc3-0".into()),
        runs,
        is_measured,
        reason: "the target has <ended>".into(),
    };
    result.failed = vec![lost("2", 1, true), lost("100", 3, false)];
    let lines = [
        "mode read, rtt_ms 2: 1 run, others count; the target has <ended>.",
        "mode read, rtt_ms 100: 3 runs, there is no figure; the target has <ended>.",
    ];
    assert_eq!(sections(&result)[0].1, lines);
    assert!(
        notes(&result).join("\n").contains("Runs of 2 cells have failed; 1 of these cells have no figure.")
    );
    let (page, text) = (html(std::slice::from_ref(&result)), markdown(std::slice::from_ref(&result)));
    assert!(page.contains("<summary>Runs that have failed</summary>") && page.contains("rtt_ms 100: 3 runs"));
    assert!(page.contains("&lt;ended&gt;") && text.contains("- mode read, rtt_ms 100: 3 runs"), "{text}");
    let verdict = check(&[result.clone()]).remove(2);
    let told = verdict.to_string();
    assert!(!verdict.is_met() && told.contains("; runs of 2 cells have failed"), "{told}");
    assert!(told.contains(&format!("\n  failed: {}\n  failed: {}", lines[0], lines[1])), "{told}");
    // Where nothing at all was measured as well.
    result.cells.clear();
    assert!(html(std::slice::from_ref(&result)).contains(lines[1].split(';').next().expect("a part")));
    // Results from before have no such list.
    let mut json = serde_json::to_value(&result).expect("JSON");
    assert!(json.as_object_mut().expect("an object").remove("failed").is_some());
    assert!(serde_json::from_value::<StudyResult>(json).is_ok_and(|read| read.failed.is_empty()));
}
