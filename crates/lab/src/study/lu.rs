//! Lu and Du: performance study of iSCSI-based storage subsystems.

use std::sync::Arc;

use lunette_workload::{Percent, Sizes, Spread, Trace, Workload};

use super::probe::{Authentication, LoginPhase, LoginProbe};
use super::published::{LU_HEAVY, LU_LIGHT, LU_LOGIN, LU_TRACE};
use super::{Cell, DiskProbe, Load, Metric, Probe, Study, parameters};

const PAPER: &str = "Lu and Du, Performance Study of iSCSI-Based Storage Subsystems";

/// Their configurations, and the links that are here in their place.
const CONFIGURATIONS: [(&str, Option<&str>); 3] =
    [("fc-san", None), ("gige-lan-iscsi", Some("gige")), ("campus-iscsi", Some("campus"))];

/// Disks of the heavy load.
const DISKS: u16 = 6;

/// The section on the setup process.
pub(crate) const LOGIN: Study = Study {
    name: "lu-login",
    paper: PAPER,
    question: "how long discovery and login take, and which part of them",
    differs: "Each cell is the median of five logins over the campus link, whose round trip is 2 ms. Of the paper's ten seconds a session \
              almost all was waiting in its initiator's driver. Its first I/O read a partition table as well; here it is INQUIRY, \
              READ CAPACITY and one block. The security stage is told whole, not by the steps of CHAP. \
              waiting is the time from each request to its answer, with TCP's handshake: the link's round trips and what the target did; \
              initiator is the rest of the login. The target's part alone is not measured.",
    axes: None,
    cells: login,
};

/// Table 2.
pub(crate) const LIGHT: Study = Study {
    name: "lu-light",
    paper: PAPER,
    question: "how long one random read or write takes, near and far (table 2)",
    differs: "Memory instead of a RAID: of the published latencies about 9 ms are its disks'. Access without a network stands for the Fibre \
              Channel loop. What a network adds to the first column is what can be compared. Means only: the paper's table 3, with the \
              least, the largest and the deviation, is not repeated.",
    axes: Some(("size_kib", "configuration")),
    cells: light,
};

/// Figure 2.
pub(crate) const HEAVY: Study = Study {
    name: "lu-heavy",
    paper: PAPER,
    question: "what 64 random commands under way reach, near and far (figure 2)",
    differs: "Six units of one target, behind one session; each command goes to one of them by chance, as in the paper. They are memory \
              (without a network six parts of one), where the paper's disks and their seeks were the limit but for 64 KiB over the campus. The paper \
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
              of the paper's disks, which were its limit but over the campus.",
    axes: None,
    cells: trace,
};

fn random(size_bytes: u32, read: Percent) -> Workload {
    Workload { sizes: Sizes::one(size_bytes), read, random: Percent::ALL, spread: Spread::Uniform }
}

/// Phases, by our names and the paper's.
const NORMAL: [(&str, LoginPhase, &str); 7] = [
    ("total", LoginPhase::Total, "total"),
    ("tcp-connect", LoginPhase::TcpConnect, "tcp-connect"),
    ("security", LoginPhase::Security, "initial-login"),
    ("operational", LoginPhase::Operational, "operational-negotiation"),
    ("first-io", LoginPhase::FirstIo, "full-feature-first-io"),
    ("waiting", LoginPhase::Waiting, ""),
    ("initiator", LoginPhase::Initiator, ""),
];
const DISCOVERY: [(&str, LoginPhase, &str); 5] = [
    ("total", LoginPhase::Total, "total"),
    ("tcp-connect", LoginPhase::TcpConnect, "tcp-connect"),
    ("security", LoginPhase::Security, "initial-login"),
    ("operational", LoginPhase::Operational, "operational-negotiation"),
    ("send-targets", LoginPhase::SendTargets, "send-targets"),
];
const AUTHENTICATION: [(&str, Authentication); 3] =
    [("none", Authentication::None), ("chap", Authentication::Chap), ("mutual", Authentication::Mutual)];

fn login() -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |session: &str, targets: u32, named: (&str, Authentication), digests: bool| {
        let phases: &[_] = if session == "discovery" { &DISCOVERY } else { &NORMAL };
        for &(name, phase, published) in phases {
            let wanted = [("session", session), ("phase", published)];
            let is_theirs = named.1 == Authentication::None && !digests && targets == 1;
            let discovers = (session == "discovery").then_some(targets);
            cells.push(Cell {
                parameters: parameters([
                    ("session", session.to_owned()),
                    ("targets", targets.to_string()),
                    ("authentication", named.0.to_owned()),
                    ("digests", if digests { "both" } else { "none" }.to_owned()),
                    ("phase", name.to_owned()),
                ]),
                link: Some("campus".to_owned()),
                probe: Probe::Login(LoginProbe { discovers, authentication: named.1, digests, phase }),
                published: LU_LOGIN.one(&wanted, "mean_ms").filter(|_| is_theirs),
                beside: Vec::new(),
                of_peers: Vec::new(),
            });
        }
    };
    for named in AUTHENTICATION {
        for targets in [1, 16] {
            add("discovery", targets, named, false);
        }
    }
    for named in AUTHENTICATION {
        for digests in [false, true] {
            add("normal", 1, named, digests);
        }
    }
    cells
}

fn light() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, link) in CONFIGURATIONS {
        for (op, read) in [("read", Percent::ALL), ("write", Percent::ZERO)] {
            for size_kib in [1_u32, 4, 16, 64] {
                let size = size_kib.to_string();
                let wanted = [("configuration", configuration), ("op", op), ("size_kib", &*size)];
                let disk = DiskProbe::new(random(size_kib << 10, read), 1, Metric::MeanMilliseconds);
                cells.push(Cell {
                    published: LU_LIGHT.one(&wanted, "mean_ms"),
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                    link: link.map(str::to_owned),
                    probe: Probe::Disk(disk),
                    parameters: wanted.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
                });
            }
        }
    }
    cells
}

fn heavy() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (configuration, link) in CONFIGURATIONS {
        for size_kib in [4_u32, 64] {
            for read in [100, 80, 20, 0] {
                let size = size_kib.to_string();
                let wanted = [("configuration", configuration), ("size_kib", &*size)];
                let workload = random(size_kib << 10, Percent::new(read));
                let disk = DiskProbe::new(workload, 64, Metric::MegabytesPerSecond);
                cells.push(Cell {
                    published: LU_HEAVY.one(&wanted, "approx_mb_per_s"),
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

fn trace() -> Vec<Cell> {
    let trace = Arc::new(Trace::lu_du(1).unwrap_or_default());
    let mut cells = Vec::new();
    for (column, metric) in
        [("mb_per_s", Metric::MegabytesPerSecond), ("mean_response_ms", Metric::MeanMilliseconds)]
    {
        for (configuration, link) in CONFIGURATIONS {
            let workload = random(16 << 10, Percent::new(70));
            let disk =
                DiskProbe { load: Load::Trace(Arc::clone(&trace)), ..DiskProbe::new(workload, 32, metric) };
            cells.push(Cell {
                published: LU_TRACE.one(&[("configuration", configuration)], column),
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
