//! iSCSI for disaster recovery: file I/O near by, long lines, shared lines.

use lunette_workload::{Kind, Percent, Sizes, Spread, Workload};

use super::probe::{Figure, FilesProbe, Job, SharedProbe, TransferProbe};
use super::{Cell, DiskProbe, Metric, Probe, Study, parameters};

const PAPER: &str = "Performance evaluation of iSCSI for disaster recovery over local and wide area networks";
/// What the kernels of the paper's time let a connection have.
const OLD_BUFFER_BYTES: usize = 64 << 10;

/// Section III, file I/O.
pub(crate) const LOCAL: Study = Study {
    name: "dr-local",
    paper: PAPER,
    question: "what a network makes of reading and writing files of several sizes (section III)",
    differs: "Once through ext2, on a loop device or on lunette attach with one, by a program that reads or writes 256 KiB at a time and ends \
              with fsync (this needs root), one file after the other for 200 ms if there are as many; and once without a file system, parts of the disk as long, each in order with 8 such requests under \
              way, and a flush, one after the other as well. Reads begin with cold caches of this machine. The paper's figures are not at hand.",
    axes: Some(("file_mib", "disk")),
    cells: local,
};

/// Section III, delay and losses.
pub(crate) const WAN: Study = Study {
    name: "dr-wan",
    paper: PAPER,
    question: "what delay and losses leave of a gigabit, with TCP buffers and command windows small and large (section III)",
    differs: "Writes of 64 KiB into memory, 4 or 64 under way. A buffer of 64 KB is what TCP had at most in the paper's time; what \
              the kernels make of it is told by them: snd_cwnd is what congestion control let be under way, snd_wnd what the target's \
              window did, rcv_space what its end had room for in a round trip, rwnd_limited and sndbuf_limited the shares of the time in which the receiver's window and the \
              sender's buffer held data up. The model knows the setting alone. Tuned is what today's kernels do by themselves. The paper's figures are not at hand; it found the command window to be the limit \
              once TCP was tuned.",
    axes: Some(("added_ms", "loss_percent")),
    cells: wan,
};

/// Section III, other traffic.
pub(crate) const SHARED: Study = Study {
    name: "dr-shared",
    paper: PAPER,
    question: "what bulk TCP on the same link leaves of iSCSI, with and without bandwidth reserved for it (section III)",
    differs: "A link of 100 Mb/s instead of a gigabit, so that it and not this machine is shared. Writes of 64 KiB, 32 under way, and of \
              4 KiB one after the other for the latency; bulk traffic goes the same way. Each figure has what the other one carried in the same run beside it. Without a reservation nobody promises \
              a share, so there is no model. The paper's figures are not at hand.",
    axes: Some(("flows", "reserved")),
    cells: shared,
};

fn local(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for through in ["ext2", "blocks"] {
        for (op, kind, figure) in
            [("read", Kind::Read, Figure::Read), ("write", Kind::Write, Figure::Written)]
        {
            for (disk, link) in [("local", None), ("iscsi-gige", Some("gige"))] {
                for mib in [1_u32, 8, 32, 128] {
                    let probe = if through == "ext2" {
                        let job = Job::Whole { is_attached: link.is_some(), mib };
                        Probe::Files(FilesProbe { job, figure })
                    } else {
                        Probe::Transfer(TransferProbe { kind, length_bytes: u64::from(mib) << 20 })
                    };
                    cells.push(Cell {
                        parameters: parameters([
                            ("through", through.to_owned()),
                            ("op", op.to_owned()),
                            ("disk", disk.to_owned()),
                            ("file_mib", mib.to_string()),
                        ]),
                        link: link.map(str::to_owned),
                        probe,
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

fn writes(size_bytes: u32) -> Workload {
    Workload {
        sizes: Sizes::one(size_bytes),
        read: Percent::ZERO,
        random: Percent::ZERO,
        spread: Spread::Uniform,
    }
}

fn wan(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (tcp, tcp_buffer_bytes) in [("64KB", Some(OLD_BUFFER_BYTES)), ("tuned", None)] {
        for window in [4, 64] {
            for loss in ["0", "0.1", "1"] {
                for added_ms in ["0", "10", "50", "100", "200"] {
                    let disk = DiskProbe::new(writes(64 << 10), window, Metric::MegabytesPerSecond);
                    cells.push(Cell {
                        parameters: parameters([
                            ("tcp_buffer", tcp.to_owned()),
                            ("window", window.to_string()),
                            ("loss_percent", loss.to_owned()),
                            ("added_ms", added_ms.to_owned()),
                        ]),
                        link: Some(format!("gige,rtt={added_ms}ms,loss={loss}%")),
                        probe: Probe::Disk(DiskProbe { tcp_buffer_bytes, tells_tcp: true, ..disk }),
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

/// A delay between those that show most, and one of which a short run has a dozen round trips.
pub(super) fn is_wide(cell: &Cell) -> bool {
    cell.parameters.iter().any(|own| own.0 == "added_ms" && matches!(own.1.as_str(), "10" | "200"))
}

fn shared(_seed: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (figure, size_bytes, depth, metric, tells_bulk) in [
        ("iscsi-rate", 64 << 10, 32, Metric::MegabytesPerSecond, false),
        ("bulk-rate", 64 << 10, 32, Metric::MegabytesPerSecond, true),
        ("iscsi-latency", 4 << 10, 1, Metric::MeanMilliseconds, false),
    ] {
        for (reserved, link) in [("none", "lan-100"), ("60%", "lan-100,reserve=60%,iscsi-port=3260/3261")] {
            for flows in [0, 1, 4, 16] {
                if tells_bulk && flows == 0 {
                    continue;
                }
                let disk = DiskProbe::new(writes(size_bytes), depth, metric);
                cells.push(Cell {
                    parameters: parameters([
                        ("figure", figure.to_owned()),
                        ("reserved", reserved.to_owned()),
                        ("flows", flows.to_string()),
                    ]),
                    link: Some(link.to_owned()),
                    probe: Probe::Shared(SharedProbe { flows, disk, tells_bulk }),
                    published: None,
                    published_times: None,
                    beside: Vec::new(),
                    of_peers: Vec::new(),
                });
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_and_window_meets_every_delay_and_loss() {
        let cells = wan(1);
        assert_eq!(cells.len(), 2 * 2 * 3 * 5);
        assert_eq!(cells.iter().filter(|cell| is_wide(cell)).count(), 2 * 2 * 3 * 2);
        // Losses leave less than even a small window allows once the way is long.
        let lossy = [("window", "4"), ("loss_percent", "1"), ("added_ms", "200")]
            .map(|(name, value)| (name, value.to_owned()));
        let is_lossy = |cell: &&Cell| lossy.iter().all(|pair| cell.parameters.contains(pair));
        assert_eq!(cells.iter().filter(is_lossy).count(), 2, "tuned or not");
    }
}
