//! The registration with a real iSNS server, Open-iSNS (RFC 4171; RFC 7143, 4.2.7).

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lunette_target::config::{Config, IsnsConfig};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::need_programs;
use lunette_tests::packages::find_program;
use lunette_tests::process::run;
use lunette_tests::tgtd::free_portal;

/// A running isnsd with an empty database in memory; ended when dropped.
struct Isnsd {
    child: Child,
    directory: tempfile::TempDir,
    portal: SocketAddr,
}

impl Isnsd {
    fn start(portal: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let common = format!("ControlSocket = {}\nSecurity = 0\n", path("control"));
        let server = format!(
            "{common}BindAddress = {portal}\nPIDFile = {}\nDefaultDiscoveryDomain = 1\nSLPRegister = 0\n\
             SourceName = iqn.2026-11.io.lunette:isnsd\n",
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

    /// All objects of a kind, as Open-iSNS' own tool shows them.
    fn list(&self, what: &str) -> String {
        let mut command = Command::new(find_program("isnsadm").expect("the program"));
        command.arg("-c").arg(self.path("isnsadm.conf")).args(["--local", "--list", what]);
        run(&mut command, Duration::from_secs(30)).expect("a run").output
    }
}

impl Drop for Isnsd {
    fn drop(&mut self) {
        // It has no state that anybody wants.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One target at two portals in two groups.
fn target(server: SocketAddr) -> InProcess {
    InProcess::start_with(&["0=mem:1M"], |config: &mut Config| {
        config.portals.push("127.0.0.2:0".parse().expect("an address"));
        config.portals[1].group = 2;
        config.isns = IsnsConfig {
            servers: vec![server.to_string().parse().expect("an address")],
            entity: Some("lunette-tests".to_owned()),
            ..IsnsConfig::default()
        };
    })
}

#[test]
fn targets_are_registered_with_their_groups_and_taken_out_by_a_drain() {
    need_programs!("isnsd", "isnsadm");
    let isnsd = Isnsd::start(free_portal().expect("a free port"));
    let target = target(isnsd.portal);
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
    assert!(!isnsd.list("nodes").contains(&name), "{}", isnsd.list("nodes"));
}

#[test]
fn a_server_that_comes_later_is_found_and_one_that_never_comes_holds_nothing_up() {
    need_programs!("isnsd", "isnsadm");
    let portal = free_portal().expect("a free port");
    let target = target(portal);
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
