//! Lu and Du: performance study of iSCSI-based storage subsystems.

use std::sync::Arc;

use lunette_workload::{Percent, Sizes, Spread, Trace, Workload};

use super::probe::{Authentication, LoginPhase, LoginProbe};
use super::published::{LU_HEAVY, LU_LIGHT, LU_LOGIN, LU_SPREAD, LU_TRACE};
use super::{Cell, DiskProbe, Load, Metric, Probe, Study, Times, parameters};

const PAPER: &str = "Lu and Du, Performance Study of iSCSI-Based Storage Subsystems";

/// What they have instead of a network: disks on a Fibre Channel loop.
pub(super) const WITHOUT_NETWORK: &str = "fc-san";
/// Our configurations, theirs beside which each stands, and the links that are here in their place. Nothing here is a Fibre Channel loop:
/// `direct` is memory of this machine, and says so.
const CONFIGURATIONS: [(&str, &str, Option<&str>); 3] = [
    ("direct", WITHOUT_NETWORK, None),
    ("gige-lan-iscsi", "gige-lan-iscsi", Some("gige")),
    ("campus-iscsi", "campus-iscsi", Some("campus")),
];

/// Disks of the heavy load.
const DISKS: u16 = 6;

/// The section on the setup process.
pub(crate) const LOGIN: Study = Study {
    name: "lu-login",
    paper: PAPER,
    question: "how long discovery and login take, and which part of them",
    differs: "Each cell is the mean of five logins over the campus link, whose round trip is 2 ms; unlike the paper's it is not encrypted. Of the paper's ten seconds a session \
              almost all was waiting in its initiator's driver. Its first I/O read a partition table as well; here it is INQUIRY, \
              READ CAPACITY and one block. The security stage of CHAP is also told by its steps: the choice of the method, the challenge, and \
              the answer to it with its proof; the paper's sessions had neither authentication nor digests, so its figures stand where there is none. \
              One login tells all its phases: TCP, the two stages, first I/O (or SendTargets, with the logout) and rest, which is what \
              the initiator does between them, add up to its total. So do waiting, the time from each request to its answer (of a command \
              until its end is told) with TCP's handshake, and initiator, which is the rest: waiting is the link's round trips and what the target \
              did. The model has for each round trip what 48 bytes took there and back by plain TCP before the login, with both ends' kernels and the emulation in it. target is its own part of the two stages, as it tells: from when each request had come until the answer was ready. What TCP and the kernels \
              of both ends take is not in that, nor what the first commands take. exchanges counts what was sent and answered.",
    axes: None,
    cells: login,
};

/// Tables 2 and 3.
pub(crate) const LIGHT: Study = Study {
    name: "lu-light",
    paper: PAPER,
    question: "how long one random read or write takes, near and far (tables 2, 3)",
    differs: "Memory instead of a RAID: of the published latencies about 9 ms are its disks'. direct is memory of this machine without any \
              network; what is published beside it is the paper's Fibre Channel loop (fc-san), with its disks. What a network adds to the \
              first rows is what can be compared. The paper's campus network was \
              encrypted; ours is not, so processor time for that is not in it. Below is how long single reads and writes took, \
              beside the least, the largest and the deviation of the paper's reads (table 3).",
    axes: Some(("size_kib", "configuration")),
    cells: light,
};

/// Figure 2.
pub(crate) const HEAVY: Study = Study {
    name: "lu-heavy",
    paper: PAPER,
    question: "what 64 random commands under way reach, near and far (figure 2)",
    differs: "Six units of one target, behind one session; each command goes to one of them by chance, as in the paper. They are memory \
              (direct: six parts of this machine's, without any network, beside the paper's Fibre Channel loop), where the paper's disks and their \
              seeks were the limit but for 64 KiB over the campus. Ours is not \
              encrypted, so processor time for that is not in it. The paper \
              says that the share of reads makes less than 5 %, and gives one figure for all of them.",
    axes: Some(("read_percent", "configuration")),
    cells: heavy,
};

/// The section on a database trace.
pub(crate) const TRACE: Study = Study {
    name: "lu-trace",
    paper: PAPER,
    question: "what a database's requests reach, 32 under way and without think time",
    differs: "The trace was never published; a made one has its count, its share of reads, its blocks and its mean size. Memory instead \
              of the paper's disks, which were its limit but over the campus; ours is not encrypted, so processor time for that is not in it. \
              direct is memory without any network, beside the paper's Fibre Channel loop.",
    axes: None,
    cells: trace,
};

fn random(size_bytes: u32, read: Percent) -> Workload {
    Workload { sizes: Sizes::one(size_bytes), read, random: Percent::ALL, spread: Spread::Uniform }
}

/// Phases, by our names and the paper's.
const NORMAL: [(&str, LoginPhase, &str); 9] = [
    ("total", LoginPhase::Total, "total"),
    ("tcp-connect", LoginPhase::TcpConnect, "tcp-connect"),
    ("security", LoginPhase::Security, "initial-login"),
    ("operational", LoginPhase::Operational, "operational-negotiation"),
    ("first-io", LoginPhase::FirstIo, "full-feature-first-io"),
    ("rest", LoginPhase::Rest, ""),
    ("waiting", LoginPhase::Waiting, ""),
    ("initiator", LoginPhase::Initiator, ""),
    ("target", LoginPhase::Target, ""),
];
const DISCOVERY: [(&str, LoginPhase, &str); 9] = [
    ("total", LoginPhase::Total, "total"),
    ("tcp-connect", LoginPhase::TcpConnect, "tcp-connect"),
    ("security", LoginPhase::Security, "initial-login"),
    ("operational", LoginPhase::Operational, "operational-negotiation"),
    ("send-targets", LoginPhase::SendTargets, "send-targets"),
    ("rest", LoginPhase::Rest, ""),
    ("waiting", LoginPhase::Waiting, ""),
    ("initiator", LoginPhase::Initiator, ""),
    ("target", LoginPhase::Target, ""),
];
/// The steps of the security stage where somebody proves who he is.
const STEPS: [(&str, LoginPhase, &str); 3] = [
    ("chap-method", LoginPhase::ChapMethod, ""),
    ("chap-challenge", LoginPhase::ChapChallenge, ""),
    ("chap-answer", LoginPhase::ChapAnswer, ""),
];
const AUTHENTICATION: [(&str, Authentication); 3] =
    [("none", Authentication::None), ("chap", Authentication::Chap), ("mutual", Authentication::Mutual)];

fn login(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |session: &str, targets: u32, named: (&str, Authentication), digests: bool| {
        let phases: &[_] = if session == "discovery" { &DISCOVERY } else { &NORMAL };
        let steps: &[_] = if named.1 == Authentication::None { &[] } else { &STEPS };
        for &(name, phase, published) in phases.iter().chain(steps) {
            let wanted = [("session", session), ("phase", published)];
            let is_theirs = named.1 == Authentication::None && !digests && targets == 1;
            let discovers = session == "discovery";
            let authentication = named.1;
            cells.push(Cell {
                parameters: parameters([
                    ("session", session.to_owned()),
                    ("targets", targets.to_string()),
                    ("authentication", named.0.to_owned()),
                    ("digests", if digests { "both" } else { "none" }.to_owned()),
                    ("phase", name.to_owned()),
                ]),
                link: Some("campus".to_owned()),
                probe: Probe::Login(LoginProbe { discovers, targets, authentication, digests, phase }),
                published: LU_LOGIN.one(&wanted, "mean_ms").filter(|_| is_theirs),
                published_times: Some(logins(&wanted)).filter(|_| is_theirs && !published.is_empty()),
                beside: Vec::new(),
                of_peers: Vec::new(),
            });
        }
    };
    for session in ["discovery", "normal"] {
        for named in AUTHENTICATION {
            for targets in [1, 16] {
                for digests in [false, true] {
                    add(session, targets, named, digests);
                }
            }
        }
    }
    cells
}

/// A login whose digests or number of targets are hardly part of it: discovery with digests, and normal sessions beside other targets.
pub(super) fn is_wide(cell: &Cell) -> bool {
    let Probe::Login(LoginProbe { discovers, targets, digests, .. }) = cell.probe else { return false };
    if discovers { digests } else { targets > 1 }
}

/// What the paper has of its five logins.
fn logins(wanted: &[(&str, &str)]) -> Times {
    let column = |name| LU_LOGIN.one(wanted, name);
    Times { min: column("min_ms"), mean: column("mean_ms"), max: column("max_ms"), ..Times::default() }
}

/// What the paper has of its reads: their mean is in another table than the rest.
fn reads(configuration: &str, size_kib: &str) -> Times {
    let place = [("configuration", configuration), ("size_kib", size_kib)];
    let column = |name| LU_SPREAD.one(&place, name);
    let mean = LU_LIGHT.one(&[place[0], ("op", "read"), place[1]], "mean_ms");
    let (min, max, standard_deviation) = (column("min_ms"), column("max_ms"), column("std_ms"));
    Times { min, mean, max, standard_deviation, ..Times::default() }
}

fn light(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, theirs, link) in CONFIGURATIONS {
        for (op, read) in [("read", Percent::ALL), ("write", Percent::ZERO)] {
            for size_kib in [1_u32, 4, 16, 64] {
                let size = size_kib.to_string();
                let wanted = [("configuration", theirs), ("op", op), ("size_kib", &*size)];
                let disk = DiskProbe::new(random(size_kib << 10, read), 1, Metric::MeanMilliseconds);
                cells.push(Cell {
                    published: LU_LIGHT.one(&wanted, "mean_ms"),
                    published_times: (op == "read").then(|| reads(theirs, &size)),
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                    link: link.map(str::to_owned),
                    probe: Probe::Disk(disk),
                    parameters: parameters([
                        ("configuration", configuration.to_owned()),
                        ("op", op.to_owned()),
                        ("size_kib", size.clone()),
                    ]),
                });
            }
        }
    }
    cells
}

fn heavy(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, theirs, link) in CONFIGURATIONS {
        for size_kib in [4_u32, 64] {
            for read in [100, 80, 20, 0] {
                let size = size_kib.to_string();
                let wanted = [("configuration", theirs), ("size_kib", &*size)];
                let workload = random(size_kib << 10, Percent::new(read));
                let disk = DiskProbe::new(workload, 64, Metric::MegabytesPerSecond);
                cells.push(Cell {
                    published: LU_HEAVY.one(&wanted, "approx_mb_per_s"),
                    published_times: None,
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                    link: link.map(str::to_owned),
                    probe: Probe::Disk(DiskProbe { units: DISKS, ..disk }),
                    parameters: parameters([
                        ("configuration", configuration.to_owned()),
                        ("size_kib", size.clone()),
                        ("read_percent", read.to_string()),
                    ]),
                });
            }
        }
    }
    cells
}

fn trace(seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    // Its blocks are constants, which hold all that it is made of.
    let Ok(trace) = Trace::lu_du(seed).map(Arc::new) else { return cells };
    for (column, metric) in
        [("mb_per_s", Metric::MegabytesPerSecond), ("mean_response_ms", Metric::MeanMilliseconds)]
    {
        for (configuration, theirs, link) in CONFIGURATIONS {
            let workload = random(16 << 10, Percent::new(70));
            let disk =
                DiskProbe { load: Load::Trace(Arc::clone(&trace)), ..DiskProbe::new(workload, 32, metric) };
            cells.push(Cell {
                published: LU_TRACE.one(&[("configuration", theirs)], column),
                published_times: None,
                beside: Vec::new(),
                of_peers: Vec::new(),
                link: link.map(str::to_owned),
                probe: Probe::Disk(disk),
                parameters: parameters([
                    ("figure", column.to_owned()),
                    ("configuration", configuration.to_owned()),
                ]),
            });
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_have_their_published_spread_and_writes_have_none() {
        for cell in light(1) {
            let is_read = cell.parameters.contains(&("op", "read".to_owned()));
            let times = cell.published_times.unwrap_or_default();
            let told = [times.min, times.mean, times.max, times.standard_deviation];
            assert!(told.iter().all(|figure| figure.is_some() == is_read), "{:?}", cell.parameters);
            assert!(!is_read || times.mean == cell.published, "{:?}", cell.parameters);
        }
        let lan = reads("gige-lan-iscsi", "4");
        assert_eq!((lan.min, lan.max, lan.standard_deviation), (Some(2.5), Some(94.9), Some(3.1)));
    }

    #[test]
    fn the_steps_of_chap_are_told_where_there_is_chap() {
        let cells = login(1);
        let has = |cell: &&Cell, name: &str, value: &str| {
            cell.parameters.iter().any(|own| *own == (name, value.to_owned()))
        };
        let steps = |authentication| {
            let is_step = |cell: &&Cell| STEPS.iter().any(|step| has(cell, "phase", step.0));
            cells.iter().filter(is_step).filter(|cell| has(cell, "authentication", authentication)).count()
        };
        // Discovery and normal sessions with 1 and 16 targets, with and without digests.
        assert_eq!(["none", "chap", "mutual"].map(steps), [0, 3 * 8, 3 * 8]);
        // A quick run has half of them.
        let wide = |cell: &&Cell| is_wide(cell);
        assert_eq!(cells.iter().filter(wide).count() * 2, cells.len());
        let total =
            cells.iter().find(|cell| has(cell, "phase", "total")).and_then(|cell| cell.published_times);
        let total = total.expect("the paper's");
        assert_eq!((total.min, total.mean, total.max), (Some(10_000.0), Some(10_003.0), Some(10_005.0)));
    }

    #[test]
    fn the_trace_is_made_with_the_seed() {
        let operations = |seed| {
            let cells = trace(seed);
            let Some(Probe::Disk(DiskProbe { load: Load::Trace(trace), .. })) =
                cells.first().map(|cell| &cell.probe)
            else {
                panic!("{} cells", cells.len());
            };
            trace.records().iter().map(|record| record.operation.offset_bytes).collect::<Vec<_>>()
        };
        assert_eq!(operations(7), operations(7));
        assert_ne!(operations(7), operations(8));
    }
}
