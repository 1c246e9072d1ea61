//! `lunette wan check`: how true emulated links are on this machine.

use std::process::ExitCode;

use clap::Args;
use lunette_link::Link;
use lunette_wan::{Ceiling, Emulator, Figure, Means, Verdict, ceiling, measure};
use serde::Serialize;

use super::{LINK_HELP, LinkOptions, json, print, start};
use crate::failure::Failure;

/// What is measured when nothing is asked for.
const USUAL_LINKS: [&str; 8] =
    ["lan-100", "gige", "gige-jumbo", "campus", "oc3-2", "oc3-50", "transatlantic", "lte"];

/// The link whose ceiling is told: no rate, no delay, and packets as Ethernet has them.
const CEILING_LINK: &str = "mtu=1500";

/// What `lunette wan check` is told.
#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// A link to measure; may be given several times. Without one some of those that have names are measured
    #[arg(long = "link", value_name = "LINK", long_help = LINK_HELP)]
    links: Vec<String>,
    /// Where all that is left to chance begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FigureRow {
    what: &'static str,
    unit: &'static str,
    expected: f64,
    measured: Option<f64>,
    /// By which means it was measured.
    by: &'static str,
    tolerance: f64,
    good: bool,
    /// `good`, `off`, `cannot-tell` or `not-known`.
    verdict: &'static str,
    /// How much would have to be measured at least, where chance hides what is to be told.
    needs: Option<String>,
}

impl From<&Figure> for FigureRow {
    fn from(figure: &Figure) -> Self {
        Self {
            what: figure.what,
            unit: figure.unit,
            expected: figure.expected,
            measured: figure.measured,
            by: figure.by.name(),
            tolerance: figure.tolerance,
            good: figure.verdict() == Verdict::Good,
            verdict: figure.verdict().name(),
            needs: figure.needs.clone(),
        }
    }
}

#[derive(Serialize)]
struct LinkRow {
    link: String,
    figures: Vec<FigureRow>,
}

#[derive(Serialize)]
struct CeilingRow {
    tcp_gbit_per_s: f64,
    packets_per_s: f64,
    offload: bool,
}

#[derive(Serialize)]
struct Checked {
    seed: u64,
    ceiling: CeilingRow,
    links: Vec<LinkRow>,
    /// Nothing is off, and nothing is not known.
    good: bool,
}

/// Measures the links one after the other. The status is 0 if nothing is off and this machine could tell, and 6 otherwise.
pub(super) fn check(options: &CheckOptions) -> Result<ExitCode, Failure> {
    let names: Vec<&str> = match options.links.as_slice() {
        [] => USUAL_LINKS.to_vec(),
        links => links.iter().map(String::as_str).collect(),
    };
    let parse =
        |name: &&str| name.parse::<Link>().map_err(|error| Failure::usage(format!("--link {name}: {error}")));
    let links = names.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let failed = |error: std::io::Error| Failure::network("the network cannot be measured", &error);
    let ceiling_link = parse(&CEILING_LINK)?;
    let ceiling = with_network(&ceiling_link, options.seed, |emulator| ceiling(emulator).map_err(failed))?;
    if !options.json {
        print(&format!("this machine carries {}\n", described(&ceiling)))?;
    }
    let (mut rows, mut good) = (Vec::new(), true);
    for (name, link) in names.iter().zip(&links) {
        let figures = with_network(link, options.seed, |emulator| measure(emulator, link).map_err(failed))?;
        if !options.json {
            print(&table(name, &figures))?;
        }
        good &= figures.iter().all(|figure| figure.verdict().is_no_fault());
        rows.push(LinkRow {
            link: (*name).to_owned(),
            figures: figures.iter().map(FigureRow::from).collect(),
        });
    }
    if options.json {
        let Ceiling { tcp_gbit_per_s, packets_per_s, offload } = ceiling;
        let ceiling = CeilingRow { tcp_gbit_per_s, packets_per_s, offload };
        print(&json(&Checked { seed: options.seed, ceiling, links: rows, good })?)?;
    }
    if good {
        return Ok(ExitCode::SUCCESS);
    }
    let message =
        "this machine does not keep to all of these links, so that figures taken on them would be its own";
    Err(Failure::mismatch(message.to_owned())
        .with_help("try again when nothing else runs, or use links with lower rates or longer delays"))
}

fn with_network<T>(
    link: &Link,
    seed: u64,
    work: impl FnOnce(&Emulator) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let emulator = start(&LinkOptions { link: link.clone(), seed })?;
    let done = work(&emulator)?;
    emulator.end().map_err(|error| Failure::network("the emulated network failed", &error))?;
    Ok(done)
}

fn described(ceiling: &Ceiling) -> String {
    let offload = if ceiling.offload { "with" } else { "without" };
    format!(
        "{:.2} Gb/s of TCP in packets of 1500 bytes, {offload} segmentation offload, and {:.0} packets/s",
        ceiling.tcp_gbit_per_s, ceiling.packets_per_s
    )
}

/// A line for each figure.
fn table(name: &str, figures: &[Figure]) -> String {
    let line = |figure: &Figure| {
        let is = match figure.measured {
            Some(measured) => format!("{measured:>9.3} {:<5}", figure.unit),
            None => "this machine cannot tell".to_owned(),
        };
        let verdict = match figure.verdict() {
            Verdict::NotKnown => "NOT KNOWN".to_owned(),
            Verdict::Good => "good".to_owned(),
            Verdict::Off => "OFF".to_owned(),
            Verdict::CannotTell => {
                let needs = figure.needs.as_deref().unwrap_or_default();
                // Where it is a number, more of them would tell.
                let is_chance = needs.starts_with(|first: char| first.is_ascii_digit());
                format!(
                    "cannot tell{}, it takes {needs}",
                    if is_chance { ": chance makes as much" } else { "" }
                )
            }
        };
        let by = match (figure.measured, figure.by) {
            (None, _) | (_, Means::Datagrams) => String::new(),
            (Some(_), other) => format!(", by {}", other.name()),
        };
        format!(
            "  {:<18} {:>9.3} {:<5} within {:>7.3}: {is} {verdict}{by}\n",
            figure.what, figure.expected, figure.unit, figure.tolerance
        )
    };
    format!("{name}\n{}", figures.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_chance_hides_is_not_called_good() {
        let figure = |needs: Option<&str>| Figure {
            what: "loss, near to far",
            unit: "%",
            expected: 0.001,
            measured: Some(0.0),
            by: Means::Datagrams,
            tolerance: 0.017,
            needs: needs.map(str::to_owned),
        };
        let row = |needs| serde_json::to_value(FigureRow::from(&figure(needs))).expect("JSON");
        let told = row(Some("1460000 packets"));
        assert_eq!((&told["good"], &told["verdict"]), (&false.into(), &"cannot-tell".into()));
        assert_eq!((&row(None)["good"], &row(None)["needs"]), (&true.into(), &serde_json::Value::Null));
        let text = table("transatlantic", &[figure(Some("1460000 packets"))]);
        assert!(text.ends_with("cannot tell: chance makes as much, it takes 1460000 packets\n"), "{text}");
        assert!(table("transatlantic", &[figure(None)]).ends_with("good\n"));
    }
}
