//! What is to be expected where exchanges or a cache make a figure and not a workload; and where there is no model, why there is none.
//!
//! An exchange takes a round trip: of a login what 48 bytes took by plain TCP beside it, and else the link's. What target, initiator and
//! disks do for it is not in there: nobody knows that but by measuring, and the model would then agree with whatever was measured.

use lunette_link::Link;

use super::Cell;
use super::files::ShareKind;
use super::memory::{self, MemoryBound};
use super::probe::{Authentication, Design, Figure, FilesProbe, Job, LoginPhase, LoginProbe, Probe, Scheme};

/// A file of the file server, in bytes.
const FILE_BYTES: u64 = 2 << 20;

/// What is to be expected, in the unit of the cell, where 48 bytes took so many microseconds there and back by plain TCP, if that is
/// known.
pub(super) fn expected(cell: &Cell, is_quick: bool, echo_us: Option<f64>) -> Option<f64> {
    let link = || cell.link.as_deref()?.parse::<Link>().ok();
    let round_trip_ms = |link: &Link| link.round_trip().as_secs_f64() * 1e3;
    match &cell.probe {
        Probe::Login(login) => {
            let at_rest_ms = echo_us.map(|us| us / 1e3);
            Some(f64::from(exchanges(login)?) * at_rest_ms.or_else(|| Some(round_trip_ms(&link()?)))?)
        }
        Probe::Files(FilesProbe {
            job: Job::Each(Scheme::Share(ShareKind::Nfs)),
            figure: Figure::Each { writes, size_kib, is_deviation: false },
        }) => {
            let link = link()?;
            let shape = if *writes { &link.up } else { &link.down };
            let bits = f64::from(*size_kib) * 8192.0;
            // Far below what a double holds exactly.
            let line_ms = shape.rate.map_or(0.0, |rate| bits / rate.bits_per_s() as f64 * 1e3);
            Some(f64::from(calls(*writes)) * round_trip_ms(&link) + line_ms)
        }
        Probe::Files(FilesProbe { job: Job::Web { design, files }, figure: Figure::Hits }) => {
            let is_bound = !is_quick && MemoryBound::is_possible();
            has_page_cache(*design).then(|| if is_bound { hits_percent(*files) } else { 100.0 })
        }
        _ => None,
    }
}

/// How often a part of a login waits for an answer, where the standards and the study say so.
///
/// TCP's handshake is one round trip. The security stage is one exchange, and three with CHAP: the choice of the method, the
/// challenge, the answer with both proofs (RFC 7143, 12.1.3). The operational stage is one. The first commands are INQUIRY, READ
/// CAPACITY (twice: the first one is told the unit attention of a new nexus; SAM-5, 5.14) and a block. SendTargets and the logout
/// are one each.
fn exchanges(login: &LoginProbe) -> Option<u32> {
    let proves = login.authentication != Authentication::None;
    let (connect, security, operational, first_io, send_targets) = (1, if proves { 3 } else { 1 }, 1, 4, 2);
    let login_of_all = connect + security + operational;
    let behind = if login.discovers { send_targets } else { first_io };
    match login.phase {
        LoginPhase::Total | LoginPhase::Waiting => Some(login_of_all + behind),
        LoginPhase::TcpConnect => Some(connect),
        LoginPhase::Security => Some(security),
        LoginPhase::ChapMethod | LoginPhase::ChapChallenge | LoginPhase::ChapAnswer => proves.then_some(1),
        LoginPhase::Operational => Some(operational),
        LoginPhase::FirstIo => Some(first_io),
        LoginPhase::SendTargets => Some(send_targets),
        LoginPhase::Initiator | LoginPhase::Target | LoginPhase::Rest => None,
    }
}

/// Remote calls for a file by NFS: LOOKUP, ACCESS and READ, or CREATE and WRITE, each file in one of the latter.
const fn calls(writes: bool) -> u32 {
    if writes { 2 } else { 3 }
}

/// What this design reads and writes goes through the page cache.
pub(super) const fn has_page_cache(design: Design) -> bool {
    matches!(design, Design::Fileio | Design::FileioSync | Design::Threads)
}

/// Of files that are read in random order, as many are in memory as fit there.
fn hits_percent(files: u32) -> f64 {
    let working_set = u64::from(files) * FILE_BYTES;
    // Both are far below what a double holds exactly.
    (memory::SERVER_BYTES as f64 / working_set as f64).min(1.0) * 100.0
}

/// Why there is no model.
pub(super) fn absent(cell: &Cell) -> &'static str {
    match &cell.probe {
        Probe::Login(LoginProbe { phase: LoginPhase::Target, .. }) => {
            "it is what the target does between a request and its answer, which is no matter of the network"
        }
        Probe::Login(_) => {
            "it is what the initiator does between its exchanges, which is no matter of the network"
        }
        Probe::Recovery(_) => {
            "the model knows lasting rates, and not how they come back after a burst of losses"
        }
        Probe::Shared(_) => "nobody promises a share of a link to one of several",
        Probe::Virtual(_) => {
            "what a command costs the kernel's initiator in a virtual machine is part of its round trip, and is not measured"
        }
        Probe::Files(FilesProbe { figure: Figure::Each { is_deviation: true, .. }, .. }) => {
            "a deviation is made by disks and by chance"
        }
        Probe::Files(FilesProbe { figure: Figure::Hits, .. }) => "the design reads past the page cache",
        _ if cell.link.is_none() => {
            "there is no network, and what processors, memory and disks give is known by measuring alone"
        }
        Probe::Files(FilesProbe { job: Job::Each(_) | Job::Mail(_), .. }) => {
            "how many blocks a file system or a server asks for is up to these"
        }
        Probe::Tcp { .. } | Probe::Disk(_) | Probe::Transfer(_) | Probe::Files(_) => {
            "what the session has agreed on is not known"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{studies, study};
    use super::*;

    fn cell(name: &str, wanted: &[&str]) -> Cell {
        let cells = (study(name).expect("a study").cells)(1);
        let is_it = |cell: &Cell| cell.parameters.iter().map(|pair| &*pair.1).eq(wanted.iter().copied());
        cells.into_iter().find(is_it).expect("a cell")
    }

    #[test]
    fn logins_take_their_exchanges() {
        let of = |wanted: &[&str]| expected(&cell("lu-login", wanted), false, None);
        // The campus has 2 ms there and back.
        let normal = |authentication, phase| of(&["normal", "1", authentication, "none", phase]);
        assert_eq!(normal("none", "tcp-connect"), Some(2.0));
        assert_eq!((normal("none", "security"), normal("chap", "security")), (Some(2.0), Some(6.0)));
        assert_eq!((normal("none", "total"), normal("mutual", "total")), (Some(14.0), Some(18.0)));
        assert_eq!(normal("mutual", "waiting"), Some(18.0));
        let steps = ["chap-method", "chap-challenge", "chap-answer"].map(|step| normal("chap", step));
        assert_eq!(steps, [Some(2.0); 3], "together they are the security stage");
        assert_eq!(of(&["discovery", "16", "none", "none", "total"]), Some(10.0));
        assert_eq!((normal("none", "initiator"), normal("none", "rest")), (None, None));
        let total = cell("lu-login", &["normal", "1", "none", "none", "total"]);
        assert_eq!(expected(&total, false, Some(2500.0)), Some(17.5), "what the network has at rest");
    }

    #[test]
    fn files_by_nfs_take_their_calls_and_their_bytes() {
        let of = |op, scheme, size| {
            expected(&cell("lu-files", &["mean", "campus", op, scheme, size]), false, None)
        };
        let near =
            |value: Option<f64>, wanted: f64| value.is_some_and(|value| (value / wanted - 1.0).abs() < 1e-9);
        // 1 KiB are 8192 bits of 100 Mb/s.
        assert!(
            near(of("read", "nfs", "1"), 6.0 + 0.08192) && near(of("write", "nfs", "256"), 4.0 + 20.97152)
        );
        assert_eq!(
            (of("read", "iscsi", "1"), of("read", "smb", "1")),
            (None, None),
            "nobody knows their number"
        );
    }

    #[test]
    fn a_cache_has_what_fits() {
        assert!((hits_percent(512) - 87.5).abs() < 1e-9 && (hits_percent(1024) - 43.75).abs() < 1e-9);
        assert!((hits_percent(8) - 100.0).abs() < 1e-9);
        let of = |design| expected(&cell("fujita-netserver", &["hit-rate", "512", design]), true, None);
        assert_eq!((of("threads"), of("uring")), (Some(100.0), None), "a quick run is bound by nothing");
    }

    #[test]
    fn whoever_has_no_model_has_a_reason_for_that() {
        let mut count = 0;
        for cell in studies().iter().flat_map(|study| (study.cells)(1)) {
            if expected(&cell, true, None).is_none() {
                assert!(absent(&cell).len() > 20, "{:?}", cell.parameters);
                count += 1;
            }
        }
        assert!(count > 300, "{count}");
        assert!(
            absent(&cell("lu-login", &["normal", "1", "none", "none", "initiator"])).contains("initiator")
        );
        assert!(absent(&cell("lu-login", &["normal", "1", "none", "none", "target"])).contains("target"));
        assert!(absent(&cell("lu-heavy", &["direct", "4", "100"])).contains("no network"));
    }
}
