//! Traces as text. Three forms are read, a line at a time:
//!
//! - our own: `MICROSECONDS R|W OFFSET LENGTH`, the latter two in bytes; a line that begins with `#` is a remark;
//! - the text of `blkparse`: the events `Q` (an operation is queued) of its default format, with sectors of 512 bytes;
//! - the CSV of the SNIA's block traces from Microsoft Research: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`,
//!   with times in units of 100 ns.
//!
//! Whose form a line has is seen from the line itself.

use std::time::Duration;

use super::{Record, Trace};
use crate::quantity::whole_number;
use crate::{Kind, Operation, SIZE_BYTES_MAX};

/// The most operations of a trace; each takes 32 bytes of memory.
pub const TRACE_OPERATIONS_MAX: usize = 1 << 25;
/// The longest line in bytes.
pub const TRACE_LINE_BYTES_MAX: usize = 1024;

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
    /// An operation that cannot be carried out.
    #[error("line {line}: an operation has 1 to {SIZE_BYTES_MAX} bytes, and ends within 2^63 bytes")]
    Length {
        /// Which one, from 1.
        line: u64,
    },
    /// There are too many.
    #[error("a trace has at most {TRACE_OPERATIONS_MAX} operations")]
    Long,
    /// There are none.
    #[error("the trace has no read and no write")]
    Empty,
}

/// Reads a trace, one line after the other.
#[derive(Debug, Default)]
pub struct TraceReader {
    records: Vec<Record>,
    line: u64,
    /// An event of blkparse was there: what else it prints is no fault.
    is_blkparse: bool,
}

/// What a line is.
enum Line {
    /// Time in nanoseconds, and the operation.
    Operation { at_ns: u64, kind: Kind, offset_bytes: u64, length_bytes: u64 },
    /// Something that is neither read nor write.
    Other,
}

impl TraceReader {
    /// Takes the next line, without its end.
    ///
    /// # Errors
    /// It is none of a trace, or there are too many.
    pub fn line(&mut self, text: &str) -> Result<(), TraceError> {
        self.line += 1;
        let line = self.line;
        let fault = || TraceError::Line { line };
        if text.len() > TRACE_LINE_BYTES_MAX {
            return Err(fault());
        }
        let text = text.trim();
        let parsed = if is_blkparse(text) {
            self.is_blkparse = true;
            parse_blkparse(text).unwrap_or(Line::Other)
        } else if self.is_blkparse {
            Line::Other
        } else {
            parse(text).ok_or_else(fault)?
        };
        let Line::Operation { at_ns, kind, offset_bytes, length_bytes } = parsed else { return Ok(()) };
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

    /// The trace: in the order of the times, which begin at 0.
    ///
    /// # Errors
    /// There is nothing in it.
    pub fn finish(mut self) -> Result<Trace, TraceError> {
        // Stable: what has one time stays in its order.
        self.records.sort_by_key(|record| record.at);
        let first = self.records.first().ok_or(TraceError::Empty)?.at;
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
    if text.contains(',') {
        return parse_csv(text);
    }
    let words: Vec<&str> = text.split_ascii_whitespace().take(5).collect();
    let [time, letter, offset, length] = words[..] else { return None };
    let kind = match letter {
        "R" => Kind::Read,
        "W" => Kind::Write,
        _ => return None,
    };
    Some(Line::Operation {
        at_ns: whole_number(time)?.checked_mul(1000)?,
        kind,
        offset_bytes: whole_number(offset)?,
        length_bytes: whole_number(length)?,
    })
}

/// Begins with `MAJOR,MINOR` and a space.
fn is_blkparse(text: &str) -> bool {
    let Some((device, _)) = text.split_once(' ') else { return false };
    device.split_once(',').is_some_and(|(major, minor)| {
        !major.is_empty() && !minor.is_empty() && whole_number(major).and(whole_number(minor)).is_some()
    })
}

/// `8,0 3 1 0.000123456 697 Q W 223490 + 8 [name]`; the summary at the end and other events are no operations.
fn parse_blkparse(text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split_ascii_whitespace().take(11).collect();
    let [_, _, _, time, _, "Q", flags, sector, "+", sectors, ..] = words[..] else { return None };
    let kind = match (flags.contains('R'), flags.contains('W'), flags.contains('D')) {
        (true, false, false) => Kind::Read,
        (false, true, false) => Kind::Write,
        _ => return None,
    };
    let (seconds, nanoseconds) = time.split_once('.').filter(|(_, digits)| digits.len() == 9)?;
    let at_ns = whole_number(seconds)?.checked_mul(1_000_000_000)?.checked_add(whole_number(nanoseconds)?)?;
    let bytes = |sectors: &str| whole_number(sectors)?.checked_mul(SECTOR_BYTES);
    let (offset_bytes, length_bytes) = (bytes(sector)?, bytes(sectors)?);
    // A flush has no sectors.
    (length_bytes > 0).then_some(Line::Operation { at_ns, kind, offset_bytes, length_bytes })
}

fn parse_csv(text: &str) -> Option<Line> {
    let fields: Vec<&str> = text.split(',').map(str::trim).take(8).collect();
    let [time, _host, _disk, kind, offset, length, _response] = fields[..] else { return None };
    let kind = match kind {
        "Read" => Kind::Read,
        "Write" => Kind::Write,
        // The line with the columns' names.
        "Type" => return Some(Line::Other),
        _ => return None,
    };
    Some(Line::Operation {
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
        let mut reader = TraceReader::default();
        text.lines().try_for_each(|line| reader.line(line))?;
        reader.finish()
    }

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
    fn the_csv_of_snia_is_read() {
        let text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n\
                    128166372003061629,hm,0,Read,383496192,32768,1131\n\
                    128166372003071629,hm,0,Write,0,512,99\n";
        assert_eq!(shown(&read(text).unwrap()), ["0 R 383496192 32768", "1000 W 0 512"]);
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
