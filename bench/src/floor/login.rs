//! Login as the yardstick does it: every initiator is welcome, every offer answered with what is fastest
//! (RFC 7143, 6.3 and clause 13).

use anyhow::{Context, Result};
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::text;

/// The data segments that are taken.
pub(super) const SEGMENT_MAX_BYTES: u32 = 256 << 10;

/// What one burst may have at most.
const BURST_MAX_BYTES: u32 = 1 << 20;

/// What must be known of the agreement afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The initiator's MaxRecvDataSegmentLength.
    pub(super) segment_max_bytes: usize,
    pub(super) max_burst_bytes: u32,
}

impl Default for Agreed {
    /// What the standard says where nothing is said.
    fn default() -> Self {
        Self { segment_max_bytes: 8192, max_burst_bytes: 256 << 10 }
    }
}

/// Answers the keys of a login request.
///
/// # Errors
/// The text is none.
pub(super) fn answer(request: &LoginRequest, keys: &[u8], agreed: &mut Agreed) -> Result<Vec<u8>> {
    let mut answers = Vec::new();
    let mut declared = false;
    for (key, value) in text::pairs(keys)? {
        let least = |bound: u32| -> Result<u32> {
            let number: u32 = value.parse().with_context(|| format!("{key}={value}"))?;
            Ok(number.min(bound))
        };
        let answer = match key {
            "InitiatorName" | "InitiatorAlias" | "TargetName" | "SessionType" => {
                if key == "SessionType" || key == "InitiatorName" {
                    declared = true;
                }
                continue;
            }
            "MaxRecvDataSegmentLength" => {
                // Whole blocks, so that no data segment needs padding.
                agreed.segment_max_bytes = least(SEGMENT_MAX_BYTES)?.max(512) as usize & !511;
                SEGMENT_MAX_BYTES.to_string()
            }
            "MaxBurstLength" => {
                agreed.max_burst_bytes = least(BURST_MAX_BYTES)?.max(512);
                agreed.max_burst_bytes.to_string()
            }
            "FirstBurstLength" => least(BURST_MAX_BYTES)?.to_string(),
            "MaxOutstandingR2T" => "1".to_owned(),
            // Each of them counts for itself: what a window over all of them costs is not the loop's affair.
            "MaxConnections" => least(32)?.to_string(),
            "ErrorRecoveryLevel" | "DefaultTime2Retain" => "0".to_owned(),
            "AuthMethod" | "HeaderDigest" | "DataDigest" => "None".to_owned(),
            // The results of Or and And keys: whatever is offered.
            "InitialR2T"
            | "ImmediateData"
            | "DefaultTime2Wait"
            | "DataPDUInOrder"
            | "DataSequenceInOrder" => value.to_owned(),
            _ => "NotUnderstood".to_owned(),
        };
        text::push(&mut answers, key, &answer);
    }
    if declared && request.current_stage == LoginStage::Security {
        text::push(&mut answers, "TargetPortalGroupTag", "1");
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_answered_with_what_is_fastest() {
        let mut keys = Vec::new();
        for (key, value) in [
            ("InitiatorName", "iqn.x"),
            ("HeaderDigest", "CRC32C,None"),
            ("MaxRecvDataSegmentLength", "300000"),
            ("MaxBurstLength", "262144"),
            ("FirstBurstLength", "9999999"),
            ("MaxConnections", "4"),
            ("InitialR2T", "No"),
            ("X-com.example", "1"),
        ] {
            text::push(&mut keys, key, value);
        }
        let mut agreed = Agreed::default();
        let answers = answer(&LoginRequest::default(), &keys, &mut agreed).unwrap();
        assert_eq!(
            text::pairs(&answers).unwrap(),
            [
                ("HeaderDigest", "None"),
                ("MaxRecvDataSegmentLength", "262144"),
                ("MaxBurstLength", "262144"),
                ("FirstBurstLength", "1048576"),
                ("MaxConnections", "4"),
                ("InitialR2T", "No"),
                ("X-com.example", "NotUnderstood"),
                ("TargetPortalGroupTag", "1"),
            ]
        );
        assert_eq!(agreed, Agreed { segment_max_bytes: 262_144, max_burst_bytes: 262_144 });
    }
}
