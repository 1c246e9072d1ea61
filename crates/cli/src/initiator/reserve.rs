//! `lunette reserve`: persistent reservations, with sg_persist's words.

use lunette_scsi::client::reservations::{
    self, Held, RegisterOptions, ReservationType, ReserveOut, reserve_out,
};
use lunette_wire::Isid;
use serde::Serialize;

use super::disk::Disk;
use super::options::ReserveOptions;
use super::report::{Facts, table, tell};
use super::session;
use crate::failure::Failure;
use lunette_scsi::Lun;

/// The identifier of the session that registrations belong to, where nobody says another: a random one, the same each time.
const ISID: Isid = Isid([0x80, 0, 0, 0, 0, 1]);

/// The standard's name of a type, in small letters.
pub(crate) fn type_name(kind: ReservationType) -> &'static str {
    match kind {
        ReservationType::WriteExclusive => "write exclusive",
        ReservationType::ExclusiveAccess => "exclusive access",
        ReservationType::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
        ReservationType::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
        ReservationType::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
        ReservationType::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
    }
}

/// Does one thing.
pub(crate) fn run(options: &ReserveOptions) -> Result<(), Failure> {
    let out = change(options)?;
    let mut session_options = options.access.session(&options.url);
    session_options.isid = options.isid.or(session_options.isid).or(Some(ISID));
    let port = session::connect(&session_options)?;
    let mut disk = Disk::on(port, Lun::from_number(options.url.lun.number()), options.url.to_string())?;
    let result = match out {
        Some(out) => {
            let command = reserve_out(&out).map_err(|error| Failure::usage(error.to_string()))?;
            disk.run(&command, &[]).and_then(|_| tell_done(options, &command))
        }
        None => look(&mut disk, options),
    };
    let closed = disk.close();
    result.and(closed)
}

#[derive(Debug, Serialize)]
struct Done {
    done: &'static str,
}

fn tell_done(options: &ReserveOptions, command: &lunette_scsi::client::Command) -> Result<(), Failure> {
    tell(options.json, &Done { done: command.name() }, |done| format!("{}: done\n", done.done))
}

/// What is to be changed, if the command is to change something.
fn change(options: &ReserveOptions) -> Result<Option<ReserveOut>, Failure> {
    // Which belong together was looked at with the flags.
    let key = options.param_rk.unwrap_or(0);
    let new_key = options.param_sark.unwrap_or(0);
    let kind = options.prout_type.unwrap_or(ReservationType::WriteExclusive);
    let register = || RegisterOptions {
        persist: options.param_aptpl,
        all_target_ports: options.param_alltgpt,
        initiator_ports: options.transport_id.clone(),
    };
    let out = if options.register {
        ReserveOut::Register { key, new_key, options: register() }
    } else if options.register_ignore {
        ReserveOut::RegisterAndIgnore { new_key, options: register() }
    } else if options.register_move {
        let [port] = options.transport_id.as_slice() else {
            return Err(Failure::usage("--register-move takes one --transport-id"));
        };
        ReserveOut::Move {
            key,
            new_key,
            unregister: options.param_unreg,
            persist: options.param_aptpl,
            target_port: options.relative_target_port.unwrap_or(0),
            initiator_port: port.clone(),
        }
    } else if options.reserve {
        ReserveOut::Reserve { key, kind }
    } else if options.release {
        ReserveOut::Release { key, kind }
    } else if options.clear {
        ReserveOut::Clear { key }
    } else if options.preempt || options.preempt_abort {
        ReserveOut::Preempt { key, victim: new_key, kind, abort: options.preempt_abort }
    } else if options.replace_lost {
        ReserveOut::ReplaceLost { new_key, kind, persist: options.param_aptpl }
    } else {
        return Ok(None);
    };
    Ok(Some(out))
}

#[derive(Debug, Serialize)]
struct Keys {
    generation: u32,
    keys: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Reservation {
    generation: u32,
    reservation: Option<HeldAs>,
}

#[derive(Debug, Serialize)]
struct HeldAs {
    key: String,
    r#type: &'static str,
}

impl From<Held> for HeldAs {
    fn from(held: Held) -> HeldAs {
        HeldAs { key: hex(held.key), r#type: held.kind.map_or("unknown", type_name) }
    }
}

#[derive(Debug, Serialize)]
struct Capabilities {
    replace_lost: bool,
    compatible_reservations: bool,
    specify_initiator_ports: bool,
    all_target_ports: bool,
    persist_through_power_loss: bool,
    persists_now: bool,
    types: Option<Vec<&'static str>>,
}

#[derive(Debug, Serialize)]
struct FullStatus {
    generation: u32,
    registrants: Vec<Registrant>,
}

#[derive(Debug, Serialize)]
struct Registrant {
    key: String,
    initiator: String,
    target_port: Option<u16>,
    holds: Option<&'static str>,
}

fn hex(key: u64) -> String {
    format!("{key:#x}")
}

fn look(disk: &mut Disk, options: &ReserveOptions) -> Result<(), Failure> {
    let json = options.json;
    if options.read_keys {
        let keys = disk.ask(&reservations::read_keys())?;
        let keys = Keys { generation: keys.generation, keys: keys.keys.into_iter().map(hex).collect() };
        return tell(json, &keys, keys_text);
    }
    if options.read_reservation {
        let reserved = disk.ask(&reservations::read_reservation())?;
        let report =
            Reservation { generation: reserved.generation, reservation: reserved.held.map(HeldAs::from) };
        return tell(json, &report, reservation_text);
    }
    if options.report_capabilities {
        let told = disk.ask(&reservations::report_capabilities())?;
        let report = Capabilities {
            replace_lost: told.replace_lost,
            compatible_reservations: told.compatible_reservations,
            specify_initiator_ports: told.specify_initiator_ports,
            all_target_ports: told.all_target_ports,
            persist_through_power_loss: told.persist_through_power_loss,
            persists_now: told.persists_now,
            types: told.types.map(|types| types.into_iter().map(type_name).collect()),
        };
        return tell(json, &report, capabilities_text);
    }
    let full = disk.ask(&reservations::read_full_status())?;
    let registrants = full.registrants.into_iter().map(|registrant| Registrant {
        key: hex(registrant.key),
        initiator: registrant.initiator.to_string(),
        target_port: registrant.target_port,
        holds: registrant.held.map(|held| held.kind.map_or("unknown", type_name)),
    });
    let report = FullStatus { generation: full.generation, registrants: registrants.collect() };
    tell(json, &report, full_text)
}

fn keys_text(keys: &Keys) -> String {
    match keys.keys.as_slice() {
        [] => format!("no keys are registered (generation {})\n", keys.generation),
        all => format!("{} (generation {})\n", all.join("\n"), keys.generation),
    }
}

fn reservation_text(report: &Reservation) -> String {
    match &report.reservation {
        None => format!("nothing is reserved (generation {})\n", report.generation),
        Some(held) => format!("{}, key {} (generation {})\n", held.r#type, held.key, report.generation),
    }
}

fn capabilities_text(told: &Capabilities) -> String {
    let yes = |value: bool| if value { "yes" } else { "no" };
    let mut facts = Facts::new();
    facts
        .row("can be replaced when they are lost (RLR_C)", yes(told.replace_lost))
        .row("RESERVE and RELEASE work beside them (CRH)", yes(told.compatible_reservations))
        .row("others can be registered along (SIP_C)", yes(told.specify_initiator_ports))
        .row("registrations for all target ports (ATP_C)", yes(told.all_target_ports))
        .row("can be kept through a loss of power (PTPL_C)", yes(told.persist_through_power_loss))
        .row("are kept through a loss of power (PTPL_A)", yes(told.persists_now));
    for kind in told.types.iter().flatten() {
        facts.row("type", *kind);
    }
    facts.render(0)
}

fn full_text(report: &FullStatus) -> String {
    if report.registrants.is_empty() {
        return format!("nobody is registered (generation {})\n", report.generation);
    }
    let rows: Vec<Vec<String>> = report
        .registrants
        .iter()
        .map(|registrant| {
            let port =
                registrant.target_port.map_or_else(|| "all ports".to_owned(), |port| format!("port {port}"));
            let holds = registrant.holds.map_or_else(String::new, |kind| format!("holds: {kind}"));
            vec![registrant.key.clone(), registrant.initiator.clone(), port, holds]
        })
        .collect();
    format!("{}(generation {})\n", table(0, &rows), report.generation)
}
