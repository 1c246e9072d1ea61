//! `lunette discover`: targets, portals, units and sizes.

use clap::Args;
use lunette_initiator::{
    Credentials, DEFAULT_PORT, DiscoveredTarget, ISNS_PORT, IscsiName, Lun as UrlLun, Options, Portal,
    TargetUrl, TransferWishes, default_initiator_name, discover, discover_isns, without_secrets,
};
use lunette_scsi::Lun;
use lunette_scsi::client::{UnitFacts, capacity};
use serde::Serialize;

use super::credentials;
use super::disk::{ask, probe};
use super::port::Port;
use super::report::{table, tell};
use super::session;
use crate::banner::size;
use crate::failure::Failure;

/// Where to ask. Which port is meant without one depends on what is asked there.
fn address(text: &str) -> Result<String, String> {
    if without_secrets(text) != text {
        return Err("give the address alone, and a secret with --chap-user".to_owned());
    }
    text.parse::<Portal>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[derive(Debug, Args)]
pub(crate) struct DiscoverOptions {
    /// The portal: an address or a name, with a port unless it is 3260; with --isns the server, and 3205
    #[arg(value_name = "ADDRESS", value_parser = address)]
    address: String,
    /// ADDRESS is an iSNS server, which is asked for targets and their portals
    #[arg(long, conflicts_with = "targets")]
    isns: bool,
    /// Log in as this user: NAME=file:PATH or NAME=env:VARIABLE, for discovery and for the targets
    #[arg(long, value_name = "USER")]
    chap_user: Option<String>,
    /// Do not ask for targets: look at this one, which may be repeated
    #[arg(long = "static", value_name = "TARGET", conflicts_with = "targets_only")]
    targets: Vec<String>,
    /// Do not log in to the targets: leave out units and sizes
    #[arg(long)]
    targets_only: bool,
    /// Our iSCSI name [default: iqn.2026-11.io.lunette:initiator. and the name of this host]
    #[arg(long, value_name = "NAME")]
    initiator_name: Option<String>,
    /// Tell it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Serialize)]
struct Found {
    /// Who was asked, or is to have the targets that were named.
    #[serde(skip_serializing_if = "Option::is_none")]
    portal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    isns_server: Option<String>,
    targets: Vec<Target>,
}

#[derive(Debug, Serialize)]
struct Target {
    name: String,
    portals: Vec<String>,
    /// Why its units are not listed, if they are not.
    error: Option<String>,
    units: Vec<Unit>,
}

#[derive(Debug, Serialize)]
struct Unit {
    lun: u16,
    url: String,
    kind: &'static str,
    vendor: String,
    product: String,
    serial: String,
    size_bytes: Option<u64>,
    block_bytes: Option<u32>,
    read_only: bool,
    /// Why nothing more is told, if something is wrong.
    error: Option<String>,
}

/// Asks a portal or a server, and logs in to what it tells.
pub(crate) fn run(options: &DiscoverOptions) -> Result<(), Failure> {
    let own_name = options.initiator_name.as_deref().map(|text| named(text, IscsiName::parse(text)));
    let initiator_name = own_name.unwrap_or_else(|| Ok(default_initiator_name()))?;
    let credentials =
        options.chap_user.as_deref().map(|text| credentials::of_flag("--chap-user", text)).transpose()?;
    credentials::warn_of_short_secrets(credentials.as_ref());
    let port = if options.isns { ISNS_PORT } else { DEFAULT_PORT };
    let asked = Portal::parse(&options.address, port).map_err(|error| Failure::usage(error.to_string()))?;
    let session_options = |target: IscsiName| Options {
        initiator_name: initiator_name.clone(),
        credentials: credentials.clone(),
        ..Options::new(target, asked.clone())
    };
    let targets = if options.targets.is_empty() {
        // Whose name is in the options does not matter to who is asked for all.
        let anybody = session_options(initiator_name.clone());
        let found = if options.isns { discover_isns(&asked, &anybody) } else { discover(&anybody) };
        found.map_err(|error| Failure::initiator(&error))?
    } else {
        let given = options.targets.iter().map(|text| {
            // Targets in use have names that no standard has given them.
            let name = named(text, IscsiName::from_peer(text))?;
            Ok(DiscoveredTarget { name, portals: vec![asked.clone()] })
        });
        given.collect::<Result<_, Failure>>()?
    };
    let mut failed = None;
    let listed = targets.into_iter().map(|target| {
        if options.targets_only {
            return listed(&target, Ok(Vec::new()));
        }
        let mut options = session_options(target.name.clone());
        options.portals.clone_from(&target.portals);
        let units = if target.portals.is_empty() {
            Err(Failure::session(format!("{} has no portal that the server knows", target.name.as_str())))
        } else {
            units_of(&options, &credentials)
        };
        if let Err(failure) = &units
            && failed.is_none()
        {
            failed = Some(failure.clone());
        }
        self::listed(&target, units)
    });
    let targets = listed.collect();
    let [portal, isns_server] =
        [!options.isns, options.isns].map(|is_meant| is_meant.then(|| asked.to_string()));
    let found = Found { portal, isns_server, targets };
    tell(options.json, &found, text)?;
    failed.map_or(Ok(()), Err)
}

fn named<E: std::fmt::Display>(text: &str, name: Result<IscsiName, E>) -> Result<IscsiName, Failure> {
    name.map_err(|error| Failure::usage(format!("{text:?} is no iSCSI name: {error}")))
}

fn listed(target: &DiscoveredTarget, units: Result<Vec<Unit>, Failure>) -> Target {
    let (units, error) = match units {
        Ok(units) => (units, None),
        Err(failure) => (Vec::new(), Some(failure.to_string())),
    };
    Target {
        name: target.name.as_str().to_owned(),
        portals: target.portals.iter().map(ToString::to_string).collect(),
        error,
        units,
    }
}

fn units_of(options: &Options, credentials: &Option<Credentials>) -> Result<Vec<Unit>, Failure> {
    let target = options.target.as_str();
    let mut port = session::connect(options)?;
    // REPORT LUNS may be asked of LUN 0, whether there is a unit or not (SPC-4).
    let luns = ask(&mut *port, Lun::from_number(0), target, &capacity::report_luns())?;
    let mut units = Vec::new();
    for number in luns.into_iter().filter_map(Lun::number) {
        // Numbers beyond what a URL can name are left out.
        if let Some(lun) = UrlLun::new(number) {
            units.push(unit_of(&mut *port, number, url(options, credentials, lun))?);
        }
    }
    port.close()?;
    Ok(units)
}

fn url(options: &Options, credentials: &Option<Credentials>, lun: UrlLun) -> String {
    // Only what is shown: where, which, and the user's name.
    let portal = options.portals.first().map(|portal| Portal { portal_group_tag: None, ..portal.clone() });
    let url = TargetUrl {
        portal: portal.unwrap_or_else(|| Portal::new("", 0)),
        target: options.target.clone(),
        lun,
        credentials: credentials.clone(),
        initiator_name: None,
        header_digest: None,
        data_digest: None,
        connections: None,
        error_recovery_level: None,
        skips_security: None,
        isid: None,
        transfer: TransferWishes::default(),
    };
    url.to_string()
}

/// What one unit tells. Only a session that ends is an error.
fn unit_of(port: &mut dyn Port, number: u16, url: String) -> Result<Unit, Failure> {
    let (facts, error) = match probe(port, Lun::from_number(number), &url) {
        Ok(facts) => (facts, None),
        Err(failure) if failure.is_of_scsi() => (UnitFacts::default(), Some(failure.to_string())),
        Err(failure) => return Err(failure),
    };
    let not_ready = facts.not_ready.as_ref().map(|sense| format!("not ready: {sense}"));
    Ok(Unit {
        lun: number,
        url,
        kind: facts.inquiry.device_type.name(),
        read_only: facts.is_write_protected(),
        size_bytes: facts.capacity.map(|capacity| capacity.bytes()),
        block_bytes: facts.capacity.map(|capacity| capacity.block_length_bytes),
        error: error.or(not_ready),
        vendor: facts.inquiry.vendor,
        product: facts.inquiry.product,
        serial: facts.serial,
    })
}

fn text(found: &Found) -> String {
    if found.targets.is_empty() {
        let asked = match (&found.isns_server, &found.portal) {
            (Some(server), _) => format!("The iSNS server {server}"),
            (None, portal) => portal.clone().unwrap_or_default(),
        };
        return format!("{asked} has no targets for this initiator.\n");
    }
    let mut text = String::new();
    for target in &found.targets {
        text.push_str(&format!("{}  at {}\n", target.name, target.portals.join(", ")));
        if let Some(error) = &target.error {
            text.push_str(&format!("  {error}\n"));
        }
        let rows: Vec<Vec<String>> = target.units.iter().map(row).collect();
        text.push_str(&table(2, &rows));
    }
    text
}

fn row(unit: &Unit) -> Vec<String> {
    let size = match (unit.size_bytes, unit.block_bytes) {
        (Some(bytes), Some(block)) => format!("{}, {block}-byte blocks", size(bytes)),
        _ => unit.error.clone().unwrap_or_else(|| unit.kind.to_owned()),
    };
    let read_only = if unit.read_only { ", read-only" } else { "" };
    let names = [unit.vendor.as_str(), unit.product.as_str(), unit.serial.as_str()];
    let names = names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" ");
    vec![format!("LUN {}", unit.lun), format!("{size}{read_only}"), names, unit.url.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_short_and_aligned() {
        let unit = |lun, size_bytes, error: Option<&str>| Unit {
            lun,
            url: format!("iscsi://192.0.2.1:3260/iqn.x:a/{lun}"),
            kind: "disk",
            vendor: "LUNETTE".into(),
            product: "VOLUME".into(),
            serial: "S-1".into(),
            size_bytes,
            block_bytes: size_bytes.map(|_| 512),
            read_only: lun == 0,
            error: error.map(Into::into),
        };
        let found = Found {
            portal: Some("192.0.2.1:3260".into()),
            isns_server: None,
            targets: vec![Target {
                name: "iqn.x:a".into(),
                portals: vec!["192.0.2.1:3260,1".into()],
                error: None,
                units: vec![unit(0, Some(20 << 30), None), unit(12, None, Some("not ready: NOT READY"))],
            }],
        };
        let expected = "\
iqn.x:a  at 192.0.2.1:3260,1
  LUN 0   20 GiB, 512-byte blocks, read-only  LUNETTE VOLUME S-1  iscsi://192.0.2.1:3260/iqn.x:a/0
  LUN 12  not ready: NOT READY                LUNETTE VOLUME S-1  iscsi://192.0.2.1:3260/iqn.x:a/12
";
        assert_eq!(text(&found), expected);
        let none = Found { portal: Some("192.0.2.1:3260".into()), isns_server: None, targets: vec![] };
        assert_eq!(text(&none), "192.0.2.1:3260 has no targets for this initiator.\n");
        let none = Found { portal: None, isns_server: Some("192.0.2.1:3205".into()), targets: vec![] };
        assert_eq!(text(&none), "The iSNS server 192.0.2.1:3205 has no targets for this initiator.\n");
    }
}
