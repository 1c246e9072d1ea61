//! Results as a page that needs nothing else (HTML with its figures).

use std::fmt::Write;

use super::grid::{self, Grid, Place};
use super::notes::{counted, notes, sections};
use super::table::{LINKS_TITLE, TIMES_TITLE, columns, link_table, row, times};
use super::{curves, escaped, figure};
use crate::study::{StudyResult, Summary, summaries};

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
        let _ = write!(
            page,
            "<details id=\"{at}-cells\"{}><summary>{}</summary>\n{}</details>\n",
            if grids.is_empty() { " open" } else { "" },
            counted(result),
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
pub(super) fn anchor(study: &str) -> String {
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
            "<li><a href=\"#{at}\">{name}</a>: {}: {table}<a href=\"#{at}-figures\">figures</a>, <a href=\"#{at}-cells\">{}</a>, \
             <a href=\"#{at}-notes\">what is to be said</a></li>\n",
            html_text(&result.question),
            counted(result)
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

const HTML: &[(char, &str)] = &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")];

pub(crate) fn html_text(text: &str) -> String {
    escaped(text, HTML)
}
