//! A real iSNS server: Open-iSNS (RFC 4171).

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunette_target::config::{IsnsConfig, IsnsNotifications};
use lunette_tests::in_process::wait_until;
use lunette_tests::need_programs;
use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use lunette_tests::tgtd::free_portal;

use crate::target_with;

/// A running isnsd with an empty database in memory; ended when dropped.
pub(crate) struct Isnsd {
    child: Child,
    directory: tempfile::TempDir,
    portal: SocketAddr,
}

impl Isnsd {
    pub(crate) fn start(portal: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let common = format!("ControlSocket = {}\nSecurity = 0\n", path("control"));
        let server = format!(
            "{common}BindAddress = {portal}\nPIDFile = {}\nDefaultDiscoveryDomain = 1\nSLPRegister = 0\n\
             SourceName = iqn.2026-11.io.lunette:isnsd\nESIMinInterval = 1\n",
            path("pid")
        );
        let client =
            format!("{common}ServerAddress = {portal}\nSourceName = iqn.2026-11.io.lunette:asking\n");
        fs::write(path("isnsd.conf"), server).expect("a file");
        fs::write(path("isnsadm.conf"), client).expect("a file");
        let child = Command::new(find_program("isnsd").expect("the program"))
            .args(["-f", "-c", &path("isnsd.conf")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let isnsd = Self { child, directory, portal };
        wait_until("isnsd listens", || TcpStream::connect(portal).is_ok());
        wait_until("isnsd has a control socket", || isnsd.path("control").exists());
        isnsd
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs Open-iSNS' own tool.
    fn tool(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(find_program("isnsadm").expect("the program"));
        command.arg("-c").arg(self.path("isnsadm.conf")).args(arguments);
        run(&mut command, Duration::from_secs(30)).expect("a run").output
    }

    /// Where it listens.
    pub(crate) fn portal(&self) -> SocketAddr {
        self.portal
    }

    /// All objects of a kind.
    pub(crate) fn list(&self, what: &str) -> String {
        self.tool(&["--local", "--list", what])
    }
}

impl Drop for Isnsd {
    fn drop(&mut self) {
        // It has no state that anybody wants.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// RFC 7143: 4.2.7; RFC 4171: 4.1.1 attributes, 5.6.5.4 deregistration.
#[test]
fn targets_are_registered_with_their_groups_and_taken_out_by_a_drain() {
    need_programs!("isnsd", "isnsadm");
    let isnsd = Isnsd::start(free_portal().expect("a free port"));
    let target = target_with(isnsd.portal, IsnsConfig::default());
    let name = format!("\"{}\"", target.name());
    wait_until("the target is registered", || isnsd.list("nodes").contains(&name));
    assert!(isnsd.list("nodes").contains("node type = Target"));
    let portals = isnsd.list("portals");
    let groups = isnsd.list("portal-groups");
    for (portal, group) in target.portals().iter().zip([1, 2]) {
        assert!(portals.contains(&format!("port = {}/tcp", portal.port())), "{portals}");
        let place = format!("group port = {}/tcp", portal.port());
        let tag = groups.split_once(&place).map(|(_, behind)| behind.lines().nth(1).unwrap_or_default());
        assert!(tag.is_some_and(|tag| tag.ends_with(&format!("tag = {group}"))), "{groups}");
    }
    assert!(isnsd.list("entities").contains("lunette-tests"));
    target.drain();
    target.end().expect("an end").expect("a clean end");
    // It does not wait for the server for long.
    wait_until("the target is taken out", || !isnsd.list("nodes").contains(&name));
}

#[test]
fn a_server_that_comes_later_is_found_and_one_that_never_comes_holds_nothing_up() {
    need_programs!("isnsd", "isnsadm");
    let portal = free_portal().expect("a free port");
    let target = target_with(portal, IsnsConfig::default());
    let complaint = format!("server={portal} ");
    wait_until("the failure is told", || !target.log_with(&complaint).is_empty());
    let mut session = target.session(1);
    session.silent().expect("served all the same");
    let isnsd = Isnsd::start(portal);
    let name = format!("\"{}\"", target.name());
    wait_until("the target is registered", || isnsd.list("nodes").contains(&name));
    drop(session);
    drop(isnsd);
    target.drain();
    target.end().expect("an end in time").expect("a clean end");
}

/// What Open-iSNS does of its own accord: it inquires, as often as the shortest period has it, and tells of initiators. A target that
/// is taken out there comes back.
fn heard(notifications: IsnsNotifications) {
    need_programs!("isnsd", "isnsadm");
    let isnsd = Isnsd::start(free_portal().expect("a free port"));
    let target =
        target_with(isnsd.portal, IsnsConfig { period_s: 10, notifications, ..IsnsConfig::default() });
    let server = format!("server={} ", isnsd.portal);
    let is_told = |text: &str| target.log_with(&server).iter().any(|line| line.contains(text));
    wait_until("the server inquires", || is_told("inquiries of the iSNS server arrive"));
    assert!(is_told("with_inquiries=true"));
    assert_eq!(isnsd.list("portals").matches("SCN port").count(), 2);

    let initiator = format!("iqn.2026-11.io.lunette:initiator-{}", isnsd.portal.port());
    isnsd.tool(&["--register", &format!("initiator={initiator}")]);
    wait_until("the initiator is told of", || {
        target.log_with(&initiator).iter().any(|line| line.contains("was added") && line.contains("INFO"))
    });

    let name = format!("\"{}\"", target.name());
    wait_until("the target is there", || isnsd.list("nodes").contains(&name));
    isnsd.tool(&["--local", "--deregister", "eid=lunette-tests"]);
    wait_until("the target comes back", || {
        is_told("has forgotten the targets") && isnsd.list("nodes").contains(&name)
    });
    assert!(!is_told("passed over") && !is_told("makes no sense"), "{:?}", target.log_with(&server));
}

/// RFC 4171: 2.9.1 TCP, 6.3.4 lost registration, 5.6.5.5 SCNReg.
#[test]
fn inquiries_and_notifications_come_over_tcp() {
    heard(IsnsNotifications::Tcp);
}

/// RFC 4171: 2.9.2 UDP.
#[test]
fn inquiries_and_notifications_come_in_datagrams() {
    heard(IsnsNotifications::Udp);
}
