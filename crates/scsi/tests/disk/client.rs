//! Both sides in one test: what the device server answers, the application client decodes to what the unit's configuration
//! says; and whatever a target answers, the decoders end, with a result or an error.

use std::collections::BTreeSet;

use lunette_cases::cases;
use lunette_scsi::client::capacity::{self, Capacity};
use lunette_scsi::client::inquiry::{self, PortGroupSupport};
use lunette_scsi::client::medium::{self, BlockRange, Caching, Comparison, SameBlock};
use lunette_scsi::client::mode::{self, ModeForm, PageControl};
use lunette_scsi::client::reservations::{self, RegisterOptions, ReservationType, ReserveOut};
use lunette_scsi::client::vpd::block::{ProvisioningType, Rotation};
use lunette_scsi::client::vpd::identification::{self, Designator};
use lunette_scsi::client::vpd::{self, block};
use lunette_scsi::client::{
    Command, Next, Probe, Query, Reply as ProbeReply, Sense, Transfer, UnitFacts, lba_status, log,
    port_groups, unit,
};
use lunette_scsi::{AdditionalSense, LogicalUnitConfig, Lun, Provisioning, SenseKey, Status};
use proptest::prelude::*;

use crate::host::{BLOCK, Host, Reply, config, device};

/// Sends a command, with its own parameter list or with `data_out`.
fn send(host: &mut Host, command: &Command, data_out: &[u8]) -> Reply {
    let list = match command.transfer() {
        Transfer::List(list) => list.clone(),
        _ => data_out.to_vec(),
    };
    assert_eq!(list.len(), command.data_out_bytes() as usize, "{}", command.name());
    let reply = host.run(command.cdb(), &list);
    assert!(reply.data.len() <= command.data_in_bytes() as usize, "{}", command.name());
    reply
}

fn ask<T>(host: &mut Host, query: &Query<T>) -> T {
    let reply = send(host, query.command(), &[]);
    assert_eq!(reply.status, Status::Good, "{}: {:02x?}", query.command().name(), reply.sense);
    query.decode(&reply.data).unwrap_or_else(|error| panic!("{error}"))
}

fn good(host: &mut Host, command: &Command, data_out: &[u8]) -> Vec<u8> {
    let reply = send(host, command, data_out);
    assert_eq!(reply.status, Status::Good, "{}: {:?}", command.name(), Sense::decode(&reply.sense));
    reply.data
}

fn sense(host: &mut Host, command: &Command, data_out: &[u8]) -> Sense {
    Sense::decode(&send(host, command, data_out).sense).expect("sense data")
}

/// Asks what a probe wants to know. Of the commands under way the one that `pick` takes of so many is carried out.
fn probe_by(host: &mut Host, mut pick: impl FnMut(usize) -> usize) -> UnitFacts {
    let mut probe = Probe::new().with_write_same().with_port_groups();
    let mut under_way = Vec::new();
    loop {
        match probe.proceed() {
            Next::Send(ticket, command) => under_way.push((ticket, command)),
            Next::Wait => {
                let (ticket, command) = under_way.remove(pick(under_way.len()));
                let reply = send(host, &command, &[]);
                let reply = ProbeReply { status: Some(reply.status), sense: &reply.sense, data: &reply.data };
                probe.answered(ticket, reply);
            }
            other => {
                assert_eq!(other, Next::Done);
                return probe.into_facts().unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}

fn probe(host: &mut Host) -> UnitFacts {
    probe_by(host, |_| 0)
}

fn configs() -> impl Strategy<Value = LogicalUnitConfig> {
    let flags = any::<[bool; 6]>();
    let names = ("[!-~]{1,8}", "[!-~]{1,16}", "[!-~]{0,4}", "[!-~]{1,128}");
    let sizes = (prop::sample::select(vec![512u32, 4096]), 1..=1u64 << 50, 0..=15u8, 1..=1u32 << 20);
    (flags, names, any::<(u64, [u8; 16])>(), sizes).prop_map(
        |([read_only, write_cache, unmap, write_zeroes, removable, solid_state], names, ids, sizes)| {
            let mut config = config();
            let (block_length_bytes, blocks, exponent, max_transfer_blocks) = sizes;
            config.identity.naa = ids.0 >> 4 | 3 << 60;
            config.identity.uuid = ids.1;
            (config.identity.vendor, config.identity.product) = (names.0, names.1);
            (config.identity.revision, config.identity.serial) = (names.2, names.3);
            let max_transfer_bytes = (u64::from(max_transfer_blocks) * u64::from(block_length_bytes))
                .min(u64::from(u32::MAX)) as u32;
            LogicalUnitConfig {
                block_length_bytes,
                blocks,
                physical_block_exponent: exponent,
                read_only,
                write_cache,
                provisioning: Provisioning {
                    unmap,
                    granularity_blocks: 8,
                    write_zeroes,
                    anchors: unmap && write_zeroes,
                },
                max_transfer_bytes,
                optimal_transfer_bytes: block_length_bytes,
                removable,
                solid_state,
                // No longer than a transfer.
                atomic_writes: config
                    .atomic_writes
                    .filter(|atomic| u64::from(atomic.blocks_max) <= u64::from(max_transfer_blocks)),
                ..config
            }
        },
    )
}

fn matches_config(facts: &UnitFacts, config: &LogicalUnitConfig) {
    let identity = &config.identity;
    assert!(facts.inquiry.is_disk() && facts.inquiry.command_queue);
    assert_eq!(facts.inquiry.port_groups, PortGroupSupport::Both);
    assert_eq!(
        (&facts.inquiry.vendor, &facts.inquiry.product, &facts.inquiry.revision, &facts.serial),
        (&identity.vendor, &identity.product, &identity.revision, &identity.serial)
    );
    assert_eq!(facts.inquiry.removable, config.removable);
    let named = |name: &Designator| facts.designations.iter().find(|told| told.designator == *name);
    let naa = named(&Designator::Naa(identity.naa.to_be_bytes().to_vec())).expect("the NAA identifier");
    assert!(!naa.is_world_wide(), "it is assigned locally");
    assert!(named(&Designator::Uuid(identity.uuid)).expect("the UUID").is_world_wide());
    let told = facts.designations.iter().all(|name| !matches!(name.designator, Designator::Unknown { .. }));
    assert!(told, "{:?}", facts.designations);
    let capacity = facts.capacity.expect("a capacity");
    assert_eq!((capacity.blocks, capacity.block_length_bytes), (config.blocks, config.block_length_bytes));
    assert_eq!(capacity.details.physical_block_exponent, config.physical_block_exponent);
    let unmap = config.provisioning.unmap;
    assert_eq!((capacity.details.provisioning_managed, capacity.details.reads_zeros), (unmap, unmap));
    assert_eq!((facts.provisioning.unmap, facts.provisioning.write_same_16), (unmap, unmap));
    assert_eq!(facts.provisioning.anchors, config.provisioning.anchors);
    let kind = if unmap { ProvisioningType::Thin } else { ProvisioningType::Full };
    assert_eq!(facts.provisioning.kind, kind);
    assert_eq!(facts.limits.transfer_blocks_max, config.max_transfer_bytes / config.block_length_bytes);
    let optimal = config.optimal_transfer_bytes / config.block_length_bytes;
    assert_eq!(facts.limits.optimal_transfer_blocks, optimal);
    assert_eq!(facts.limits.unmap_blocks_max > 0, unmap);
    let rotation = if config.solid_state { Rotation::None } else { Rotation::Unknown };
    assert_eq!(facts.characteristics.rotation, rotation);
    assert!(facts.has_write_same);
    assert_eq!(facts.port_groups.len(), 1);
    assert_eq!(facts.is_write_protected(), config.read_only);
    assert_eq!(facts.has_write_cache(), config.write_cache);
    let mode = facts.mode.as_ref().expect("mode parameters");
    assert!(mode.dpo_fua);
    assert_eq!(mode.descriptor_sense(), Some(false));
    let blocks = config.blocks.min(u64::from(u32::MAX));
    assert_eq!(mode.block_descriptor, Some((blocks, config.block_length_bytes)));
}

/// Every query that there is, as one that decodes and forgets.
fn decode_all(data: &[u8], lba: u64, page: u8) {
    fn each<T>(query: Query<T>, data: &[u8]) {
        if let Err(error) = query.decode(data)
            && let Some(longer) = query.longer(&error)
        {
            assert!(longer.command().data_in_bytes() > query.command().data_in_bytes());
        }
    }
    each(inquiry::standard(), data);
    each(vpd::page(page), data);
    each(vpd::supported_pages(), data);
    each(vpd::unit_serial_number(), data);
    each(vpd::extended_inquiry(), data);
    each(identification::device_identification(), data);
    each(identification::scsi_ports(), data);
    each(block::limits(), data);
    each(block::characteristics(), data);
    each(block::provisioning(), data);
    each(capacity::read_capacity_10(), data);
    each(capacity::read_capacity_16(), data);
    each(capacity::report_luns(), data);
    each(lba_status::get_lba_status(lba), data);
    each(log::page(page), data);
    each(log::space(), data);
    each(log::supported_pages(), data);
    for form in [ModeForm::Six, ModeForm::Ten] {
        each(mode::mode_sense(form, mode::ALL, PageControl::Current), data);
    }
    each(reservations::read_keys(), data);
    each(reservations::read_reservation(), data);
    each(reservations::report_capabilities(), data);
    each(reservations::read_full_status(), data);
    each(port_groups::report_target_port_groups(), data);
    each(unit::supported_operation_codes(), data);
    each(unit::is_supported(page, None), data);
    each(unit::task_management(), data);
    each(unit::request_sense(true), data);
    if let Some(sense) = Sense::decode(data) {
        let told = sense.to_string();
        assert!(told.chars().all(|character| character.is_ascii_graphic() || character == ' '), "{told}");
    }
}

proptest! {
    #![proptest_config(cases(512))]
    #[test]
    fn a_probe_finds_out_what_the_configuration_says(
        config in configs(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        resets in 0..4,
    ) {
        let mut host = Host::on(device(config.clone()));
        for _ in 0..resets {
            host.nexus.logical_unit_reset(host.lun);
        }
        let mut picks = picks.iter().cycle();
        let facts = probe_by(&mut host, |count| picks.next().map_or(0, |pick| pick.index(count)));
        matches_config(&facts, &config);
    }

    /// With the headers of the real pages in front, so that decoders get past them.
    #[test]
    fn decoders_end(
        header in prop::sample::select(vec![
            vec![], vec![0, 0x83], vec![0, 0x88], vec![0, 0xb0], vec![0, 0, 0], vec![0x02, 0, 0], vec![0x70], vec![0x72],
        ]),
        data in prop::collection::vec(prop_oneof![3 => 0..30u8, 1 => any::<u8>()], 0..300),
        lba in any::<u64>(),
        page in any::<u8>(),
    ) {
        decode_all(&[header, data].concat(), lba, page);
    }
}

#[test]
fn unit_attentions_do_not_hide_the_answers() {
    let mut host = Host::new(config());
    host.nexus.logical_unit_reset(host.lun);
    let facts = probe(&mut host);
    matches_config(&facts, &config());
    assert_eq!(facts.attentions.len(), 1);
    assert!(facts.attentions[0].is_unit_attention());
}

#[test]
fn a_unit_without_a_medium_is_found_not_ready() {
    let removable = LogicalUnitConfig { removable: true, ..config() };
    let mut host = Host::new(removable);
    good(&mut host, &unit::start_stop_unit(unit::StartStop::Eject, false), &[]);
    let facts = probe(&mut host);
    let sense = facts.not_ready.expect("not ready");
    assert_eq!((sense.key(), sense.code), (Some(SenseKey::NotReady), AdditionalSense::MEDIUM_NOT_PRESENT));
    assert!(!sense.becomes_ready());
}

/// A range of the host's disk.
fn blocks(lba: u64, blocks: u32) -> BlockRange {
    BlockRange { lba, blocks, block_length_bytes: BLOCK as u32 }
}

#[test]
fn blocks_are_written_compared_and_given_back() {
    let mut host = Host::new(config());
    let caching = Caching { force_unit_access: true, ..Caching::default() };
    let range = blocks(16, 8);
    let pattern = vec![0x5a; 8 * BLOCK];
    for form in [medium::CdbForm::Ten, medium::CdbForm::Sixteen] {
        good(&mut host, &medium::write(form, range, caching).unwrap(), &pattern);
        let read = medium::read(form, range, caching).unwrap();
        assert_eq!(good(&mut host, &read, &[]), pattern);
        let same = medium::verify(form, range, Comparison::OneBlock).unwrap();
        good(&mut host, &same, &pattern[..BLOCK]);
        let mut other = pattern.clone();
        other[3 * BLOCK + 7] = 0;
        let verify = medium::verify(form, range, Comparison::Data).unwrap();
        let miscompare = sense(&mut host, &verify, &other);
        assert_eq!(miscompare.key(), Some(SenseKey::Miscompare));
        assert_eq!(miscompare.information, Some(3 * BLOCK as u64 + 7));
        good(&mut host, &medium::write_and_verify(form, range, true).unwrap(), &pattern);
        good(&mut host, &medium::synchronize_cache(form, blocks(0, 0)).unwrap(), &[]);
        good(&mut host, &medium::pre_fetch(form, range, true).unwrap(), &[]);
        let zero = medium::write_same(form, blocks(18, 2), SameBlock::DataOrUnmap).unwrap();
        good(&mut host, &zero, &[0; BLOCK]);
    }
    good(&mut host, &medium::unmap(&[(20, 2)], false).unwrap(), &[]);
    let both = [vec![0x5a; BLOCK], vec![0x11; BLOCK]].concat();
    good(&mut host, &medium::compare_and_write(blocks(16, 1), caching).unwrap(), &both);

    let extents = ask(&mut host, &lba_status::get_lba_status(16));
    let told: Vec<_> = extents.iter().map(|extent| (extent.lba, extent.status.holds_nothing())).collect();
    assert_eq!(told[..4], [(16, false), (18, true), (22, false), (24, true)]);
    assert_eq!(extents.last().map(|extent| extent.end()), Some(crate::host::BLOCKS));
    let one = lba_status::get_lba_status(17).asking_for(24);
    assert_eq!(ask(&mut host, &one).len(), 1, "cut off after a whole descriptor");
}

#[test]
fn wrong_ranges_are_told_as_such() {
    let mut host = Host::new(config());
    let beyond = medium::read(medium::CdbForm::Sixteen, blocks(1 << 40, 1), Caching::default()).unwrap();
    let told = sense(&mut host, &beyond, &[]);
    assert_eq!(told.to_string(), "ILLEGAL REQUEST: LOGICAL BLOCK ADDRESS OUT OF RANGE (21/00)");
}

#[test]
fn reservations_tell_who_holds_what() {
    let mut host = Host::new(config());
    let register = ReserveOut::RegisterAndIgnore { new_key: 0xabc, options: RegisterOptions::default() };
    good(&mut host, &reservations::reserve_out(&register).unwrap(), &[]);
    assert_eq!(ask(&mut host, &reservations::read_keys()).keys, [0xabc]);
    assert_eq!(ask(&mut host, &reservations::read_reservation()).held, None);
    for kind in ReservationType::ALL {
        let reserve = ReserveOut::Reserve { key: 0xabc, kind };
        good(&mut host, &reservations::reserve_out(&reserve).unwrap(), &[]);
        let held = ask(&mut host, &reservations::read_reservation()).held.expect("a reservation");
        assert_eq!((held.kind, held.scope), (Some(kind), 0));
        let full = ask(&mut host, &reservations::read_full_status());
        assert_eq!(full.registrants[0].held.and_then(|held| held.kind), Some(kind));
        assert_eq!(full.registrants[0].initiator.to_string(), "iqn.host,i,0x800000000001");
        assert_eq!(full.registrants[0].target_port, Some(1));
        let release = ReserveOut::Release { key: 0xabc, kind };
        good(&mut host, &reservations::reserve_out(&release).unwrap(), &[]);
    }
    let capabilities = ask(&mut host, &reservations::report_capabilities());
    assert_eq!(capabilities.types, Some(ReservationType::ALL.to_vec()));
    assert!(!capabilities.persist_through_power_loss);
    let conflict = ReserveOut::Clear { key: 5 };
    let reply = send(&mut host, &reservations::reserve_out(&conflict).unwrap(), &[]);
    assert_eq!(reply.status, Status::ReservationConflict);
}

#[test]
fn what_else_a_unit_tells() {
    let mut host = Host::new(config());
    assert_eq!(ask(&mut host, &capacity::report_luns()), [Lun::from_number(0)]);
    let ten: Option<Capacity> = ask(&mut host, &capacity::read_capacity_10());
    assert_eq!(ten.map(|capacity| capacity.blocks), Some(crate::host::BLOCKS));
    let ports = ask(&mut host, &identification::scsi_ports());
    let name = Designator::ScsiName("iqn.2026-11.io.lunette:t,t,0x0001".into());
    assert_eq!((ports[0].relative_port, &ports[0].designations[0].designator), (1, &name));
    let groups = ask(&mut host, &port_groups::report_target_port_groups());
    assert_eq!((groups[0].group, &groups[0].ports, groups[0].is_active()), (1, &vec![1], true));

    let extended = ask(&mut host, &vpd::extended_inquiry());
    assert!(extended.head_of_queue && extended.ordered && extended.simple && extended.volatile_cache);
    let pages: BTreeSet<u8> = ask(&mut host, &log::supported_pages()).into_iter().collect();
    for page in &pages {
        if *page != 0 {
            assert!(!ask(&mut host, &log::page(*page)).is_empty(), "{page:02x}");
        }
    }
    assert!(pages.contains(&0x02));
    let functions = ask(&mut host, &unit::task_management());
    assert!(functions.abort_task && functions.logical_unit_reset && functions.query_task);
    let commands = ask(&mut host, &unit::supported_operation_codes());
    assert!(commands.len() > 80 && commands.iter().all(|command| command.name().is_some()));
    assert!(ask(&mut host, &unit::is_supported(0x9e, Some(0x12))));
    assert!(!ask(&mut host, &unit::is_supported(0xff, None)));
    assert_eq!(
        ask(&mut host, &unit::request_sense(true)).and_then(|sense| sense.key()),
        Some(SenseKey::NoSense)
    );
}

#[test]
fn access_states_are_set_and_told() {
    let mut host = Host::new(config());
    let standby = port_groups::set_target_port_groups(&[(1, lunette_scsi::AccessState::Standby)]).unwrap();
    good(&mut host, &standby, &[]);
    let groups = ask(&mut host, &port_groups::report_target_port_groups());
    assert_eq!((groups[0].state_name(), groups[0].status_code), ("standby", 1));
}

#[test]
fn mode_pages_are_read_changed_and_sent_back() {
    let mut host = Host::new(config());
    for form in [ModeForm::Six, ModeForm::Ten] {
        let query = mode::mode_sense(form, mode::CACHING, PageControl::Current);
        let mut parameters = ask(&mut host, &query);
        let enabled = parameters.write_cache_enabled().expect("the caching page");
        let page = &mut parameters.pages[0];
        assert!(page.set_bit(2, 0x04, !enabled));
        let select = mode::mode_select(form, &parameters.pages, false).unwrap();
        good(&mut host, &select, &[]);
        assert_eq!(ask(&mut host, &query).write_cache_enabled(), Some(!enabled));
    }
    let all = mode::mode_sense(ModeForm::Ten, mode::ALL_WITH_SUBPAGES, PageControl::Changeable);
    assert!(ask(&mut host, &all).pages.iter().any(|page| page.subpage != 0));
    let wrong = mode::mode_sense(ModeForm::Ten, (0x3e, 0), PageControl::Current);
    assert!(sense(&mut host, wrong.command(), &[]).is_invalid_field());
}

#[test]
fn erasing_tells_its_progress() {
    let mut host = Host::new(config());
    let how = unit::Sanitize::Overwrite { pattern: vec![1, 2], passes: 1, invert: false };
    good(&mut host, &unit::sanitize(&how, true, false).unwrap(), &[]);
    host.work();
    let told = sense(&mut host, &unit::test_unit_ready(), &[]);
    assert_eq!(told.code, AdditionalSense::SANITIZE_IN_PROGRESS);
    assert!(told.progress_percent().is_some_and(|percent| (0.0..=100.0).contains(&percent)));
    let requested = ask(&mut host, &unit::request_sense(true)).expect("sense data");
    assert!(requested.progress.is_some());
}
