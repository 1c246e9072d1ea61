//! Fujita and Ogawara: analysis of iSCSI target software.

use lunette_workload::{Percent, Sizes, Spread, Workload};

use super::expected::has_page_cache;
use super::probe::{Design, Figure, FilesProbe, Job};
use super::{Cell, DiskProbe, Keys, Metric, Probe, Study, parameters};

const PAPER: &str = "Fujita and Ogawara, Analysis of iSCSI Target Software";

/// What the names of these studies begin with.
pub(super) const PREFIX: &str = "fujita-";

/// The value of a parameter as reports have it: of a design also whether it goes through the page cache, which is no less of a
/// difference than how it waits.
pub(crate) fn value_text(name: &str, value: &str) -> String {
    let design = Design::ALL.into_iter().find(|design| name == "design" && design.name() == value);
    let cache = design.map(|design| if has_page_cache(design) { " (cached)" } else { " (direct)" });
    format!("{value}{}", cache.unwrap_or_default())
}

/// Figures 3 to 6.
pub(crate) const MICRO: Study = Study {
    name: "fujita-micro",
    paper: PAPER,
    question: "what the design of a target makes of small requests, in order and at random, with cold caches (figures 3 to 6)",
    differs: "All designs are engines of one target: fileio and fileio-sync one blocking operation at a time, without and with every write \
              stable, diskio without a page cache, threads as Threaded-Ardis, and uring, which is io_uring and in none of the paper's. fileio and threads \
              answer a write when the page cache has it (write=back), and diskio and uring read and write past it (O_DIRECT): designs differ by that as much \
              as by how they wait, and uring is to be compared with diskio alone. uring is not what this target picks for an image by itself, which is threads. The paper has figures and no \
              numbers; which design was ahead, as its text has it, stands in a table beside ours, but for the Ardis target, which is not here, so that \
              the 63 to 91 % that its threaded one had of it are not compared. Before each run the image is written back and dropped from this machine's page cache; what \
              the disk below has in memory stays there. 50,000 operations a run, 32 under way; a quick run is a part of a second.",
    axes: Some(("size_kib", "design")),
    cells: micro,
};

/// Figure 7.
pub(crate) const POSTMARK: Study = Study {
    name: "fujita-postmark",
    paper: PAPER,
    question: "what the design of a target makes of PostMark, a mail server's work on files, with cold caches (figure 7)",
    differs: "PostMark itself, of Debian's package postmark, with the paper's 20,000 files of 512 bytes to 16 KiB and 50,000 transactions, and \
              else as it comes; a quick run has 1,000 and 75,000. Its report counts whole seconds, and at least one; where this machine's clock agrees with \
              them, times are the clock's, and what the report says stands beside them. Read and written are over its whole run. ext2 with default options on lunette attach and a loop \
              device over emulated Gigabit Ethernet, with the keys that the paper has. The file system is new, and mounted anew: nothing of it is in \
              a cache. Of the designs fileio, fileio-sync and threads have the target's page cache, and diskio and uring read and write past it. What the near end's page cache still keeps at the end is in no figure, as in the paper. The paper has a figure and \
              no numbers. It needs root.",
    axes: None,
    cells: postmark,
};

/// Figure 8.
pub(crate) const NETSERVER: Study = Study {
    name: "fujita-netserver",
    paper: PAPER,
    question: "what a target's page cache is worth when 512 and 1,024 files of 2 MB are read over and over (figure 8)",
    differs: "The session has the keys that the paper has. The initiator reads past its own caches (O_DIRECT, no read-ahead), so that each read is the target's. The paper's target had 896 MB \
              for its page cache; here a control group leaves the target 896 MiB for everything, but not in a quick \
              run. fileio and threads have the page cache, and diskio and uring read past it; the paper's diskio could not have 1,024 files. The hit rate is what the target did not read \
              from its disk, by the kernel's account of it (/proc/PID/io); what the \
              kernel reads ahead of neighbouring files counts against it, as much as the disk's read_ahead_kb has it. A quick run has 8 and 16 files, read 64 times, with all of this machine's memory: \
              no published figure stands beside its own. The paper has no numbers for the rates. It needs root.",
    axes: None,
    cells: netserver,
};

fn postmark(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (told, figure) in
        [("transactions", Figure::Transactions), ("read", Figure::Read), ("written", Figure::Written)]
    {
        for design in Design::ALL {
            cells.push(Cell {
                parameters: parameters([("figure", told.to_owned()), ("design", design.name().to_owned())]),
                link: Some("gige".to_owned()),
                probe: Probe::Files(FilesProbe { job: Job::Mail(design), figure }),
                published: None,
                published_times: None,
                beside: Vec::new(),
                of_peers: Vec::new(),
            });
        }
    }
    cells
}

fn netserver(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (told, figure) in [("rate", Figure::Read), ("hit-rate", Figure::Hits)] {
        for (files, hits_percent) in [(512, 85.4), (1024, 25.4)] {
            // Without writes fileio-sync is fileio.
            for design in Design::ALL.into_iter().filter(|design| *design != Design::FileioSync) {
                let is_cached = matches!(design, Design::Fileio | Design::Threads);
                cells.push(Cell {
                    parameters: parameters([
                        ("figure", told.to_owned()),
                        ("files", files.to_string()),
                        ("design", design.name().to_owned()),
                    ]),
                    link: Some("gige".to_owned()),
                    probe: Probe::Files(FilesProbe { job: Job::Web { design, files }, figure }),
                    published: (figure == Figure::Hits && is_cached).then_some(hits_percent),
                    published_times: None,
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                });
            }
        }
    }
    cells
}

fn micro(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (order, random) in [("sequential", Percent::ZERO), ("random", Percent::ALL)] {
        for (op, read) in [("write", Percent::ZERO), ("read", Percent::ALL)] {
            for design in Design::ALL {
                // Without writes these two are the same.
                if op == "read" && design == Design::FileioSync {
                    continue;
                }
                for size_kib in [2_u32, 4, 8, 16, 32] {
                    let sizes = Sizes::one(size_kib << 10);
                    let workload = Workload { sizes, read, random, spread: Spread::Uniform };
                    let disk = DiskProbe::new(workload, 32, Metric::MegabytesPerSecond);
                    cells.push(Cell {
                        parameters: parameters([
                            ("access", format!("{order}-{op}")),
                            ("design", design.name().to_owned()),
                            ("size_kib", size_kib.to_string()),
                        ]),
                        link: Some("gige".to_owned()),
                        probe: Probe::Disk(DiskProbe { keys: Keys::Fujita, design: Some(design), ..disk }),
                        published: None,
                        published_times: None,
                        beside: Vec::new(),
                        of_peers: Vec::new(),
                    });
                }
            }
        }
    }
    cells
}
