//! Results of studies as a page that needs nothing else (HTML with its figures), and as text (Markdown).

mod check;
mod curves;
mod figure;
mod grid;

use std::fmt::Write;

use crate::study::{
    CellResult, LinkFacts, OFF, REACHED, StudyResult, Summary, Times, UNEXPLAINED, summaries,
};

pub use check::{Verdict, check};

use grid::{Grid, Place};

/// The names of the columns of [`row`].
#[must_use]
pub fn columns(result: &StudyResult) -> Vec<String> {
    let parameters = result.cells.first().map(|cell| cell.parameters.as_slice()).unwrap_or_default();
    let unit = if result.cells.windows(2).all(|pair| pair[0].unit == pair[1].unit) {
        result.cells.first().map(|cell| format!(" {}", cell.unit)).unwrap_or_default()
    } else {
        String::new()
    };
    let mut names: Vec<String> = parameters.iter().map(|pair| pair.0.clone()).collect();
    names.extend([
        format!("measured{unit}"),
        "model".into(),
        "published".into(),
        "to model".into(),
        "to published".into(),
    ]);
    names.extend(["limit".to_owned(), "spread".to_owned()]);
    for (name, unit, is_published) in further(result) {
        names.push(if unit.is_empty() { name.to_owned() } else { format!("{name} {unit}") });
        if is_published {
            names.push(format!("{name} published"));
        }
    }
    names
}

/// What further figures there are, of which unit, and whether any was published.
fn further(result: &StudyResult) -> Vec<(&str, &str, bool)> {
    let mut all: Vec<(&str, &str, bool)> = Vec::new();
    for one in result.cells.iter().flat_map(|cell| &cell.further) {
        match all.iter_mut().find(|known| known.0 == one.name) {
            Some(known) => known.2 |= one.published.is_some(),
            None => all.push((&one.name, &one.unit, one.published.is_some())),
        }
    }
    all
}

/// A figure with three digits that count.
pub(crate) fn figure_text(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// One cell of a result as a row of its table.
#[must_use]
pub fn row(result: &StudyResult, cell: &CellResult) -> Vec<String> {
    let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure_text);
    let ratio = |to: Option<f64>| {
        let to = to.filter(|to| *to > 0.0);
        to.map_or_else(|| "-".to_owned(), |to| format!("{:.2}", cell.measured / to))
    };
    let mut row: Vec<String> = cell.parameters.iter().map(|pair| pair.1.clone()).collect();
    row.extend([figure_text(cell.measured), or_dash(cell.model), or_dash(cell.published)]);
    let above = if cell.above.is_some() { ", above-model" } else { "" };
    row.extend([ratio(cell.model), ratio(cell.published), format!("{}{above}", cell.limit)]);
    let spread = cell.spread.filter(|_| cell.runs.len() > 1);
    row.push(spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.0} %", spread * 100.0)));
    for (name, _, is_published) in further(result) {
        let own = cell.further.iter().find(|own| own.name == name);
        row.push(or_dash(own.map(|own| own.measured)));
        if is_published {
            row.push(or_dash(own.and_then(|own| own.published)));
        }
    }
    row
}

/// A cell's parameters in words.
fn named(cell: &CellResult) -> String {
    let words: Vec<String> = cell.parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    words.join(", ")
}

/// What stands above [`times`].
pub const TIMES_TITLE: &str = "How long single operations took, in ms (published in parentheses)";

/// How long single operations took in those cells whose figures are times: the names of the columns, then a row for each cell. Empty where there
/// is none.
#[must_use]
pub fn times(result: &StudyResult) -> Vec<Vec<String>> {
    let cells = || result.cells.iter().filter_map(|cell| Some((cell, cell.times?)));
    let Some((first, _)) = cells().next() else { return Vec::new() };
    let is_told = |at: usize| {
        cells().any(|(cell, times)| {
            let published = cell.published_times.unwrap_or_default();
            times.named()[at].1.is_some() || published.named()[at].1.is_some()
        })
    };
    let columns: Vec<usize> = (0..Times::default().named().len()).filter(|&at| is_told(at)).collect();
    let mut header: Vec<String> = first.parameters.iter().map(|pair| pair.0.clone()).collect();
    header.push("operations".to_owned());
    header.extend(columns.iter().map(|&at| Times::default().named()[at].0.to_owned()));
    let row = |(cell, times): (&CellResult, Times)| {
        let published = cell.published_times.unwrap_or_default();
        let mut row: Vec<String> = cell.parameters.iter().map(|pair| pair.1.clone()).collect();
        row.push(times.of.map_or_else(|| "-".to_owned(), |of| of.to_string()));
        row.extend(columns.iter().map(|&at| {
            let measured = times.named()[at].1.map_or_else(|| "-".to_owned(), figure_text);
            let published = published.named()[at].1.map(|figure| format!(" ({})", figure_text(figure)));
            measured + &published.unwrap_or_default()
        }));
        row
    };
    let rows: Vec<Vec<String>> = cells().map(row).collect();
    std::iter::once(header).chain(rows).collect()
}

/// What is to be said about single cells, under headings: where the time of operations went, where this machine was the limit, and why
/// figures differ from the model and from what was published.
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

/// What is to be said about the figures, in sentences.
#[must_use]
pub fn notes(result: &StudyResult) -> Vec<String> {
    let mut notes = vec![result.differs.clone()];
    let cells = &result.cells;
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
    let count = |limit: &str| cells.iter().filter(|cell| cell.limit == limit).count();
    let slow = count("machine");
    if slow > 0 {
        notes.push(format!(
            "In {slow} cells this machine, which runs both ends and the network, was the limit: less came than {:.0} % of what the model \
             expects, and all processors were busy, or one thread had one to itself, or packets were late or lost. The figures of \
             each stand below.",
            REACHED * 100.0
        ));
    }
    let unexplained = count(UNEXPLAINED);
    if unexplained > 0 {
        notes.push(format!(
            "In {unexplained} cells less came than the model expects, and the machine was not the reason."
        ));
    }
    let mut absent: Vec<(&str, usize)> = Vec::new();
    for reason in cells.iter().filter_map(|cell| cell.model_absent.as_deref()) {
        match absent.iter_mut().find(|known| known.0 == reason) {
            Some(known) => known.1 += 1,
            None => absent.push((reason, 1)),
        }
    }
    notes.extend(absent.iter().map(|(reason, count)| format!("{count} cells have no model: {reason}.")));
    if let Some(cached) = cells.iter().filter_map(|cell| cell.cached).reduce(f64::max) {
        let percent = cached * 100.0;
        notes.push(format!(
            "When a run with a cold image began, {percent:.1} % of it at most was in this machine's page cache."
        ));
    }
    notes.extend(links(result));
    if result.is_quick {
        notes.push("One short run a cell: the figures are rough.".to_owned());
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

/// More links than these have a table ([`link_table`]) instead of a sentence each.
const LINKS_MAX: usize = 4;

/// What stands above [`link_table`].
pub const LINKS_TITLE: &str = "Links";

/// Where there are too many links for a sentence each: the names of the columns, then a row for each of them. Empty where there are few.
#[must_use]
pub fn link_table(result: &StudyResult) -> Vec<Vec<String>> {
    if result.link.len() <= LINKS_MAX {
        return Vec::new();
    }
    let header = ["link", "properties", "congestion control", "late us", "lost here"];
    let row = |(name, link): (&String, &LinkFacts)| {
        let told = |text: String| if link.proxy { "-".to_owned() } else { text };
        vec![
            name.clone(),
            if link.proxy { format!("{} (proxy)", link.description) } else { link.description.clone() },
            told(link.congestion_control.clone()),
            told(link.late_us.to_string()),
            told(link.overrun.to_string()),
        ]
    };
    std::iter::once(header.map(str::to_owned).to_vec()).chain(result.link.iter().map(row)).collect()
}

/// What is to be said of figures without a network.
const PROXY: &str = "this is no network but a TCP proxy (`link.proxy`), which has the delay and the rate; TCP sees neither of them, so its windows and \
                     its congestion control are not in the figures.";

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
                return format!("Link {name}: {}; {PROXY}", link.description);
            }
            format!(
                "Link {name}: {}, {}; packets were {} us late there and back{}.",
                link.description,
                link.congestion_control,
                link.late_us,
                lost(link.overrun)
            )
        };
        return links.iter().map(each).collect();
    }
    if links.values().any(|link| link.proxy) {
        return vec![format!("{} links; {PROXY}", links.len())];
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

/// All results as text.
#[must_use]
pub fn markdown(results: &[StudyResult]) -> String {
    let mut text = String::from("# Studies repeated\n");
    for result in results {
        let _ = write!(
            text,
            "\n## {}\n\n{}: {}.\n\n",
            result.study,
            escaped(&result.paper, MARKDOWN),
            escaped(&result.question, MARKDOWN)
        );
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell, MARKDOWN)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let table = |rows: &[Vec<String>]| {
            let [header, rows @ ..] = rows else { return String::new() };
            let rows: String = rows.iter().map(|row| line(row)).collect();
            format!("{}|{}\n{rows}\n", line(header), "---|".repeat(header.len()))
        };
        for grid in grid::grids(result) {
            text += &format!("### {}\n\n{}", escaped(&grid.title, MARKDOWN), table(&grid_rows(&grid)));
        }
        text += "### All cells\n\n";
        text += &line(&columns(result));
        text += &format!("|{}\n", "---|".repeat(columns(result).len()));
        for cell in &result.cells {
            text += &line(&row(result, cell));
        }
        for Summary { title, columns, rows } in summaries(result) {
            text += &format!("\n### {title}\n\n{}|{}\n", line(&columns), "---|".repeat(columns.len()));
            text.extend(rows.iter().map(|row| line(row)));
        }
        for note in notes(result) {
            let _ = write!(text, "\n- {}", escaped(&note, MARKDOWN));
        }
        text.push('\n');
        for (title, rows) in [(LINKS_TITLE, link_table(result)), (TIMES_TITLE, times(result))] {
            if !rows.is_empty() {
                let _ = write!(text, "\n### {title}\n\n{}", table(&rows));
            }
        }
        for (title, lines) in sections(result) {
            let _ = write!(text, "\n### {title}\n");
            for line in lines {
                let _ = write!(text, "\n- {}", escaped(&line, MARKDOWN));
            }
            text.push('\n');
        }
    }
    text
}

/// A table as rows of text, of which the first has the names of its columns.
fn grid_rows(grid: &Grid) -> Vec<Vec<String>> {
    let place = |place: &Option<Place>| {
        place.as_ref().map_or_else(String::new, |place| format!("{} ({})", place.figures, place.limit))
    };
    let row = |(key, places): &(Vec<String>, Vec<Option<Place>>)| {
        key.iter().cloned().chain(places.iter().map(place)).collect()
    };
    std::iter::once(grid.columns.clone()).chain(grid.rows.iter().map(row)).collect()
}

const MARKDOWN: &[(char, &str)] = &[('|', "\\|"), ('<', "&lt;"), ('\n', " ")];
const HTML: &[(char, &str)] = &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")];

/// Text in which no character has a meaning of its own: results are files, which may come from anywhere.
fn escaped(text: &str, table: &[(char, &str)]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match table.iter().find(|row| row.0 == character) {
            Some((_, instead)) => escaped.push_str(instead),
            None => escaped.push(character),
        }
    }
    escaped
}

pub(crate) fn html_text(text: &str) -> String {
    escaped(text, HTML)
}

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}\
th,td{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}th{border-bottom:2px solid #888}\
tr.off td,td.off{background:#fdf3e0}td small{display:block;color:#666}summary{cursor:pointer;margin:.5em 0}svg{max-width:100%;height:auto;font:11px system-ui,sans-serif}\
.grid{stroke:#ddd}.measured{fill:#2563a8}.model{fill:#9aa5b1}.published{fill:#d08a2b}";

/// All results as one page.
#[must_use]
pub fn html(results: &[StudyResult]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Studies repeated</title>\n<style>{STYLE}</style></head>\n\
         <body><h1>Studies repeated</h1>\n"
    );
    page += &html_contents(results);
    for result in results {
        let at = anchor(&result.study);
        let _ = write!(
            page,
            "<h2 id=\"{at}\">{}</h2>\n<p>{}: {}.</p>\n",
            html_text(&result.study),
            html_text(&result.paper),
            html_text(&result.question)
        );
        let grids = grid::grids(result);
        if !grids.is_empty() {
            let _ = writeln!(page, "<div id=\"{at}-table\"></div>");
        }
        page.extend(grids.iter().map(html_grid));
        let _ = writeln!(page, "<div id=\"{at}-figures\"></div>");
        page += &match &result.axes {
            Some((across, curves)) => curves::figures(result, across, curves),
            None => figure::figures(result),
        };
        // What has a table already is there once more, with all that is known of it.
        let count = result.cells.len();
        let _ = write!(
            page,
            "<details id=\"{at}-cells\"{}><summary>All {count} cells</summary>\n{}</details>\n",
            if grids.is_empty() { " open" } else { "" },
            html_table(result)
        );
        for Summary { title, columns, rows } in summaries(result) {
            page += &html_rows(&title, &columns, &rows);
        }
        let _ = writeln!(page, "<ul id=\"{at}-notes\">");
        for note in notes(result) {
            let _ = writeln!(page, "<li>{}</li>", html_text(&note));
        }
        page += "</ul>\n";
        for (title, rows) in [(LINKS_TITLE, link_table(result)), (TIMES_TITLE, times(result))] {
            if let [header, rows @ ..] = &*rows {
                page += &html_rows(title, header, rows);
            }
        }
        page += &html_sections(result);
    }
    page + "</body></html>\n"
}

/// Where a study is on the page: its name, without anything that means something there.
fn anchor(study: &str) -> String {
    study.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn html_contents(results: &[StudyResult]) -> String {
    let item = |result: &StudyResult| {
        let (at, name) = (anchor(&result.study), html_text(&result.study));
        let table = if grid::grids(result).is_empty() {
            String::new()
        } else {
            format!("<a href=\"#{at}-table\">table</a>, ")
        };
        format!(
            "<li><a href=\"#{at}\">{name}</a>: {}: {table}<a href=\"#{at}-figures\">figures</a>, <a href=\"#{at}-cells\">all {} cells</a>, \
             <a href=\"#{at}-notes\">what is to be said</a></li>\n",
            html_text(&result.question),
            result.cells.len()
        )
    };
    format!(
        "<nav><h2 id=\"contents\">Contents</h2>\n<ul>\n{}</ul></nav>\n",
        results.iter().map(item).collect::<String>()
    )
}

fn html_grid(grid: &Grid) -> String {
    let place = |place: &Option<Place>| {
        let Some(Place { figures, limit, is_off }) = place else { return "<td></td>".to_owned() };
        let class = if *is_off { " class=\"off\"" } else { "" };
        format!("<td{class}>{}<small>{}</small></td>", html_text(figures), html_text(limit))
    };
    let row = |(key, places): &(Vec<String>, Vec<Option<Place>>)| {
        let places: String = places.iter().map(place).collect();
        format!("<tr>{}{places}</tr>\n", html_line("th", key))
    };
    let rows: String = grid.rows.iter().map(row).collect();
    let head = html_line("th", &grid.columns);
    format!("<h3>{}</h3>\n<table>\n<tr>{head}</tr>\n{rows}</table>\n", html_text(&grid.title))
}

fn html_rows(title: &str, header: &[String], rows: &[Vec<String>]) -> String {
    let body: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", html_line("td", row))).collect();
    let head = html_line("th", header);
    format!("<h3>{}</h3>\n<table>\n<tr>{head}</tr>\n{body}</table>\n", html_text(title))
}

/// They are many: who does not want to see them closes them.
fn html_sections(result: &StudyResult) -> String {
    let item = |line: &String| format!("<li>{}</li>\n", html_text(line));
    let section = |(title, lines): (&str, Vec<String>)| {
        let items: String = lines.iter().map(item).collect();
        format!("<details open><summary>{title}</summary>\n<ul>\n{items}</ul></details>\n")
    };
    sections(result).into_iter().map(section).collect()
}

fn html_line(tag: &str, cells: &[String]) -> String {
    cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", html_text(cell))).collect()
}

fn html_table(result: &StudyResult) -> String {
    let mut table = format!("<table>\n<tr>{}</tr>\n", html_line("th", &columns(result)));
    for cell in &result.cells {
        let class = if cell.is_off_model() == Some(true) { " class=\"off\"" } else { "" };
        let _ = writeln!(table, "<tr{class}>{}</tr>", html_line("td", &row(result, cell)));
    }
    table + "</table>\n"
}

#[cfg(test)]
mod tests;
