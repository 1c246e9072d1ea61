//! Login without authentication: security stage, operational stage (RFC 7143, 6.3), and what came out of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lunette_wire::frame::{DATA_SEGMENT_LENGTH_MAX, Digests};
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::{InitiatorPdu, Isid, TargetPdu, text};

use crate::link::{Link, SEGMENT_MAX_BYTES};
use crate::url::Url;

/// What is offered for MaxBurstLength and FirstBurstLength: the largest transfers that are measured, in one burst.
const BURST_MAX_BYTES: u32 = 1 << 20;

/// What the two sides agreed on for Data-Out (clause 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) immediate_data: bool,
    pub(crate) initial_r2t: bool,
    pub(crate) first_burst_bytes: u32,
    /// The target's MaxRecvDataSegmentLength.
    pub(crate) segment_max_bytes: u32,
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
}

/// Logs in session `number`, which shares its initiator's name with the other sessions of this process.
///
/// # Errors
/// The target refuses, or does not agree to the digests.
pub(crate) fn login(url: &Url, number: u32, digests: Digests) -> Result<LoggedIn> {
    let mut link = Link::open(url.portal, number)?;
    let initiator_name = format!("iqn.2026-11.io.lunette:bench-{}", std::process::id());
    let stage = |current_stage, next_stage| {
        let [_, high, middle, low] = number.to_be_bytes();
        LoginRequest {
            transit: true,
            current_stage,
            next_stage,
            // Type "random" (11.12.5): no registered number of anybody is used.
            isid: Isid([0x80, 0, 0, high, middle, low]),
            ..LoginRequest::default()
        }
    };
    let names = [
        ("InitiatorName", initiator_name.as_str()),
        ("SessionType", "Normal"),
        ("TargetName", url.target_name.as_str()),
        ("AuthMethod", "None"),
    ];
    let mut answers = BTreeMap::new();
    exchange(&mut link, stage(LoginStage::Security, LoginStage::Operational), &names, &mut answers)?;
    let digest = |wanted| if wanted { "CRC32C" } else { "None" };
    let (segment, burst) = (SEGMENT_MAX_BYTES.to_string(), BURST_MAX_BYTES.to_string());
    let offers = [
        ("HeaderDigest", digest(digests.header)),
        ("DataDigest", digest(digests.data)),
        ("MaxRecvDataSegmentLength", &segment),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", &burst),
        ("FirstBurstLength", &burst),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "0"),
        ("ErrorRecoveryLevel", "0"),
    ];
    exchange(&mut link, stage(LoginStage::Operational, LoginStage::FullFeature), &offers, &mut answers)?;
    let took = link.began.elapsed();
    let has = |key: &str| answers.get(key).is_some_and(|value| value == "CRC32C");
    link.digests = Digests { header: has("HeaderDigest"), data: has("DataDigest") };
    ensure!(link.digests == digests, "the target agrees to {:?}, not to {digests:?}", link.digests);
    Ok(LoggedIn { agreed: Agreed::of(&answers)?, link, took })
}

/// One login request and its answer, which must take the login to the next stage.
fn exchange(
    link: &mut Link,
    request: LoginRequest,
    keys: &[(&str, &str)],
    answers: &mut BTreeMap<String, String>,
) -> Result<()> {
    let mut data = Vec::new();
    keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
    let counters = &mut link.counters;
    let request = LoginRequest { cmd_sn: counters.cmd_sn, exp_stat_sn: counters.exp_stat_sn, ..request };
    link.send(&InitiatorPdu::LoginRequest(request), &data)?;
    let (TargetPdu::LoginResponse(response), data) = link.receive()? else {
        bail!("a login request was answered by something else");
    };
    let (class, detail) = (response.status_class, response.status_detail);
    ensure!(class == 0, "login refused: status {class:02x}{detail:02x}");
    ensure!(
        response.transit && response.next_stage == request.next_stage,
        "the target stays in {:?}",
        response.current_stage
    );
    for (key, value) in text::pairs(&data)? {
        answers.insert(key.to_owned(), value.to_owned());
    }
    // The first response begins the numbering of statuses.
    link.counters.exp_stat_sn = response.numbers.stat_sn;
    link.counters.take(response.numbers, true)
}

/// Reads the first block: what a host does with a new disk before anything else.
///
/// Answers the unit's size and the time since `connect`.
///
/// # Errors
/// The unit cannot be read.
pub(crate) fn first_block(link: &mut Link, url: &Url) -> Result<(crate::link::Capacity, Duration)> {
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
                segment_max_bytes: 8192
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
