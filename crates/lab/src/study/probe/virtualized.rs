//! A workload of the kernel's initiator in a virtual machine, by fio.

use std::time::Duration;

use lunette_workload::{Percent, Profile, Range};

use super::model::{self, Driven};
use super::{Duty, Metric, Place, Run, both_units};
use crate::LabError;
use crate::study::guest;
use crate::study::site::RANGE_BYTES;

/// From this share of its rate on, a direction of a link is full.
const FULL: f64 = 0.9;

/// Which profile is carried out there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VirtualProbe {
    pub(crate) profile: Profile,
    pub(crate) metric: Metric,
}

/// Runs it; the machine boots when it is first needed.
pub(super) fn run(place: Place<'_>, probe: &VirtualProbe, duty: Duty) -> Result<Run, LabError> {
    let Some((site, link)) = place.over else {
        return Err(LabError::Plan("without a network there is no initiator".to_owned()));
    };
    if probe.profile.read > Percent::ZERO {
        site.write_once(&[Range { offset_bytes: 0, length_bytes: RANGE_BYTES }], duty.seed)?;
    }
    let guest = site.guest(link.mtu)?;
    // Whole seconds, which is what fio knows.
    let seconds = |time: Duration| time.as_secs_f64().ceil().max(1.0) as u64;
    let (warm_up_s, time_s) = (seconds(duty.warm_up), seconds(duty.time));
    let text = guest.fio(&words(&probe.profile, (warm_up_s, time_s), duty.seed), duty.warm_up + duty.time)?;
    let rates = rates(&text)
        .ok_or_else(|| LabError::NotReady(format!("fio in the virtual machine: {}", last(&text))))?;
    let driven = Driven { link, congestion_control: &site.congestion_control()? };
    let limit = match (is_full(driven, &rates), guest::is_accelerated()) {
        (true, _) => "link-rate",
        // Each of its instructions is some of this machine's.
        (false, false) => "machine",
        (false, true) => "initiator",
    };
    let (measured, further) =
        both_units(probe.metric, rates.operations, rates.read_bytes + rates.written_bytes);
    Ok(Run { limit: Some(limit), further, ..Run::of(measured, None) })
}

/// Whether a direction of the link carries nearly all that it can: reads come down, writes go up, each on a line of its own.
fn is_full(driven: Driven<'_>, rates: &Rates) -> bool {
    let link = driven.link;
    [(&link.down, rates.read_bytes), (&link.up, rates.written_bytes)].into_iter().any(|(shape, bytes)| {
        let path = model::path(driven, shape, link.round_trip(), None);
        path.payload_bytes_per_s().is_some_and(|payload| bytes >= payload * FULL)
    })
}

fn words(profile: &Profile, (warm_up_s, time_s): (u64, u64), seed: u64) -> String {
    let mix = match (profile.read.get(), profile.random.get()) {
        (100, 0) => "--rw=read".to_owned(),
        (0, 0) => "--rw=write".to_owned(),
        (100, 100) => "--rw=randread".to_owned(),
        (0, 100) => "--rw=randwrite".to_owned(),
        (read, random) => format!("--rw=randrw --rwmixread={read} --percentage_random={random}"),
    };
    format!(
        "--name=profile --ioengine=libaio --direct=1 --bs={} --iodepth={} --size={RANGE_BYTES} --time_based --ramp_time={warm_up_s} \
         --runtime={time_s} --randseed={seed} --norandommap --output-format=terse --terse-version=3 {mix}",
        profile.size_bytes, profile.depth
    )
}

fn last(text: &str) -> &str {
    text.trim().lines().last().unwrap_or("it says nothing")
}

/// What was carried out per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rates {
    /// Reads and writes together.
    operations: f64,
    read_bytes: f64,
    written_bytes: f64,
}

/// Reads fields of fio's terse output of version 3, which begins with that number.
fn rates(text: &str) -> Option<Rates> {
    let line = text.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let field = |number: usize| fields.get(number - 1)?.parse::<f64>().ok();
    // The error of the job.
    if field(5)? > 0.0 {
        return None;
    }
    let (read_kib, read, write_kib, write) = (field(7)?, field(8)?, field(48)?, field(49)?);
    Some(Rates { operations: read + write, read_bytes: read_kib * 1024.0, written_bytes: write_kib * 1024.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_link::Link;
    use lunette_workload::profiles;

    #[test]
    fn fio_is_told_what_a_profile_is() {
        let of = |name: &str| {
            let profile = profiles().iter().find(|profile| profile.name == name).expect("a profile");
            words(profile, (1, 2), 7)
        };
        assert!(of("max-iops").ends_with("--rw=read") && of("max-iops").contains("--bs=512 --iodepth=32"));
        assert!(of("max-write-throughput").ends_with("--rw=randwrite"));
        assert!(of("web-server").ends_with("--rw=randrw --rwmixread=95 --percentage_random=75"));
    }

    #[test]
    fn a_link_is_full_where_a_direction_is() {
        let both: Link = "gige".parse().expect("a link");
        let mut unlimited_up = both.clone();
        unlimited_up.up.rate = None;
        let is_full = |link, read_share: f64, written_share: f64| {
            let driven = Driven { link, congestion_control: "cubic" };
            let path = model::path(driven, &both.down, both.round_trip(), None);
            let payload = path.payload_bytes_per_s().expect("a rate");
            let (read_bytes, written_bytes) = (payload * read_share, payload * written_share);
            is_full(driven, &Rates { operations: 1.0, read_bytes, written_bytes })
        };
        // 66 or 34 of 100 operations read: all of them together have what one direction can carry.
        assert!(!is_full(&both, 0.62, 0.32) && !is_full(&both, 0.32, 0.62) && !is_full(&both, 0.88, 0.88));
        assert!(is_full(&both, 0.92, 0.0) && is_full(&both, 0.0, 0.92) && is_full(&both, 0.92, 0.92));
        assert!(is_full(&unlimited_up, 0.92, 0.5) && !is_full(&unlimited_up, 0.5, 0.92));
    }

    #[test]
    fn rates_are_those_of_reads_and_writes() {
        let mut fields = vec!["0"; 130];
        (fields[0], fields[1], fields[6], fields[7]) = ("3", "fio-3.33", "1024", "256");
        (fields[47], fields[48]) = ("512", "128");
        let line = fields.join(";");
        let (read_bytes, written_bytes) = (f64::from(1 << 20), f64::from(1 << 19));
        let expected = Rates { operations: 384.0, read_bytes, written_bytes };
        assert_eq!(rates(&format!("fio: a warning\n{line}\n")), Some(expected));
        fields[4] = "5";
        assert_eq!(rates(&fields.join(";")), None);
        for text in ["", "3;", "fio: no such file"] {
            assert_eq!(rates(text), None);
        }
    }
}
