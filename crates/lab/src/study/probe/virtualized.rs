//! A workload of the kernel's initiator in a virtual machine, by fio.

use std::time::Duration;

use lunette_workload::Profile;

use super::model::{self, Driven};
use super::{Duty, Metric, Place, Run, both_units};
use crate::LabError;
use crate::study::guest;
use crate::study::site::RANGE_BYTES;

/// From this share of its rate on, a link is full.
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
    let guest = site.guest(link.mtu)?;
    // Whole seconds, which is what fio knows.
    let seconds = |time: Duration| time.as_secs_f64().ceil().max(1.0) as u64;
    let (warm_up_s, time_s) = (seconds(duty.warm_up), seconds(duty.time));
    let text = guest.fio(&words(&probe.profile, (warm_up_s, time_s), duty.seed), duty.warm_up + duty.time)?;
    let (operations, bytes) = rates(&text)
        .ok_or_else(|| LabError::NotReady(format!("fio in the virtual machine: {}", last(&text))))?;
    let driven = Driven { link, congestion_control: &site.congestion_control()? };
    let path = model::path(driven, &link.down, link.round_trip(), None);
    let is_full = path.payload_bytes_per_s().is_some_and(|payload| bytes >= payload * FULL);
    let limit = match (is_full, guest::is_accelerated()) {
        (true, _) => "link-rate",
        // Each of its instructions is some of this machine's.
        (false, false) => "machine",
        (false, true) => "initiator",
    };
    let (measured, further) = both_units(probe.metric, operations, bytes);
    Ok(Run { limit: Some(limit), further, ..Run::of(measured, None) })
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

/// Operations and bytes per second, reads and writes together: fields of fio's terse output of version 3, which begins with that number.
fn rates(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let field = |number: usize| fields.get(number - 1)?.parse::<f64>().ok();
    // The error of the job.
    if field(5)? > 0.0 {
        return None;
    }
    let (read_kib, read, write_kib, write) = (field(7)?, field(8)?, field(48)?, field(49)?);
    Some((read + write, (read_kib + write_kib) * 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn rates_are_those_of_reads_and_writes() {
        let mut fields = vec!["0"; 130];
        (fields[0], fields[1], fields[6], fields[7]) = ("3", "fio-3.33", "1024", "256");
        (fields[47], fields[48]) = ("512", "128");
        let line = fields.join(";");
        assert_eq!(rates(&format!("fio: a warning\n{line}\n")), Some((384.0, 1536.0 * 1024.0)));
        fields[4] = "5";
        assert_eq!(rates(&fields.join(";")), None);
        for text in ["", "3;", "fio: no such file"] {
            assert_eq!(rates(text), None);
        }
    }
}
