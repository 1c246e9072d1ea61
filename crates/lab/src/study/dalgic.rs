//! Dalgic, Ozdemir, Velpuri, Weber, Chen and Kukreja: comparative performance evaluation of iSCSI over metropolitan, local and wide
//! area networks.

use lunette_link::Link;
use lunette_workload::{Percent, Sizes, Spread, Workload};

use super::published::{DALGIC_LAN, DALGIC_SWEEP, DALGIC_TCP};
use super::{Cell, DiskProbe, Keys, Metric, Probe, Study, parameters};

pub(super) const PAPER: &str = "Dalgic and others, Comparative Performance Evaluation of iSCSI over Metropolitan, Local, and Wide Area Networks";
const ROUND_TRIPS_MS: [u32; 4] = [0, 2, 10, 50];
const REQUESTS_KIB: [u32; 4] = [1, 8, 64, 256];
const WINDOWS: [u32; 2] = [1, 32];
const CONNECTIONS_OF_A_SESSION: [u16; 4] = [1, 2, 4, 8];
/// What the line holds back for plain TCP and in the sweep: more than 32 commands of 256 KiB, and than buffers of 10 MB, so that
/// nothing is lost for want of room. With a round trip's worth a single command of 256 KiB over 10 ms loses its last packets, and
/// TCP then takes half a round trip more for each of the next hundred.
const QUEUE: &str = "queue=16M";
/// The smallest loss that a quick run has: of one packet in a thousand.
const QUICK_LOSS_MIN: f64 = 0.001;
const MODES: [&str; 3] = ["write-solicited", "write-unsolicited", "read"];

/// Tables 1 and 2.
pub(crate) const TCP: Study = Study {
    name: "dalgic-tcp",
    paper: PAPER,
    question: "what plain TCP reaches with buffers of 64 KB and 10 MB, by round trip (tables 1, 2)",
    differs: "The line is emulated and carries 155 Mb/s of whole packets, 18.7 MB/s of data; the paper's carried 19.3. It has room for all that is \
              under way (16 MiB), so that TCP loses nothing; the paper does not say what its emulator had. Linux 2.4 kept a \
              quarter of the 64-KB buffer for itself; today's kernels take twice what is asked for, and make a window of it by what packets really \
              take (snd_wnd: 80 or 86 KB of 64, where this was written). The model has the buffer.",
    axes: Some(("rtt_ms", "max_tcp_window")),
    cells: tcp,
};

/// Tables 3 to 5.
pub(crate) const SWEEP: Study = Study {
    name: "dalgic-sweep",
    paper: PAPER,
    question: "what request size, command window, R2Ts and round trip make of iSCSI (tables 3 to 5)",
    differs: "Our initiator and target instead of Cisco's and Intransa's, memory as the disk as there the cache; an emulated line that \
              carries 18.7 MB/s of data instead of 19.3, and has room for all that is under way (16 MiB), so that TCP loses nothing; the paper \
              does not say what its emulator had.",
    axes: Some(("rtt_ms", "request_kib")),
    cells: sweep,
};

/// Table 6.
pub(crate) const LAN: Study = Study {
    name: "dalgic-lan",
    paper: PAPER,
    question: "the same on Gigabit Ethernet without added delay (table 6)",
    differs: "The network is emulated on the machine that runs both ends; the paper's hosts were of 933 MHz, and they, not the network, set \
              the limits of small requests.",
    axes: Some(("request_kib", "mode")),
    cells: lan,
};

/// What section 2 names and the authors did not measure.
pub(crate) const CONNECTIONS: Study = Study {
    name: "dalgic-connections",
    paper: PAPER,
    question: "what several connections of a session make of long and lossy lines (section 2; not measured there)",
    differs: "There are no published figures. Unsolicited writes of 64 KiB, 32 under way. Recovery is the time from the end of 100 ms in which \
              every second packet is lost until nine tenths of the rate before are back for 100 ms, two round trips or three times as long as all that \
              is under way takes at that rate, whichever is the longest, so that answers that were held up and come at once do not pass for it. \
              It is looked for from when as much has come as was under way at the end, and from a round trip after it on, for 20 s: so a line that loses nothing takes up to as long as floor says, and what takes no longer than that has the limit floor; where \
              a run had not recovered by then, \
              it counts as 20 s, and the limit is not-recovered. Where packets are lost all the time, the rate before is the mean over the time that a rate \
              is measured for, and there is chance in both. The model knows CUBIC's and Reno's response to \
              losses; another congestion control gets more or less out of a lossy line. The lines hold back up to 16 MiB, so that only \
              the losses that are varied happen.",
    axes: Some(("rtt_ms", "connections")),
    cells: connections,
};

fn tcp(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (buffer, buffer_bytes) in [("64KB", 64 << 10), ("10MB", 10 << 20)] {
        for direction in ["I-to-T", "T-to-I"] {
            for rtt_ms in ROUND_TRIPS_MS.map(|rtt| rtt.to_string()) {
                let wanted = [("max_tcp_window", buffer), ("direction", direction), ("rtt_ms", &*rtt_ms)];
                cells.push(Cell {
                    published: DALGIC_TCP.one(&wanted, "mb_per_s"),
                    published_times: None,
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                    link: Some(format!("oc3-{rtt_ms},{QUEUE}")),
                    probe: Probe::Tcp { to_target: direction == "I-to-T", buffer_bytes: Some(buffer_bytes) },
                    parameters: parameters([
                        ("max_tcp_window", buffer.to_owned()),
                        ("direction", direction.to_owned()),
                        ("rtt_ms", rtt_ms.clone()),
                    ]),
                });
            }
        }
    }
    cells
}

/// A workload of one row; the traffic was served from caches, in order.
fn row(mode: &str, request_kib: u32, window: u32) -> DiskProbe {
    let request_bytes = request_kib << 10;
    let keys = match mode {
        "write-solicited" => Keys::Solicited,
        _ => Keys::Unsolicited { request_bytes },
    };
    let workload = Workload {
        sizes: Sizes::one(request_bytes),
        read: if mode == "read" { Percent::ALL } else { Percent::ZERO },
        random: Percent::ZERO,
        spread: Spread::Uniform,
    };
    DiskProbe { keys, ..DiskProbe::new(workload, window, Metric::MegabytesPerSecond) }
}

fn sweep(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for mode in MODES {
        for request_kib in REQUESTS_KIB {
            for window in WINDOWS {
                for rtt_ms in ROUND_TRIPS_MS.map(|rtt| rtt.to_string()) {
                    let (size, depth) = (request_kib.to_string(), window.to_string());
                    let wanted =
                        [("mode", mode), ("request_kib", &*size), ("window", &*depth), ("rtt_ms", &*rtt_ms)];
                    cells.push(Cell {
                        published: DALGIC_SWEEP.one(&wanted, "mb_per_s"),
                        published_times: None,
                        beside: Vec::new(),
                        of_peers: Vec::new(),
                        link: Some(format!("oc3-{rtt_ms},{QUEUE}")),
                        probe: Probe::Disk(row(mode, request_kib, window)),
                        parameters: wanted.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
                    });
                }
            }
        }
    }
    cells
}

fn connections(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |figure: &str, loss: &str, rtt_ms: u32, connections: u16| {
        let disk = DiskProbe { connections, tells_tcp: true, ..row("write-unsolicited", 64, 32) };
        cells.push(Cell {
            published: None,
            published_times: None,
            beside: Vec::new(),
            of_peers: Vec::new(),
            link: Some(format!("oc3-{rtt_ms},{QUEUE},loss={loss}%")),
            probe: if figure == "rate" { Probe::Disk(disk) } else { Probe::Recovery(disk) },
            parameters: parameters([
                ("figure", figure.to_owned()),
                ("loss_percent", loss.to_owned()),
                ("rtt_ms", rtt_ms.to_string()),
                ("connections", connections.to_string()),
            ]),
        });
    };
    for connections in CONNECTIONS_OF_A_SESSION {
        for rtt_ms in ROUND_TRIPS_MS {
            for figure in ["rate", "recovery"] {
                for loss in ["0", "0.01", "0.1", "1"] {
                    add(figure, loss, rtt_ms, connections);
                }
            }
        }
    }
    cells.sort_by_key(|cell| cell.parameters[0].1 != "rate");
    cells
}

/// Recovery on a line that loses packets all the time, and rates where a short run sees a few losses or none.
pub(super) fn is_wide(cell: &Cell) -> bool {
    let link = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok());
    let loss = link.map_or(0.0, |link| link.up.loss.mean());
    loss > 0.0 && (matches!(cell.probe, Probe::Recovery(_)) || loss < QUICK_LOSS_MIN)
}

fn lan(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for mode in MODES {
        for request_kib in REQUESTS_KIB {
            for window in WINDOWS {
                let (size, depth) = (request_kib.to_string(), window.to_string());
                let wanted = [("mode", mode), ("request_kib", &*size), ("window", &*depth)];
                cells.push(Cell {
                    published: DALGIC_LAN.one(&wanted, "mb_per_s"),
                    published_times: None,
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                    link: Some("gige".to_owned()),
                    probe: Probe::Disk(row(mode, request_kib, window)),
                    parameters: wanted.iter().map(|&(name, value)| (name, value.to_owned())).collect(),
                });
            }
        }
    }
    cells
}
