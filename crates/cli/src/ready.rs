//! What is served, as one line of JSON: for `--json` and `--ready-fd`.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use lunette_target::config::{AccessRule, Grant};
use lunette_target::{Server, TargetReport, UnitReport};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Ready<'a> {
    portals: &'a [SocketAddr],
    targets: Vec<Target<'a>>,
    pid: u32,
}

#[derive(Debug, Serialize)]
struct Target<'a> {
    name: &'a str,
    alias: Option<&'a str>,
    chap: bool,
    access: Vec<Access>,
    groups: &'a [u16],
    redirect: Vec<String>,
    units: Vec<Unit<'a>>,
}

/// One access rule. No `luns`: all.
#[derive(Debug, Serialize)]
struct Access {
    initiators: Vec<String>,
    addresses: Vec<String>,
    users: Vec<String>,
    refuse: bool,
    luns: Option<Vec<String>>,
    read_only: bool,
}

impl From<&AccessRule> for Access {
    fn from(rule: &AccessRule) -> Self {
        let luns = match &rule.grant {
            Grant::Units(units) => Some(units.iter().map(ToString::to_string).collect()),
            Grant::Nothing | Grant::Everything { .. } => None,
        };
        Self {
            initiators: rule.initiators.iter().map(ToString::to_string).collect(),
            addresses: rule.addresses.iter().map(ToString::to_string).collect(),
            users: rule.users.clone(),
            refuse: rule.grant == Grant::Nothing,
            luns,
            read_only: rule.grant == Grant::Everything { read_only: true },
        }
    }
}

#[derive(Debug, Serialize)]
struct Unit<'a> {
    lun: u16,
    store: &'a str,
    size_bytes: u64,
    block_bytes: u32,
    protection: Option<u8>,
    read_only: bool,
    write: String,
    engine: String,
    engine_reason: Option<&'a str>,
    naa: &'a str,
    serial: &'a str,
    unmap: bool,
}

impl<'a> From<&'a UnitReport> for Unit<'a> {
    fn from(unit: &'a UnitReport) -> Self {
        Self {
            lun: unit.lun,
            store: &unit.store,
            size_bytes: unit.size_bytes,
            block_bytes: unit.block_length_bytes,
            protection: unit.protection,
            read_only: unit.read_only,
            write: unit.write_mode.to_string(),
            engine: unit.engine.to_string(),
            engine_reason: unit.engine_reason.as_deref(),
            naa: &unit.naa,
            serial: &unit.serial,
            unmap: unit.unmap,
        }
    }
}

/// The line of a running server, with its line end.
pub(crate) fn line_of(server: &Server) -> String {
    line(server.portals(), server.targets(), std::process::id())
}

fn line(portals: &[SocketAddr], targets: &[TargetReport], pid: u32) -> String {
    let targets = targets.iter().map(|target| Target {
        name: &target.name,
        alias: target.alias.as_deref(),
        chap: target.chap,
        access: target.access.iter().map(Access::from).collect(),
        groups: &target.groups,
        redirect: target.redirect.iter().flat_map(|to| to.addresses()).map(ToString::to_string).collect(),
        units: target.units.iter().map(Unit::from).collect(),
    });
    let ready = Ready { portals, targets: targets.collect(), pid };
    // Strings, numbers and lists always have a form in JSON.
    let mut line = serde_json::to_string(&ready).unwrap_or_default();
    line.push('\n');
    line
}

/// A file descriptor that whoever started us waits at.
#[derive(Debug)]
pub(crate) struct ReadyDescriptor(File);

impl ReadyDescriptor {
    /// Takes an inherited descriptor over. It must be called before this process opens anything itself, so that the
    /// number cannot be one of ours.
    ///
    /// # Errors
    /// There is no such descriptor.
    #[expect(unsafe_code, reason = "a number from the command line can become a descriptor in no other way")]
    pub(crate) fn take(number: i32) -> io::Result<Self> {
        // SAFETY: only looked at; a number that is not open is what the call finds out.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
        // SAFETY: it is open and inherited, as this process has opened nothing yet; so nobody else here owns it.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(number) })))
    }

    /// Writes the line and closes the descriptor.
    pub(crate) fn tell(mut self, line: &str) -> io::Result<()> {
        self.0.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::banner::tests::report;

    #[test]
    fn the_line_has_the_agreed_keys() {
        let portals = ["127.0.0.1:3260".parse().unwrap(), "[::1]:3260".parse().unwrap()];
        assert_eq!(
            line(&portals, &[report()], 42),
            concat!(
                r#"{"portals":["127.0.0.1:3260","[::1]:3260"],"targets":[{"name":"iqn.2026-11.io.lunette:vm","#,
                r#""alias":"Machines","chap":false,"access":[],"groups":[1],"redirect":[],"units":[{"lun":0,"store":"file /srv/vm.img","size_bytes":21474836480,"#,
                r#""block_bytes":512,"protection":null,"read_only":false,"write":"through","engine":"threads","engine_reason":null,"#,
                r#""naa":"naa.3000000000000001","serial":"S-1","unmap":true}]}],"pid":42}"#,
                "\n"
            )
        );
    }
}
