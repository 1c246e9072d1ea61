//! Login: security stage with or without CHAP, operational stage (RFC 7143, 6.3), and what came out of it.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunette_iscsi::chap::ChapNonce;
use lunette_wire::frame::{DATA_SEGMENT_LENGTH_MAX, Digests};
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::{Cid, InitiatorPdu, Isid, TargetPdu, Tsih, text};

use crate::chap::Chap;
use crate::link::{Capacity, ExpStatSn, Link, SEGMENT_MAX_BYTES};
use crate::url::Url;

/// What is offered for MaxBurstLength and FirstBurstLength: the largest transfers that are measured, in one burst.
const BURST_MAX_BYTES: u32 = 1 << 20;

/// What every connection asks for.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    pub(crate) digests: Digests,
    /// `None`: without authentication.
    pub(crate) chap: Option<Chap>,
}

/// What the two sides agreed on for Data-Out (clause 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) immediate_data: bool,
    pub(crate) initial_r2t: bool,
    pub(crate) first_burst_bytes: u32,
    /// The target's MaxRecvDataSegmentLength.
    pub(crate) segment_max_bytes: u32,
    /// Of one session.
    pub(crate) max_connections: u16,
}

impl Agreed {
    fn of(answers: &BTreeMap<String, String>) -> Result<Self> {
        let number = |key: &str, default: u32| match answers.get(key) {
            Some(value) => value.parse::<u32>().with_context(|| format!("{key}={value}")),
            None => Ok(default),
        };
        let is = |key: &str, value: &str| answers.get(key).is_some_and(|answer| answer == value);
        let agreed = Self {
            immediate_data: !is("ImmediateData", "No"),
            initial_r2t: !is("InitialR2T", "No"),
            first_burst_bytes: number("FirstBurstLength", 65536)?,
            // Whole blocks, so that no data segment needs padding.
            segment_max_bytes: number("MaxRecvDataSegmentLength", 8192)? & !511,
            max_connections: u16::try_from(number("MaxConnections", 1)?)?,
        };
        ensure!(
            (512..=DATA_SEGMENT_LENGTH_MAX).contains(&agreed.segment_max_bytes),
            "the target declares a MaxRecvDataSegmentLength of {}",
            agreed.segment_max_bytes
        );
        Ok(agreed)
    }
}

/// A session that has just reached full feature phase.
#[derive(Debug)]
pub(crate) struct LoggedIn {
    pub(crate) link: Link,
    pub(crate) agreed: Agreed,
    /// From `connect` to the last login response.
    pub(crate) took: Duration,
    /// What further connections join.
    pub(crate) identity: Identity,
}

/// Logs in session `number`, which shares its initiator's name with the other sessions of this process and may have so
/// many `connections`.
///
/// # Errors
/// The target refuses, does not agree to the digests, or does not prove itself where it has to.
pub(crate) fn login(url: &Url, number: u32, terms: &Terms, connections: u16) -> Result<LoggedIn> {
    let mut link = Link::open(url.portal, number)?;
    let (segment, burst) = (SEGMENT_MAX_BYTES.to_string(), BURST_MAX_BYTES.to_string());
    let connections = connections.to_string();
    let offers = [
        ("MaxRecvDataSegmentLength", segment.as_str()),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", &burst),
        ("FirstBurstLength", &burst),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", &connections),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "0"),
        ("ErrorRecoveryLevel", "0"),
    ];
    let identity = Identity { isid: isid(number), tsih: Tsih(0), cid: Cid(0) };
    let (answers, tsih) = stages(&mut link, url, identity, terms, &offers)?;
    let took = link.began.elapsed();
    let agreed = Agreed::of(&answers)?;
    Ok(LoggedIn { agreed, link, took, identity: Identity { tsih, ..identity } })
}

/// Adds connection `cid` to a session whose leading connection is `leading`.
///
/// # Errors
/// As [`login`].
pub(crate) fn join(
    url: &Url,
    number: u32,
    terms: &Terms,
    session: Identity,
    leading: &Link,
    cid: u16,
) -> Result<Link> {
    let mut link = Link::open(url.portal, number)?;
    link.window = leading.window;
    let segment = SEGMENT_MAX_BYTES.to_string();
    // The other keys belong to the leading connection (13).
    let offers = [("MaxRecvDataSegmentLength", segment.as_str())];
    let identity = Identity { cid: Cid(cid), ..session };
    stages(&mut link, url, identity, terms, &offers)?;
    Ok(link)
}

/// What a connection says it belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    isid: Isid,
    tsih: Tsih,
    cid: Cid,
}

/// Type "random" (11.12.5): no registered number of anybody is used.
fn isid(number: u32) -> Isid {
    let [_, high, middle, low] = number.to_be_bytes();
    Isid([0x80, 0, 0, high, middle, low])
}

/// Both stages of a login; answers what the target answered, and the session's handle.
fn stages(
    link: &mut Link,
    url: &Url,
    identity: Identity,
    terms: &Terms,
    offers: &[(&str, &str)],
) -> Result<(BTreeMap<String, String>, Tsih)> {
    let Identity { isid, tsih, cid } = identity;
    let stage = |current_stage, next_stage| LoginRequest {
        transit: current_stage != next_stage,
        current_stage,
        next_stage,
        isid,
        tsih,
        cid,
        ..LoginRequest::default()
    };
    let initiator_name = format!("iqn.2026-11.io.lunette:bench-{}", std::process::id());
    let names = [
        ("InitiatorName", initiator_name.as_str()),
        ("SessionType", "Normal"),
        ("TargetName", url.target_name.as_str()),
        ("AuthMethod", if terms.chap.is_some() { "CHAP" } else { "None" }),
    ];
    let mut answers = BTreeMap::new();
    let to_operational = stage(LoginStage::Security, LoginStage::Operational);
    if let Some(chap) = &terms.chap {
        let stay = stage(LoginStage::Security, LoginStage::Security);
        exchange(link, stay, &names, &mut answers)?;
        exchange(link, stay, &[("CHAP_A", &Chap::algorithms())], &mut answers)?;
        authenticate(link, to_operational, chap, &mut answers)?;
    } else {
        exchange(link, to_operational, &names, &mut answers)?;
    }
    let Terms { digests, .. } = *terms;
    let digest = |wanted| if wanted { "CRC32C" } else { "None" };
    let mut keys = vec![("HeaderDigest", digest(digests.header)), ("DataDigest", digest(digests.data))];
    keys.extend(offers);
    let tsih = exchange(link, stage(LoginStage::Operational, LoginStage::FullFeature), &keys, &mut answers)?;
    let has = |key: &str| answers.get(key).is_some_and(|value| value == "CRC32C");
    link.digests = Digests { header: has("HeaderDigest"), data: has("DataDigest") };
    ensure!(link.digests == digests, "the target agrees to {:?}, not to {digests:?}", link.digests);
    Ok((answers, tsih))
}

/// Answers the challenge that came, which ends the security stage, and has the target answer ours in mutual CHAP.
fn authenticate(
    link: &mut Link,
    request: LoginRequest,
    chap: &Chap,
    answers: &mut BTreeMap<String, String>,
) -> Result<()> {
    let mut random = [0; 33];
    getrandom::fill(&mut random).map_err(io::Error::from)?;
    let own = ChapNonce::from(random);
    let keys = chap.answer(answers, &own)?;
    let keys: Vec<_> = keys.iter().map(|(key, value)| (*key, value.as_str())).collect();
    exchange(link, request, &keys, answers)?;
    chap.verify(answers, &own)
}

/// One login request and its answer, which must take the login to the next stage if and only if that is asked for;
/// answers the session's handle.
fn exchange(
    link: &mut Link,
    request: LoginRequest,
    keys: &[(&str, &str)],
    answers: &mut BTreeMap<String, String>,
) -> Result<Tsih> {
    let mut data = Vec::new();
    keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
    let request = LoginRequest { cmd_sn: link.window.cmd_sn, exp_stat_sn: link.exp_stat_sn.0, ..request };
    link.send(&InitiatorPdu::LoginRequest(request), &data)?;
    let (TargetPdu::LoginResponse(response), data) = link.receive()? else {
        bail!("a login request was answered by something else");
    };
    let (class, detail) = (response.status_class, response.status_detail);
    ensure!(class == 0, "login refused: status {class:02x}{detail:02x}");
    ensure!(
        response.transit == request.transit
            && (!request.transit || response.next_stage == request.next_stage),
        "the target stays in {:?} or leaves it unasked",
        response.current_stage
    );
    for (key, value) in text::pairs(&data)? {
        answers.insert(key.to_owned(), value.to_owned());
    }
    // The first response begins the numbering of statuses.
    link.exp_stat_sn = ExpStatSn(response.numbers.stat_sn);
    link.take(response.numbers, true)?;
    Ok(response.tsih)
}

/// Reads the first block: what a host does with a new disk before anything else.
///
/// Answers the unit's size and the time since `connect`.
///
/// # Errors
/// The unit cannot be read.
pub(crate) fn first_block(link: &mut Link, url: &Url) -> Result<(Capacity, Duration)> {
    let capacity = link.capacity(url.lun)?;
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x88, 1);
    let data = link.insist(url.lun, cdb, capacity.block_bytes)?;
    ensure!(data.len() == capacity.block_bytes as usize, "the first block has {} bytes", data.len());
    Ok((capacity, Instant::now() - link.began))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn without_an_answer_there_is_the_default_of_the_standard() {
        let agreed = Agreed::of(&answers(&[])).unwrap();
        assert_eq!(
            agreed,
            Agreed {
                immediate_data: true,
                initial_r2t: true,
                first_burst_bytes: 65536,
                segment_max_bytes: 8192,
                max_connections: 1,
            }
        );
    }

    #[test]
    fn answers_are_honoured() {
        let agreed = Agreed::of(&answers(&[
            ("ImmediateData", "No"),
            ("InitialR2T", "No"),
            ("FirstBurstLength", "131072"),
            ("MaxRecvDataSegmentLength", "10000"),
        ]))
        .unwrap();
        assert!(!agreed.immediate_data && !agreed.initial_r2t);
        assert_eq!((agreed.first_burst_bytes, agreed.segment_max_bytes), (131_072, 9728));
        assert!(Agreed::of(&answers(&[("MaxRecvDataSegmentLength", "0")])).is_err());
        assert!(Agreed::of(&answers(&[("FirstBurstLength", "many")])).is_err());
    }
}
