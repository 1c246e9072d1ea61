//! Steps that an auto contingent allegiance holds back (SAM-5, 5.9): what a command with the ACA attribute changes meanwhile
//! holds for them.

use lunette_scsi::{Attribute, DataIn, Event, Io, Next, Saved, Status};

use crate::allegiance::{MARK, Pair, WRITE, done, establish, io, lun, start};
use crate::host::*;

/// A write that is held back meets what a command with the ACA attribute has marked meanwhile.
#[test]
fn blocks_may_be_marked_while_a_write_to_them_is_blocked() {
    let pair = Pair::on(device_keeping(config(), Saved::Nothing));
    let data = [7; BLOCK];
    let (mut blocked, _) = start(&pair.second, &WRITE, Attribute::Simple, 1);
    establish(&pair);
    assert_eq!(blocked.resume(&pair.second, Event::DataOut(&data)), Next::Wait);
    let (mut marks, next) = start(&pair.first, &MARK, Attribute::Aca, 0);
    assert_eq!(next, Next::Io(Io::SaveState));
    assert_eq!(done(io(&mut marks, &pair.first, &[])).status, Status::Good);
    pair.first.clear_aca(lun(&pair.first));
    let next = blocked.resume(&pair.second, Event::Turn { data_out: &data });
    assert!(matches!(next, Next::Io(Io::WriteDataOut { .. })), "{next:?}");
    assert_eq!(io(&mut blocked, &pair.second, &[]), Next::Io(Io::Flush), "it mends");
    assert_eq!(io(&mut blocked, &pair.second, &[]), Next::Io(Io::SaveState));
    assert_eq!(done(io(&mut blocked, &pair.second, &[])).status, Status::Good);
}

/// A write that is held back is stable when it is answered, once nobody is told any more that there is a write cache.
#[test]
fn the_write_cache_may_end_while_a_write_is_blocked() {
    let pair = Pair::on(device(config()));
    let DataIn::Parameter(sensed) =
        done(start(&pair.first, &[0x1a, 0x08, 0x08, 0, 255], Attribute::Simple, 0).1).data_in
    else {
        panic!("the caching page");
    };
    let mut list = [&[0; 4][..], &sensed[4..]].concat();
    assert_eq!(std::mem::take(&mut list[6]), 0x04, "WCE");
    // PS is reserved here.
    list[4] &= 0x7f;
    let data = [7; BLOCK];
    let (mut blocked, _) = start(&pair.second, &WRITE, Attribute::Simple, 1);
    establish(&pair);
    assert_eq!(blocked.resume(&pair.second, Event::DataOut(&data)), Next::Wait);
    let (mut select, _) = start(&pair.first, &[0x15, 0x10, 0, 0, list.len() as u8], Attribute::Aca, 0);
    assert_eq!(select.resume(&pair.first, Event::DataOut(&list)), Next::Io(Io::Flush));
    assert_eq!(done(io(&mut select, &pair.first, &[])).status, Status::Good);
    pair.first.clear_aca(lun(&pair.first));
    let next = blocked.resume(&pair.second, Event::Turn { data_out: &data });
    assert!(matches!(next, Next::Io(Io::WriteDataOut { stable: true, .. })), "{next:?}");
}
