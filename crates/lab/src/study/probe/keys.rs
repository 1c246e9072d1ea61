//! What a session is to agree on: by a study, and by what a user has set in the place of that.

use lunette_initiator::{DigestWish, Wishes};

use crate::study::setting::{self, Key, Setting};

/// What a session is to agree on, where that is not up to both sides' defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Whatever is best.
    #[default]
    Defaults,
    /// Each write waits for an R2T: InitialR2T=Yes, ImmediateData=No.
    Solicited,
    /// A write's data goes with it: FirstBurstLength is at least this request.
    Unsolicited { request_bytes: u32 },
    /// InitialR2T=Yes, ImmediateData=Yes, and lengths as Fujita and Ogawara had them.
    Fujita,
}

impl Keys {
    /// Has a session wish for them, but for those that are set.
    pub(crate) fn wish(self, set: &[Setting], wishes: &mut Wishes) {
        match self {
            Self::Defaults => {}
            Self::Solicited => (wishes.initial_r2t, wishes.immediate_data) = (true, false),
            Self::Unsolicited { request_bytes } => {
                wishes.first_burst_length = wishes.first_burst_length.max(request_bytes);
            }
            Self::Fujita => {
                (wishes.initial_r2t, wishes.immediate_data) = (true, true);
                wishes.max_recv_data_segment_length = 128 << 10;
                wishes.max_burst_length = 256 << 10;
                wishes.first_burst_length = 64 << 10;
                wishes.max_outstanding_r2t = 1;
            }
        }
        setting::wish(set, wishes);
    }

    /// What stands behind a disk in a URL, so that the session is to have them: all that a session does not wish for by itself.
    pub(crate) fn query(self, set: &[Setting]) -> String {
        let (mut wishes, own) = (Wishes::default(), Wishes::default());
        self.wish(set, &mut wishes);
        let yes_or_no = |yes| if yes { "yes" } else { "no" }.to_owned();
        let digest = |wish| match wish {
            DigestWish::Refused => "none",
            DigestWish::Accepted => "none,crc32c",
            DigestWish::Preferred => "crc32c,none",
            DigestWish::Required => "crc32c",
        };
        let mut pairs = Vec::new();
        let mut add = |differs: bool, key: &str, value: String| {
            if differs {
                pairs.push(format!("{key}={value}"));
            }
        };
        let (header, data) = (wishes.header_digest, wishes.data_digest);
        add(header != own.header_digest, "header_digest", digest(header).to_owned());
        add(data != own.data_digest, "data_digest", digest(data).to_owned());
        add(wishes.initial_r2t != own.initial_r2t, "initial_r2t", yes_or_no(wishes.initial_r2t));
        add(wishes.immediate_data != own.immediate_data, "immediate_data", yes_or_no(wishes.immediate_data));
        for (key, length, own) in [
            ("first_burst_length", wishes.first_burst_length, own.first_burst_length),
            ("max_burst_length", wishes.max_burst_length, own.max_burst_length),
            (
                "max_recv_data_segment_length",
                wishes.max_recv_data_segment_length,
                own.max_recv_data_segment_length,
            ),
            ("max_outstanding_r2t", wishes.max_outstanding_r2t.into(), own.max_outstanding_r2t.into()),
        ] {
            add(length != own, key, length.to_string());
        }
        let connections = setting::find(set, Key::MaxConnections);
        add(connections.is_some(), "connections", connections.unwrap_or(1).to_string());
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }

    /// What the target's configuration says of them.
    pub(crate) const fn limits(self) -> &'static str {
        match self {
            Self::Fujita => "\n[limits]\nmax_recv_data_segment_length_bytes = \"128K\"\n",
            Self::Defaults | Self::Solicited | Self::Unsolicited { .. } => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_initiator::TargetUrl;

    use super::*;

    fn read(text: &str) -> Vec<Setting> {
        text.split_whitespace().map(|one| one.parse().expect("a setting")).collect()
    }

    #[test]
    fn a_url_asks_for_the_same_keys() {
        let all =
            [Keys::Defaults, Keys::Solicited, Keys::Unsolicited { request_bytes: 2 << 20 }, Keys::Fujita];
        for keys in all {
            for set in [
                "",
                "mtu=9000 write=back",
                "HeaderDigest=CRC32C DataDigest=None",
                "InitialR2T=No ImmediateData=No MaxOutstandingR2T=16 MaxConnections=4",
                "FirstBurstLength=512",
                // The other one makes room, whatever the study has.
                "FirstBurstLength=16777215",
                "MaxBurstLength=4096 MaxRecvDataSegmentLength=8192",
                "FirstBurstLength=65536 MaxBurstLength=262144",
            ] {
                let set = read(set);
                let text = format!("iscsi://127.0.0.1/iqn.2026-11.io.lunette:lab/0{}", keys.query(&set));
                let url: TargetUrl = text.parse().expect("a URL");
                let mut wishes = Wishes::default();
                keys.wish(&set, &mut wishes);
                let options = url.options();
                assert_eq!(options.wishes, wishes, "{keys:?} {text}");
                let connections = setting::find(&set, Key::MaxConnections).unwrap_or(1);
                assert_eq!(u32::from(options.connections), connections, "{text}");
            }
        }
        assert_eq!(Keys::Defaults.query(&read("write=back")), "", "nothing is asked for without need");
    }

    #[test]
    fn what_is_set_is_wished_for_in_the_place_of_what_a_study_has() {
        let mut wishes = Wishes::default();
        Keys::Fujita.wish(&read("InitialR2T=No FirstBurstLength=524288 DataDigest=CRC32C"), &mut wishes);
        let lengths = (wishes.first_burst_length, wishes.max_burst_length);
        assert_eq!(
            (wishes.initial_r2t, wishes.immediate_data, lengths),
            (false, true, (512 << 10, 512 << 10))
        );
        assert_eq!((wishes.data_digest, wishes.max_outstanding_r2t), (DigestWish::Required, 1));
    }
}
