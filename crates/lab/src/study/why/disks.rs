//! What a paper's disks made of its figures: how fast they turned, and what they gave without a network.

use super::commands::Commands;
use super::value;
use crate::report::figure_text;
use crate::study::published::{LU_HEAVY, LU_LIGHT, LU_TRACE, Published};
use crate::study::{Cell, Study, lu, trinkle};

/// The disks of a paper.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disks {
    count: u32,
    /// Turns per minute.
    pub(super) speed: u32,
}

impl Disks {
    /// What papers say of theirs: the table of disk parameters of Lu and Du, who had six of them at work at most; the list of hardware of
    /// Trinkle, whose RAID 0 had four. Dalgic and others wrote into a cache and read from one.
    pub(super) fn of(study: &Study) -> Option<Self> {
        match study.paper {
            paper if paper == lu::LIGHT.paper => Some(Self { count: 6, speed: 10_025 }),
            paper if paper == trinkle::PROFILES.paper => Some(Self { count: 4, speed: 7200 }),
            _ => None,
        }
    }

    /// How long half a turn takes in milliseconds: what a random block is away on average.
    pub(super) fn half_turn_ms(self) -> f64 {
        30_000.0 / f64::from(self.speed)
    }

    /// Whether so many commands under way, each of which took so long, were as slow as disks are: each disk took at least half a
    /// turn for one.
    fn slowness(self, depth: u32, command_ms: f64) -> Option<String> {
        let at_work = self.count.min(depth);
        let each_ms = command_ms * f64::from(at_work) / f64::from(depth.max(1));
        (each_ms >= self.half_turn_ms()).then(|| {
            format!(
                "{} took {} ms for one, of which half a turn is {} ms",
                if at_work == 1 { "a disk".to_owned() } else { format!("each of {at_work} disks") },
                figure_text(each_ms),
                figure_text(self.half_turn_ms())
            )
        })
    }
}

/// Disks, where commands took as long as disks take: at random places, or without a network.
pub(super) fn slow_disks(
    disks: Disks,
    cell: &Cell,
    commands: &Commands,
    measured: f64,
    published: f64,
) -> Option<String> {
    let (there_ms, here_ms) = (commands.time_ms(published), commands.time_ms(measured));
    let figures =
        format!("a command took {} ms there and {} ms here", figure_text(there_ms), figure_text(here_ms));
    if commands.random_percent > 0 {
        let slowness = disks.slowness(commands.depth, there_ms)?;
        return Some(format!("disks: {figures}; there {slowness}, and here memory takes their place"));
    }
    // In order, and nothing but the disks is between.
    cell.link.is_none().then(|| {
        format!(
            "disks: {figures}; there {} disks gave {} each, and here memory takes their place",
            disks.count,
            figure_text(published / f64::from(disks.count))
        )
    })
}

/// Disks and network apart, where the paper has the same without a network.
pub(super) fn apart(
    study: &Study,
    cell: &Cell,
    commands: &Commands,
    measured: f64,
    published: f64,
) -> Option<String> {
    let alone = without_network(study, cell)?;
    let [whole_ms, alone_ms, here_ms] = [published, alone, measured].map(|figure| commands.time_ms(figure));
    let slowness = Disks::of(study)?.slowness(commands.depth, alone_ms)?;
    let network_ms = (whole_ms - alone_ms).max(0.0);
    let line = if network_ms > here_ms {
        ", and its line and gateway (of the campus also a firewall and a VPN) were slower than the line here"
    } else {
        ""
    };
    Some(format!(
        "disks: {} of the published {} ms of a command are there without a network, where {slowness}; {} are its network's, and a command takes {} ms \
         here, to memory{line}",
        figure_text(alone_ms),
        figure_text(whole_ms),
        figure_text(network_ms),
        figure_text(here_ms)
    ))
}

/// What the paper has of the same operations without a network, where it has them.
fn without_network(study: &Study, cell: &Cell) -> Option<f64> {
    cell.link.as_ref()?;
    let value = |name: &str| value(cell, name);
    let place = ("configuration", lu::WITHOUT_NETWORK);
    let one = |table: Published, wanted: &[(&str, &str)], column| table.one(wanted, column);
    match study.name {
        name if name == lu::LIGHT.name => {
            one(LU_LIGHT, &[place, ("op", value("op")?), ("size_kib", value("size_kib")?)], "mean_ms")
        }
        name if name == lu::HEAVY.name => {
            one(LU_HEAVY, &[place, ("size_kib", value("size_kib")?)], "approx_mb_per_s")
        }
        name if name == lu::TRACE.name => one(LU_TRACE, &[place], value("figure")?),
        _ => None,
    }
}
