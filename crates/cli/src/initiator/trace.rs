//! `lunette login-trace`: what was said in a login, for people or as JSON.

use std::time::Duration;

use lunette_initiator::{Attempt, Error, LoginRecord, Outcome, TracedPdu, login_trace};
use lunette_wire::initiator::LoginStage;
use serde::Serialize;

use super::credentials;
use super::options::UrlOptions;
use super::report::{table, tell};
use crate::banner::printable;
use crate::failure::Failure;

#[derive(Debug, Serialize)]
struct Report {
    url: String,
    attempts: Vec<Try>,
    session: Option<Agreed>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Try {
    portal: String,
    address: Option<String>,
    began_ms: f64,
    resolved_ms: Option<f64>,
    connected_ms: Option<f64>,
    ended_ms: f64,
    pdus: Vec<Pdu>,
    keys: Vec<Key>,
    end: String,
}

#[derive(Debug, Serialize)]
struct Pdu {
    at_ms: f64,
    from: String,
    stage: &'static str,
    next_stage: Option<&'static str>,
    status: Option<String>,
    text_bytes: usize,
    pairs: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct Key {
    name: String,
    offered: Option<String>,
    answered: Option<String>,
    result: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct Agreed {
    tsih: u16,
    target_alias: Option<String>,
    portal_group_tag: Option<u16>,
    chap: Option<String>,
    command_window: u32,
}

/// Logs in, out again, and tells it, whether the login was through or not.
pub(crate) fn run(options: &UrlOptions) -> Result<(), Failure> {
    let session = options.url.options();
    credentials::warn_of_short_secrets(session.credentials.as_ref());
    let (record, result) = login_trace(&session);
    let report = report(options.url.to_string(), &record, result.as_ref());
    tell(options.json, &report, text)?;
    result.map(drop).map_err(|error| Failure::initiator(&error))
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn report(url: String, record: &LoginRecord, result: Result<&Outcome, &Error>) -> Report {
    Report {
        url,
        attempts: record.attempts.iter().map(attempt).collect(),
        session: result.ok().map(|outcome| Agreed {
            tsih: outcome.tsih.0,
            target_alias: outcome.target_alias.as_deref().map(printable),
            portal_group_tag: outcome.portal_group_tag,
            chap: outcome.algorithm.map(|algorithm| format!("{algorithm:?}")),
            command_window: outcome.max_cmd_sn.0.wrapping_sub(outcome.exp_cmd_sn.0).wrapping_add(1),
        }),
        error: result.err().map(ToString::to_string),
    }
}

fn attempt(attempt: &Attempt) -> Try {
    let keys = attempt.trace.keys.iter().map(|key| Key {
        name: printable(&key.name),
        offered: key.offered.as_deref().map(printable),
        answered: key.answered.as_deref().map(printable),
        result: printable(&key.result),
        why: key.reason.to_string(),
    });
    Try {
        portal: attempt.portal.to_string(),
        address: attempt.address.map(|address| address.to_string()),
        began_ms: ms(attempt.began),
        resolved_ms: attempt.resolved.map(ms),
        connected_ms: attempt.connected.map(ms),
        ended_ms: ms(attempt.ended),
        pdus: attempt.trace.pdus.iter().map(pdu).collect(),
        keys: keys.collect(),
        end: attempt.end.clone(),
    }
}

fn pdu(pdu: &TracedPdu) -> Pdu {
    Pdu {
        at_ms: ms(pdu.at),
        from: pdu.from.to_string(),
        stage: stage(pdu.stage),
        next_stage: pdu.next_stage.map(stage),
        status: (pdu.status != 0).then(|| format!("{:04x}", pdu.status)),
        text_bytes: pdu.text_length,
        pairs: pdu.pairs.iter().map(|(name, value)| (printable(name), printable(value))).collect(),
    }
}

fn stage(stage: LoginStage) -> &'static str {
    match stage {
        LoginStage::Security => "security",
        LoginStage::Operational => "operational",
        LoginStage::FullFeature => "full feature",
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("{}\n", report.url);
    for attempt in &report.attempts {
        attempt_text(&mut text, attempt);
    }
    if let Some(session) = &report.session {
        let alias =
            session.target_alias.as_ref().map_or_else(String::new, |alias| format!(", alias {alias}"));
        let group =
            session.portal_group_tag.map_or_else(String::new, |group| format!(", portal group {group}"));
        let chap =
            session.chap.as_ref().map_or_else(|| "no CHAP".to_owned(), |chap| format!("CHAP with {chap}"));
        text.push_str(&format!(
            "\nSession TSIH {}{alias}{group}, {chap}, room for {} commands. Logged out again.\n",
            session.tsih, session.command_window
        ));
    }
    text
}

fn attempt_text(text: &mut String, attempt: &Try) {
    let address = attempt.address.as_ref().map_or_else(String::new, |address| format!(" ({address})"));
    text.push_str(&format!("\n{}{address}\n", attempt.portal));
    let mut rows = Vec::new();
    let mut step = |at: f64, who: &str, what: String| {
        rows.push(vec![format!("{:>9.3} ms", at - attempt.began_ms), who.to_owned(), what]);
    };
    if let Some(at) = attempt.resolved_ms {
        step(at, "", "address known".to_owned());
    }
    if let Some(at) = attempt.connected_ms {
        step(at, "", "connected".to_owned());
    }
    for pdu in &attempt.pdus {
        // The first request is made before there is a connection; it leaves when there is one.
        let at = attempt.connected_ms.map_or(pdu.at_ms, |connected| pdu.at_ms.max(connected));
        let next = pdu.next_stage.map_or_else(String::new, |next| format!(", then {next}"));
        let status = pdu.status.as_ref().map_or_else(String::new, |status| format!(", status {status}h"));
        step(at, &pdu.from, format!("{}{next}{status}, {} bytes", pdu.stage, pdu.text_bytes));
        for (name, value) in &pdu.pairs {
            step(at, "", format!("  {name}={value}"));
        }
    }
    step(attempt.ended_ms, "", attempt.end.clone());
    text.push_str(&table(2, &rows));
    if attempt.keys.is_empty() {
        return;
    }
    let head = ["key", "offered", "answered", "result", "why"].map(str::to_owned).to_vec();
    let dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let keys = attempt.keys.iter().map(|key| {
        vec![key.name.clone(), dash(&key.offered), dash(&key.answered), key.result.clone(), key.why.clone()]
    });
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(keys).collect();
    text.push('\n');
    text.push_str(&table(2, &rows));
}
