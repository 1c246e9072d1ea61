//! Traces as text. Three forms are read, a line at a time:
//!
//! - our own: `MICROSECONDS R|W OFFSET LENGTH`, the latter two in bytes; what is behind `#` is a remark;
//! - the text of `blkparse`: the events `Q` (an operation is queued) of its default format, with sectors of 512 bytes;
//! - the CSV of the SNIA's block traces from Microsoft Research: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`,
//!   with times in units of 100 ns.
//!
//! Whose form a line has is seen from the line itself.
//!
//! Each device has an address space of its own, so a trace is of one. Its name is `MAJOR,MINOR` of blkparse, as in `8,0`, or
//! Hostname and DiskNumber of the CSV as its files are called, `usr_0`; our own form has none.

use std::time::Duration;

use super::{Record, Trace};
use crate::quantity::whole_number;
use crate::{Kind, Operation, SIZE_BYTES_MAX};

/// The most operations of a trace; each takes 32 bytes of memory.
pub const TRACE_OPERATIONS_MAX: usize = 1 << 25;
/// The longest line in bytes.
pub const TRACE_LINE_BYTES_MAX: usize = 1024;

/// How many devices an error names at most.
const DEVICES_TOLD_MAX: usize = 16;
/// Sectors of blkparse, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Windows counts units of 100 ns.
const FILETIME_UNIT_NS: u64 = 100;

/// Why a text is no trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line has none of the forms.
    #[error(
        "line {line} is no operation: a trace has lines as 1500 R 8192 4096 (microseconds, R or W, offset and length in bytes), the text of blkparse, or the CSV of SNIA's block traces"
    )]
    Line {
        /// Which one, from 1.
        line: u64,
    },
    /// What blkparse has printed of an operation is not whole.
    #[error(
        "line {line} is a damaged or cut-off event of blkparse: make the text anew with blkparse -i, or remove the line if the operation does not matter"
    )]
    Event {
        /// Which one, from 1.
        line: u64,
    },
    /// An operation that cannot be carried out.
    #[error("line {line}: an operation has 1 to {SIZE_BYTES_MAX} bytes, and ends within 2^63 bytes")]
    Length {
        /// Which one, from 1.
        line: u64,
    },
    /// The operations are of more than one device, and none was chosen.
    #[error(
        "line {line} is of {}, and the operations before it of {}: only one device's can be replayed",
        device(other.as_deref()),
        device(first.as_deref())
    )]
    Devices {
        /// The first one of another device, from 1.
        line: u64,
        /// The device of the operations before; `None` where their form has none.
        first: Option<String>,
        /// The device of this one, likewise.
        other: Option<String>,
    },
    /// A device was chosen, and the line is of our own form, which has none.
    #[error("line {line} is of our own form, which has no devices to choose from")]
    NoDevices {
        /// Which one, from 1.
        line: u64,
    },
    /// No operation is of the device that was chosen.
    #[error("no operation is of the device {chosen:?}, but of {}", devices(others))]
    NoSuchDevice {
        /// The one that was chosen.
        chosen: String,
        /// The first ones that there are, at least one, in their order.
        others: Vec<String>,
    },
    /// There are too many.
    #[error("a trace has at most {TRACE_OPERATIONS_MAX} operations")]
    Long,
    /// There are none.
    #[error("the trace has no read and no write")]
    Empty,
}

fn device(name: Option<&str>) -> String {
    name.map_or_else(|| "no device".to_owned(), |name| format!("the device {name:?}"))
}

fn devices(names: &[String]) -> String {
    let told: Vec<String> = names.iter().take(DEVICES_TOLD_MAX).map(|name| format!("{name:?}")).collect();
    let more = if names.len() > DEVICES_TOLD_MAX { " and others" } else { "" };
    told.join(", ") + more
}

/// Reads a trace, one line after the other.
#[derive(Debug, Default)]
pub struct TraceReader {
    records: Vec<Record>,
    line: u64,
    /// An event or a header of blkparse was there: what else it prints is no fault.
    is_blkparse: bool,
    /// Whose operations alone are taken.
    chosen: Option<String>,
    /// Whose the first operation is, if none is chosen.
    first: Option<String>,
    /// While there is no operation of the chosen device: the others, and not many more than are told.
    others: Vec<String>,
}

/// What a line is.
enum Line {
    /// Whose it is, the time in nanoseconds, and the operation.
    Operation { device: Option<String>, at_ns: u64, kind: Kind, offset_bytes: u64, length_bytes: u64 },
    /// Something that is neither read nor write.
    Other,
}

impl TraceReader {
    /// Takes only the operations of this device: `MAJOR,MINOR` of blkparse, or `HOSTNAME_DISKNUMBER` of the SNIA's CSV.
    #[must_use]
    pub fn of_device(name: String) -> Self {
        Self { chosen: Some(name), ..Self::default() }
    }

    /// Takes the next line, without its end.
    ///
    /// # Errors
    /// It is none of a trace, or there are too many. Without a chosen device, it is of another one than those before; with one,
    /// its form has none.
    pub fn line(&mut self, text: &str) -> Result<(), TraceError> {
        self.line += 1;
        let line = self.line;
        let fault = || TraceError::Line { line };
        if text.len() > TRACE_LINE_BYTES_MAX {
            return Err(fault());
        }
        // Editors of Windows begin a text with this mark.
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let text = text.trim();
        self.is_blkparse |= is_blkparse(text);
        let parsed = if self.is_blkparse {
            parse_of_blkparse(text).ok_or(TraceError::Event { line })?
        } else {
            parse(text).ok_or_else(fault)?
        };
        let Line::Operation { device, at_ns, kind, offset_bytes, length_bytes } = parsed else {
            return Ok(());
        };
        if !self.takes(device)? {
            return Ok(());
        }
        let length = u32::try_from(length_bytes).ok().filter(|length| (1..=SIZE_BYTES_MAX).contains(length));
        let end = offset_bytes.checked_add(length_bytes).filter(|end| *end <= i64::MAX as u64);
        let (Some(length_bytes), Some(_)) = (length, end) else { return Err(TraceError::Length { line }) };
        if self.records.len() == TRACE_OPERATIONS_MAX {
            return Err(TraceError::Long);
        }
        let operation = Operation { kind, offset_bytes, length_bytes };
        self.records.push(Record { at: Duration::from_nanos(at_ns), operation });
        Ok(())
    }

    /// Whether the operation of this line, which is of this device, is one of the trace.
    fn takes(&mut self, device: Option<String>) -> Result<bool, TraceError> {
        let line = self.line;
        let Some(chosen) = &self.chosen else {
            if self.records.is_empty() {
                self.first = device;
            } else if self.first != device {
                return Err(TraceError::Devices { line, first: self.first.clone(), other: device });
            }
            return Ok(true);
        };
        let device = device.ok_or(TraceError::NoDevices { line })?;
        if device == *chosen {
            return Ok(true);
        }
        let is_told = self.records.is_empty() && self.others.len() <= DEVICES_TOLD_MAX;
        if is_told && !self.others.contains(&device) {
            self.others.push(device);
        }
        Ok(false)
    }

    /// The trace: in the order of the times, which begin at 0.
    ///
    /// # Errors
    /// There is nothing in it, or nothing of the chosen device.
    pub fn finish(mut self) -> Result<Trace, TraceError> {
        // Stable: what has one time stays in its order.
        self.records.sort_by_key(|record| record.at);
        let Some(first) = self.records.first().map(|record| record.at) else {
            let chosen = self.chosen.filter(|_| !self.others.is_empty()).ok_or(TraceError::Empty)?;
            return Err(TraceError::NoSuchDevice { chosen, others: self.others });
        };
        for record in &mut self.records {
            record.at -= first;
        }
        Ok(Trace { records: self.records })
    }
}

/// A line of any form but those around blkparse's events.
fn parse(text: &str) -> Option<Line> {
    if text.is_empty() || text.starts_with('#') {
        return Some(Line::Other);
    }
    let (operation, _remark) = text.split_once('#').unwrap_or((text, ""));
    if operation.contains(',') {
        return parse_csv(text);
    }
    let words: Vec<&str> = operation.split_ascii_whitespace().take(5).collect();
    let [time, letter, offset, length] = words[..] else { return None };
    let kind = match letter {
        "R" => Kind::Read,
        "W" => Kind::Write,
        _ => return None,
    };
    Some(Line::Operation {
        device: None,
        at_ns: whole_number(time)?.checked_mul(1000)?,
        kind,
        offset_bytes: whole_number(offset)?,
        length_bytes: whole_number(length)?,
    })
}

/// A line that only blkparse prints: an event, or the header that names a file.
fn is_blkparse(text: &str) -> bool {
    begins_with_device(text) || (text.starts_with("Input file ") && text.ends_with(" added"))
}

/// Begins with `MAJOR,MINOR` and a space.
fn begins_with_device(text: &str) -> bool {
    let Some((device, _)) = text.split_once(' ') else { return false };
    device.split_once(',').is_some_and(|(major, minor)| {
        !major.is_empty() && !minor.is_empty() && whole_number(major).and(whole_number(minor)).is_some()
    })
}

/// A line of a text of blkparse. What is no event, whole or in part, is a header, a summary or a statistic.
fn parse_of_blkparse(text: &str) -> Option<Line> {
    if begins_with_device(text) {
        return parse_event(text);
    }
    (!is_part_of_event(text)).then_some(Line::Other)
}

/// `8,0 3 1 0.000123456 697 Q W 223490 + 8 [name]`; other events are no operations. Nothing if it is none of them: a line that was cut
/// off or damaged has been an operation.
fn parse_event(text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split_ascii_whitespace().take(11).collect();
    let [device, _, _, time, _, action, flags, ref what @ ..] = words[..] else { return None };
    if action != "Q" {
        return Some(Line::Other);
    }
    // The name of who asked is the end.
    let is_whole = text.ends_with(']') && flags.bytes().all(|flag| flag.is_ascii_uppercase());
    let at_ns = time_ns(time).filter(|_| is_whole)?;
    let kind = match (flags.contains('R'), flags.contains('W'), flags.contains('D')) {
        (true, false, false) => Kind::Read,
        (false, true, false) => Kind::Write,
        _ => return Some(Line::Other),
    };
    let [sector, "+", sectors, ..] = what else {
        return has_no_data(what).then_some(Line::Other);
    };
    let bytes = |sectors: &str| whole_number(sectors)?.checked_mul(SECTOR_BYTES);
    let (offset_bytes, length_bytes) = (bytes(sector)?, bytes(sectors)?);
    if length_bytes == 0 {
        // Flushes and barriers.
        return flags.contains(['F', 'B']).then_some(Line::Other);
    }
    Some(Line::Operation { device: Some(device.to_owned()), at_ns, kind, offset_bytes, length_bytes })
}

/// Seconds and nine digits behind the point.
fn time_ns(text: &str) -> Option<u64> {
    let (seconds, nanoseconds) = text.split_once('.').filter(|(_, digits)| digits.len() == 9)?;
    whole_number(seconds)?.checked_mul(1_000_000_000)?.checked_add(whole_number(nanoseconds)?)
}

/// What is behind the flags of an operation without sectors: `[name]`; a sector and the name; or of a command that was passed through its
/// length and its bytes, `36 (12 00 ..) [name]`.
fn has_no_data(what: &[&str]) -> bool {
    match what {
        [name, ..] if name.starts_with('[') => true,
        [number, next, ..] => whole_number(number).is_some() && next.starts_with(['[', '(']),
        _ => false,
    }
}

/// Whether a line that does not begin with a device and a space is what is left of an event: its begin, its end, or an event whose device
/// was damaged. Programs in statistics may have any name, and have their number behind it: `[kjournald] (697)`.
fn is_part_of_event(text: &str) -> bool {
    if text.ends_with(')') {
        return false;
    }
    let mut words = text.split_ascii_whitespace();
    let is_begin =
        words.next().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b','));
    let has_time = words.nth(2).and_then(time_ns).is_some();
    is_begin || has_time || text.ends_with(']') || text.contains('\u{fffd}')
}

fn parse_csv(text: &str) -> Option<Line> {
    let fields: Vec<&str> = text.split(',').map(str::trim).take(8).collect();
    let [time, host, disk, kind, offset, length, _response] = fields[..] else { return None };
    let kind = match kind {
        "Read" => Kind::Read,
        "Write" => Kind::Write,
        // The line with the columns' names.
        "Type" => return Some(Line::Other),
        _ => return None,
    };
    Some(Line::Operation {
        device: Some(format!("{host}_{disk}")),
        // Since the year 1601, which 64 bits of nanoseconds hold until 2185.
        at_ns: whole_number(time)?.checked_mul(FILETIME_UNIT_NS)?,
        kind,
        offset_bytes: whole_number(offset)?,
        length_bytes: whole_number(length)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Trace, TraceError> {
        read_by(TraceReader::default(), text)
    }

    fn read_by(mut reader: TraceReader, text: &str) -> Result<Trace, TraceError> {
        text.lines().try_for_each(|line| reader.line(line))?;
        reader.finish()
    }

    fn read_of(name: &str, text: &str) -> Result<Trace, TraceError> {
        read_by(TraceReader::of_device(name.to_owned()), text)
    }

    /// Of `8,0` and `8,16`: what was remapped from a partition (A) and what ended elsewhere (C) are no operations.
    const BLKPARSE_OF_TWO: &str = "  8,0  3 1 2.000001000 697 Q R 16 + 8 [fio]\n\
                                     8,0  3 2 2.000001500 697 A R 16 + 8 <- (8,1) 8\n\
                                     8,32 3 3 2.000001600 697 C R 16 + 8 [0]\n\
                                     8,16 1 4 2.000900000 697 Q WS 32 + 1 [jbd2]\n\
                                     8,0  1 5 2.000901000 697 Q W 64 + 1 [fio]\n";
    /// Of `usr_0`, `usr_1` and `hm_0`.
    const CSV_OF_THREE: &str = "128166372003061629,usr,0,Read,8192,4096,1131\n\
                                  128166372003061639,usr,1,Read,0,512,99\n\
                                  128166372003061649,usr,0,Write,512,512,99\n\
                                  128166372003061659,hm,0,Read,1024,512,99\n";

    fn shown(trace: &Trace) -> Vec<String> {
        trace.records().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn our_own_form_is_read_and_brought_into_order() {
        let trace = read("# a remark\n\n1500 R 8192 4096\n 1000 W 0 512 \n1500 R 0 1\n").unwrap();
        assert_eq!(shown(&trace), ["0 W 0 512", "500 R 8192 4096", "500 R 0 1"]);
        assert_eq!((trace.longest_bytes(), trace.end_bytes(), trace.writes()), (4096, 12288, true));
    }

    #[test]
    fn blkparse_is_read_with_all_that_is_around_it() {
        let text = "  8,0    3        1     2.000001000   697  Q   R 16 + 8 [fio]\n\
                    8,0    3        2     2.000002000   697  G   R 16 + 8 [fio]\n\
                    8,0    1        3     2.000900000   697  Q  WS 223490 + 1 [jbd2]\n\
                    8,0    1        4     2.000910000   697  Q FWS [jbd2]\n\
                    8,0    1        5     2.000920000   697  Q  DS 0 + 4096 [fstrim]\n\
                    CPU3 (8,0):\n Reads Queued:           1,        4KiB\n";
        assert_eq!(shown(&read(text).unwrap()), ["0 R 8192 4096", "899 W 114426880 512"]);
    }

    #[test]
    fn a_damaged_event_is_no_remark() {
        let first = "8,0 3 1 2.000001000 697 Q R 16 + 8 [fio]\n";
        let whole = "8,0 3 2 2.000002000 697 Q W 32 + 8 [kworker/0:1]";
        assert_eq!(read(&format!("{first}{whole}")).unwrap().records().len(), 2);
        // Wherever it is cut off.
        for length in 1..whole.len() {
            let cut = &whole[..length];
            assert_eq!(read(&format!("{first}{cut}")), Err(TraceError::Event { line: 2 }), "{cut}");
        }
        for damaged in [
            whole.replace("32 + 8", "3x + 8"),
            whole.replace("32 + 8", "32 - 8"),
            whole.replace("32 + 8", "32 + 0"),
            whole.replace("2.000002000", "2.00002"),
            whole.replace("Q W", "Q w"),
            whole.replace("8,0", "8x0"),
            "\u{fffd}\u{fffd}".to_owned(),
            "2.000002000 697 Q W 32 + 8 [fio]".to_owned(),
            "1500 R 8192 4096".to_owned(),
        ] {
            assert_eq!(read(&format!("{first}{damaged}")), Err(TraceError::Event { line: 2 }), "{damaged}");
        }
        let told = TraceError::Event { line: 2 }.to_string();
        assert!(
            told.starts_with("line 2 is a damaged or cut-off event of blkparse: make the text anew"),
            "{told}"
        );
        // Flushes, discards, messages and the summary are whole lines.
        let around = "8,0 1 4 2.000910000 697 Q FWS [jbd2]\n8,0 1 4 2.000910000 697 Q FWS 0 + 0 [jbd2]\n\
                      8,0 1 0 2.000920000 0 m N cfq697S / alloced\n8,0 1 5 2.000930000 697 Q DS 0 + 8 [fstrim]\n\n\
                      fio (697)\n Reads Queued: 1, 4KiB\nThroughput (R/W): 1KiB/s\nSkips: 0 forward (0 -   0.0%)\n";
        assert_eq!(read(&format!("{first}{around}")).unwrap().records().len(), 1);
    }

    #[test]
    fn what_blkparse_prints_around_its_events_is_skipped_wherever_it_is() {
        let event = "8,0 3 2 2.000002000 697 Q W 32 + 8 [fio]\n";
        let header = "Input file fast.blktrace.0 added\nInput file fast.blktrace.1 added\n";
        let statistics = "g++ (697)\n Reads Queued:           1,        4KiB\n[kjournald] (697)\n7z (12)\n7 (13)\n\
                          sh (14, ...)\nCPU3 (8,0):\n Writes Queued:          2,        8KiB\n\nTotal (8,0):\n\
                          Throughput (R/W): 0KiB/s / 8KiB/s\nEvents (8,0): 12 entries\n\
                          Skips: 0 forward (0 -   0.0%)\n";
        for text in [
            format!("{header}{event}"),
            format!("{event}{header}"),
            format!("{event}{statistics}{header}"),
            format!("{header}{statistics}{event}"),
            format!("{header}\n{event}{statistics}"),
        ] {
            assert_eq!(
                read(&text).map(|trace| shown(&trace)),
                Ok(vec!["0 W 16384 4096".to_owned()]),
                "{text}"
            );
        }
        // Nothing else begins a text.
        assert_eq!(read(&format!("{statistics}{event}")), Err(TraceError::Line { line: 1 }));
        assert_eq!(read(header), Err(TraceError::Empty));
    }

    #[test]
    fn events_without_data_are_no_operations() {
        let event = "8,0 3 2 2.000002000 697 Q W 32 + 8 [fio]\n";
        for without in [
            "Q WBS [jbd2]",
            "Q WBS 0 [jbd2]",
            "Q WBS 0 + 0 [jbd2]",
            "Q FWS 0 [jbd2]",
            "Q FN [jbd2]",
            "Q WS 0 [Web Content]",
            "Q R [udevd]",
            "Q R 36 (12 00 ..) [udevd]",
            "Q R 36 [udevd]",
            "Q N 0 (00 ..) [udevd]",
            "Q R 252 (12 01 00 00 fc ..) [a b]",
        ] {
            let text = format!("8,0 1 3 0.000000001 697 {without}\n{event}");
            assert_eq!(read(&text).map(|trace| trace.records().len()), Ok(1), "{without}");
            let cut = text.replacen("]\n", "\n", 1);
            assert_eq!(read(&cut), Err(TraceError::Event { line: 1 }), "{cut}");
        }
    }

    #[test]
    fn remarks_stand_behind_operations_and_a_text_may_begin_with_its_mark() {
        assert_eq!(
            shown(&read("\u{feff}500 R 4096 512 # foo, bar\n600 W 0 512#\n").unwrap()),
            ["0 R 4096 512", "100 W 0 512"]
        );
        assert_eq!(read("\u{feff}# a remark\n1 R 0 512").unwrap().records().len(), 1);
        assert_eq!(read("1 R # 0 512"), Err(TraceError::Line { line: 1 }));
        assert_eq!(read("1 R 0 512\n\u{feff}2 R 0 512"), Err(TraceError::Line { line: 2 }));
    }

    #[test]
    fn the_csv_of_snia_is_read() {
        let text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n\
                    128166372003061629,hm,0,Read,383496192,32768,1131\n\
                    128166372003071629,hm,0,Write,0,512,99\n";
        assert_eq!(shown(&read(text).unwrap()), ["0 R 383496192 32768", "1000 W 0 512"]);
    }

    #[test]
    fn operations_of_several_devices_are_not_one_trace() {
        let error = |text| read(text).unwrap_err();
        let named = |name: &str| Some(name.to_owned());
        let of_blkparse = TraceError::Devices { line: 4, first: named("8,0"), other: named("8,16") };
        assert_eq!(error(BLKPARSE_OF_TWO), of_blkparse);
        assert_eq!(
            error(CSV_OF_THREE).to_string(),
            "line 2 is of the device \"usr_1\", and the operations before it of the device \"usr_0\": only one device's can be \
             replayed"
        );
        let own = "0 R 0 512\n";
        let of_both = error(&format!("{own}{CSV_OF_THREE}"));
        assert_eq!(of_both, TraceError::Devices { line: 2, first: None, other: named("usr_0") });
        assert!(of_both.to_string().contains("before it of no device"));
    }

    #[test]
    fn the_operations_of_the_chosen_device_are_read() {
        let shown_of = |name: &str, text: &str| read_of(name, text).map(|trace| shown(&trace));
        let lines = |lines: &[&str]| Ok(lines.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(shown_of("8,0", BLKPARSE_OF_TWO), lines(&["0 R 8192 4096", "900 W 32768 512"]));
        assert_eq!(shown_of("8,16", BLKPARSE_OF_TWO), lines(&["0 W 16384 512"]));
        assert_eq!(shown_of("usr_0", CSV_OF_THREE), lines(&["0 R 8192 4096", "2 W 512 512"]));
        assert_eq!(shown_of("hm_0", CSV_OF_THREE), lines(&["0 R 1024 512"]));
        // What another device was asked for is not carried out.
        let long_of_another = format!("{CSV_OF_THREE}128166372003061669,hm,0,Read,0,16777217,99\n");
        assert!(shown_of("usr_0", &long_of_another).is_ok());
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_those_that_are() {
        let error = |name: &str, text: &str| read_of(name, text).unwrap_err().to_string();
        assert_eq!(
            error("8,32", BLKPARSE_OF_TWO),
            r#"no operation is of the device "8,32", but of "8,0", "8,16""#
        );
        assert_eq!(
            error("usr.0", CSV_OF_THREE),
            r#"no operation is of the device "usr.0", but of "usr_0", "usr_1", "hm_0""#
        );
        assert_eq!(read_of("8,0", "# nothing"), Err(TraceError::Empty));
        assert_eq!(read_of("8,0", "# ours\n0 R 0 512"), Err(TraceError::NoDevices { line: 2 }));
        let of_many = |many: usize| {
            let line = |disk| format!("1,usr,{disk},Read,0,512,9\n");
            (0..many).chain(0..many).map(line).collect::<String>()
        };
        assert!(error("hm_0", &of_many(16)).ends_with(r#", "usr_15""#));
        assert!(error("hm_0", &of_many(40)).ends_with(r#", "usr_15" and others"#));
        assert_eq!(read_of("usr_30", &of_many(40)).unwrap().records().len(), 2);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let line = |line| Err(TraceError::Line { line });
        for text in
            ["x", "1 X 0 512", "1 R 0", "1 R -1 512", "-1 R 0 512", "1,2,3", "1 R 0 512 7", "+1 R 0 512"]
        {
            assert_eq!(read(&format!("#\n{text}")), line(2), "{text}");
        }
        assert_eq!(read("0 R 0 0"), Err(TraceError::Length { line: 1 }));
        assert_eq!(read("0 R 0 16777217"), Err(TraceError::Length { line: 1 }));
        assert_eq!(read("0 R 9223372036854775807 512"), Err(TraceError::Length { line: 1 }));
        assert_eq!(read(&format!("#{}", "x".repeat(TRACE_LINE_BYTES_MAX))), line(1));
        assert_eq!(read("# nothing"), Err(TraceError::Empty));
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(300))]

        #[test]
        fn any_text_is_a_trace_or_refused(text in "[ -~\n]{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn what_is_printed_is_read(
            operations in prop::collection::vec((any::<bool>(), 0_u64..1 << 40, 1_u32..1 << 20, 0_u64..1 << 40), 1..50),
        ) {
            let mut times: Vec<u64> = operations.iter().map(|operation| operation.3).collect();
            times.sort_unstable();
            let record = |(at, (reads, offset_bytes, length_bytes, _)): (&u64, &(bool, u64, u32, u64))| Record {
                at: Duration::from_micros(at - times[0]),
                operation: Operation {
                    kind: if *reads { Kind::Read } else { Kind::Write },
                    offset_bytes: *offset_bytes,
                    length_bytes: *length_bytes,
                },
            };
            let trace = Trace { records: times.iter().zip(&operations).map(record).collect() };
            prop_assert_eq!(read(&shown(&trace).join("\n")), Ok(trace));
        }
    }
}
