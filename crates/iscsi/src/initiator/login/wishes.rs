//! What an initiator offers in the operational stage (RFC 7143, chapter 13): the user's wishes, their defaults with the
//! reason of each, and the keys that say them.
//!
//! How an offer and its answer become a result is `negotiation`'s affair.

use crate::Quoted;
use crate::parameters::keys::{Key, Row, Rule, Use, row};
use crate::parameters::value::boolean_text;
use crate::parameters::{SessionType, TaskReporting};

use super::LoginError;

/// The most keys of one's own that a login may carry.
pub const ADDITIONAL_KEYS_MAX: usize = 32;
/// The longest value of such a key, in bytes (RFC 7143, 6.1: what a text over several PDUs may have at least).
pub const ADDITIONAL_VALUE_LENGTH_MAX: usize = 8192;

/// What an initiator wants about one digest (13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestWish {
    /// None alone is offered.
    Refused,
    /// `None,CRC32C`: a target that insists on digests gets them. The default: TCP has a checksum of its own, and
    /// a digest costs both sides a pass over the data.
    #[default]
    Accepted,
    /// `CRC32C,None`: digests with each target that has them.
    Preferred,
    /// CRC32C alone is offered; a target without it is an error.
    Required,
}

impl DigestWish {
    pub(super) const fn offer(self) -> &'static str {
        match self {
            Self::Refused => "None",
            Self::Accepted => "None,CRC32C",
            Self::Preferred => "CRC32C,None",
            Self::Required => "CRC32C",
        }
    }
}

/// What is offered. Lengths are in bytes, times in seconds. The target has the last word on nearly all of it, so most
/// defaults are what this side can do at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// The longest data segment that is received, 512 to 2^24 - 1. Default 256 KiB: few headers for much data, and what
    /// the Linux and libiscsi initiators take, so that every target has been tested with it.
    pub max_recv_data_segment_length: u32,
    /// The longest sequence, 512 to 2^24 - 1. Default: the largest multiple of 4096 that the key can say, so that
    /// a large write needs as few R2Ts, and round trips, as its target allows.
    pub max_burst_length: u32,
    /// The most unsolicited data of one command, 512 to 2^24 - 1. Default 1 MiB: a usual large write goes without a
    /// round trip; how much a target can take unasked, its own smaller number says.
    pub first_burst_length: u32,
    /// True makes every burst wait for an R2T. Default false, for the same reason.
    pub initial_r2t: bool,
    /// False keeps data out of the command's own PDU. Default true: the cheapest way for a small write.
    pub immediate_data: bool,
    /// R2Ts that may be outstanding for one task, 1 to 65535. Default 16: several bursts under way hide the round
    /// trip of a long link, where the usual 1 lets it stand still. At ErrorRecoveryLevel 1 and 2 with sequences in
    /// order, 1 is offered (13.19).
    pub max_outstanding_r2t: u16,
    /// Connections of the session, 1 to 65535. Default 1; more only help who uses them.
    pub max_connections: u16,
    /// 0 to 2. Default 0, which is all that most targets have.
    pub error_recovery_level: u8,
    /// The least wait before a reconnection, 0 to 3600. Default 0: this side need not wait, the larger offer wins.
    pub default_time2wait_s: u16,
    /// How long tasks outlive their connection, 0 to 3600. Default 20, the RFC's: enough to connect anew at level 2.
    pub default_time2retain_s: u16,
    /// True: the PDUs of a sequence come in order. Default true: nobody gains by disorder on one TCP connection.
    pub data_pdu_in_order: bool,
    /// True: the sequences of a task come in order. Default true.
    pub data_sequence_in_order: bool,
    /// How the end of aborted tasks is to be reported, the best first (13.23); what everybody must have is offered behind it.
    /// Default empty: the key is not offered,
    /// since targets older than RFC 7143 do not know it.
    pub task_reporting: Vec<TaskReporting>,
    /// iSCSIProtocolLevel, 0 to 31 (13.24). Default 1: RFC 7143; the key is not offered then.
    pub protocol_level: u8,
    /// The digest over headers.
    pub header_digest: DigestWish,
    /// The digest over data.
    pub data_digest: DigestWish,
    /// Keys of one's own, `X-` and a reversed domain name (6.1), for a target that knows them.
    pub additional: Vec<(String, String)>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            max_recv_data_segment_length: 256 * 1024,
            max_burst_length: 4095 * 4096,
            first_burst_length: 1024 * 1024,
            initial_r2t: false,
            immediate_data: true,
            max_outstanding_r2t: 16,
            max_connections: 1,
            error_recovery_level: 0,
            default_time2wait_s: 0,
            default_time2retain_s: 20,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            task_reporting: Vec::new(),
            protocol_level: 1,
            header_digest: DigestWish::default(),
            data_digest: DigestWish::default(),
            additional: Vec::new(),
        }
    }
}

/// One key to offer, with its value.
pub(super) type Offer = (&'static Row, String);

/// The keys in the order in which they are sent.
const ORDER: [Key; 16] = [
    Key::HeaderDigest,
    Key::DataDigest,
    Key::MaxRecvDataSegmentLength,
    Key::ErrorRecoveryLevel,
    Key::MaxConnections,
    Key::InitialR2T,
    Key::ImmediateData,
    Key::MaxBurstLength,
    Key::FirstBurstLength,
    Key::MaxOutstandingR2T,
    Key::DefaultTime2Wait,
    Key::DefaultTime2Retain,
    Key::DataPduInOrder,
    Key::DataSequenceInOrder,
    Key::TaskReporting,
    Key::ProtocolLevel,
];

impl Wishes {
    /// Holds the wishes against the ranges of chapter 13.
    ///
    /// # Errors
    /// [`LoginError::Settings`] names the first value that cannot be offered.
    pub fn check(&self) -> Result<(), LoginError> {
        let fault = |text: String| Err(LoginError::Settings(text));
        for key in ORDER {
            let row = row(key);
            let (Rule::Minimum { range, .. }
            | Rule::Maximum { range, .. }
            | Rule::DeclaredNumber { range, .. }) = row.rule
            else {
                continue;
            };
            let value = self.number(key);
            if !(range.0..=range.1).contains(&value) {
                return fault(format!(
                    "{}={value} is not in the range from {} to {}",
                    row.name, range.0, range.1
                ));
            }
        }
        if self.first_burst_length > self.max_burst_length {
            return fault(format!(
                "FirstBurstLength={} is larger than MaxBurstLength={} (13.14)",
                self.first_burst_length, self.max_burst_length
            ));
        }
        if self.additional.len() > ADDITIONAL_KEYS_MAX {
            return fault(format!("more than {ADDITIONAL_KEYS_MAX} additional keys"));
        }
        for (name, value) in &self.additional {
            let mut pair = Vec::new();
            let is_writable = !name.contains(['=', '\0']) && !value.contains('\0');
            if is_writable {
                lunette_wire::text::push(&mut pair, name, value);
            }
            let is_good = is_writable
                && name.starts_with("X-")
                && value.len() <= ADDITIONAL_VALUE_LENGTH_MAX
                && lunette_wire::text::pairs(&pair).is_ok();
            let is_again = self.additional.iter().filter(|(other, _)| other == name).count() > 1;
            if !is_good || is_again {
                return fault(format!(
                    "the additional key {} is not X-reversed.domain.name once, with a printable value of at most \
                     {ADDITIONAL_VALUE_LENGTH_MAX} bytes",
                    Quoted(name)
                ));
            }
        }
        Ok(())
    }

    /// The keys of a login's operational stage: for a further connection only what concerns the connection, for discovery
    /// only what is relevant there.
    pub(super) fn offers(&self, session_type: SessionType, is_leading: bool) -> Vec<Offer> {
        ORDER
            .into_iter()
            .map(row)
            .filter(|row| is_leading || row.when != Use::LeadingLogin)
            .filter(|row| session_type == SessionType::Normal || !row.irrelevant_in_discovery)
            .filter_map(|row| Some((row, self.value(row, session_type)?)))
            .collect()
    }

    /// The value to offer; none for a key that is left out.
    fn value(&self, row: &Row, session_type: SessionType) -> Option<String> {
        Some(match row.key {
            Key::HeaderDigest => self.header_digest.offer().to_owned(),
            Key::DataDigest => self.data_digest.offer().to_owned(),
            Key::InitialR2T => boolean_text(self.initial_r2t).to_owned(),
            Key::ImmediateData => boolean_text(self.immediate_data).to_owned(),
            Key::DataPduInOrder => boolean_text(self.data_pdu_in_order).to_owned(),
            Key::DataSequenceInOrder => boolean_text(self.data_sequence_in_order).to_owned(),
            Key::TaskReporting if self.task_reporting.is_empty() => return None,
            Key::TaskReporting => {
                // Whoever offers the key offers these two at least (13.23).
                let wanted = self.task_reporting.iter().copied();
                let all = wanted.chain([TaskReporting::ResponseFence, TaskReporting::Rfc3720]);
                let mut names: Vec<&str> = Vec::new();
                for name in all.map(task_reporting_name) {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                names.join(",")
            }
            Key::ProtocolLevel if self.protocol_level == 1 => return None,
            // A discovery session has no recovery (13.21).
            Key::ErrorRecoveryLevel if session_type == SessionType::Discovery => 0.to_string(),
            other => self.number(other).to_string(),
        })
    }

    /// The wish for a key that has a number.
    fn number(&self, key: Key) -> u32 {
        match key {
            Key::MaxRecvDataSegmentLength => self.max_recv_data_segment_length,
            Key::MaxBurstLength => self.max_burst_length,
            Key::FirstBurstLength => self.first_burst_length,
            Key::MaxOutstandingR2T if self.error_recovery_level > 0 && self.data_sequence_in_order => 1,
            Key::MaxOutstandingR2T => self.max_outstanding_r2t.into(),
            Key::MaxConnections => self.max_connections.into(),
            Key::ErrorRecoveryLevel => self.error_recovery_level.into(),
            Key::DefaultTime2Wait => self.default_time2wait_s.into(),
            Key::DefaultTime2Retain => self.default_time2retain_s.into(),
            _ => self.protocol_level.into(),
        }
    }
}

/// How a way to report aborted tasks is written (13.23).
const fn task_reporting_name(way: TaskReporting) -> &'static str {
    match way {
        TaskReporting::Rfc3720 => "RFC3720",
        TaskReporting::ResponseFence => "ResponseFence",
        TaskReporting::FastAbort => "FastAbort",
    }
}

/// The way to report aborted tasks with this name.
pub(super) fn task_reporting_of(name: &str) -> Option<TaskReporting> {
    [TaskReporting::Rfc3720, TaskReporting::ResponseFence, TaskReporting::FastAbort]
        .into_iter()
        .find(|&way| task_reporting_name(way) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(wishes: &Wishes, name: &str) -> Option<String> {
        let offers = wishes.offers(SessionType::Normal, true);
        offers.into_iter().find(|(row, _)| row.name == name).map(|(_, value)| value)
    }

    #[test]
    fn the_defaults_can_be_offered() {
        Wishes::default().check().unwrap();
        assert_eq!(value_of(&Wishes::default(), "MaxBurstLength").as_deref(), Some("16773120"));
        assert_eq!(value_of(&Wishes::default(), "TaskReporting"), None);
        assert_eq!(value_of(&Wishes::default(), "iSCSIProtocolLevel"), None);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let of = |wishes: Wishes| wishes.check().unwrap_err().to_string();
        let defaults = Wishes::default;
        assert!(of(Wishes { max_burst_length: 1 << 24, ..defaults() }).contains("MaxBurstLength=16777216"));
        assert!(of(Wishes { max_recv_data_segment_length: 511, ..defaults() }).contains("512"));
        assert!(of(Wishes { max_outstanding_r2t: 0, ..defaults() }).contains("MaxOutstandingR2T=0"));
        assert!(of(Wishes { error_recovery_level: 3, ..defaults() }).contains("ErrorRecoveryLevel=3"));
        assert!(of(Wishes { default_time2wait_s: 3601, ..defaults() }).contains("3600"));
        assert!(of(Wishes { max_burst_length: 512, ..defaults() }).contains("larger than MaxBurstLength"));
        for key in ["com.example", "X-a=b", "X-\0", "X- a"] {
            let additional = vec![(key.to_owned(), "1".to_owned())];
            assert!(of(Wishes { additional, ..defaults() }).contains("additional key"), "{key:?}");
        }
        let twice = vec![("X-a.b".to_owned(), "1".to_owned()); 2];
        assert!(of(Wishes { additional: twice, ..defaults() }).contains("once"));
    }

    #[test]
    fn recovery_with_sequences_in_order_has_one_r2t() {
        let ordered = Wishes { error_recovery_level: 1, ..Wishes::default() };
        assert_eq!(value_of(&ordered, "MaxOutstandingR2T").as_deref(), Some("1"));
        let free = Wishes { data_sequence_in_order: false, ..ordered };
        assert_eq!(value_of(&free, "MaxOutstandingR2T").as_deref(), Some("16"));
    }

    #[test]
    fn what_is_offered_for_task_reporting_has_what_everybody_must_have() {
        for (wish, offer) in [
            (TaskReporting::FastAbort, "FastAbort,ResponseFence,RFC3720"),
            (TaskReporting::Rfc3720, "RFC3720,ResponseFence"),
        ] {
            let wishes = Wishes { task_reporting: vec![wish], ..Wishes::default() };
            assert_eq!(value_of(&wishes, "TaskReporting").as_deref(), Some(offer));
        }
    }

    #[test]
    fn further_connections_and_discovery_offer_what_concerns_them() {
        let names = |session_type, is_leading| {
            let offers = Wishes::default().offers(session_type, is_leading);
            offers.into_iter().map(|(row, _)| row.name).collect::<Vec<_>>()
        };
        assert_eq!(
            names(SessionType::Normal, false),
            ["HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength"]
        );
        let discovery = names(SessionType::Discovery, true);
        assert!(discovery.contains(&"ErrorRecoveryLevel") && !discovery.contains(&"InitialR2T"));
        let wishes = Wishes { error_recovery_level: 2, ..Wishes::default() };
        let offers = wishes.offers(SessionType::Discovery, true);
        let level =
            offers.iter().find(|(row, _)| row.name == "ErrorRecoveryLevel").map(|(_, value)| value.as_str());
        assert_eq!(level, Some("0"), "whatever is wanted of other sessions");
    }
}
