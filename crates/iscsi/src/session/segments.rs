//! How the data of a read is cut into Data-In PDUs (RFC 7143, 11.7.1, 13.12, 13.13): where each begins, and how many there
//! are. The same cut again gives the same PDUs, which is what a retransmission is made of (11.16).

use lunette_wire::DataSn;

/// Where a Data-In PDU of a command begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark {
    pub(super) data_sn: DataSn,
    /// In bytes from the start of the command's data.
    pub(super) offset: u32,
}

impl Mark {
    /// The next PDU, behind one of so many bytes.
    pub(super) const fn behind(self, length: u32) -> Self {
        Self { data_sn: self.data_sn.next(), offset: self.offset + length }
    }
}

/// The rule by which data is cut. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// All that the command sends; not zero.
    pub(super) total: u32,
    /// The longest data segment: a multiple of four, so that only the last PDU of a command needs padding (11.7.7).
    pub(super) segment_max: u32,
    /// MaxBurstLength.
    pub(super) burst_max: u32,
}

/// One PDU's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// In bytes.
    pub(super) length: u32,
    /// It ends a sequence.
    pub(super) ends_burst: bool,
    /// It ends the command's data.
    pub(super) is_last: bool,
}

impl Cut {
    /// The PDU that begins at `at`, which is before the end.
    pub(super) fn segment(&self, at: Mark) -> Segment {
        let burst_left = self.burst_left(at);
        let length = (self.total - at.offset).min(self.segment_max).min(burst_left);
        let is_last = at.offset + length == self.total;
        Segment { length, ends_burst: is_last || length == burst_left, is_last }
    }

    /// PDUs from `from` to the end.
    pub(super) fn count(&self, from: Mark) -> u32 {
        let left = self.total - from.offset;
        let first = left.min(self.burst_left(from));
        let rest = left - first;
        first.div_ceil(self.segment_max)
            + rest / self.burst_max * self.per_burst()
            + (rest % self.burst_max).div_ceil(self.segment_max)
    }

    /// Where the PDU begins that comes `count` PDUs after the one at `from`; never beyond the end.
    pub(super) fn after(&self, from: Mark, count: u32) -> Mark {
        let burst_left = self.burst_left(from);
        let in_burst = burst_left.div_ceil(self.segment_max);
        let bytes = if count < in_burst {
            u64::from(count) * u64::from(self.segment_max)
        } else {
            let more = count - in_burst;
            u64::from(burst_left)
                + u64::from(more / self.per_burst()) * u64::from(self.burst_max)
                + u64::from(more % self.per_burst()) * u64::from(self.segment_max)
        };
        let offset = (u64::from(from.offset) + bytes).min(self.total.into()) as u32;
        Mark { data_sn: from.data_sn.plus(count), offset }
    }

    const fn burst_left(&self, at: Mark) -> u32 {
        self.burst_max - at.offset % self.burst_max
    }

    const fn per_burst(&self) -> u32 {
        self.burst_max.div_ceil(self.segment_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(256))]

        /// Whatever is computed about the PDUs is what walking along them gives.
        #[test]
        fn a_walk_agrees_with_the_arithmetic(
            total in 1u32..200_000, segment in 128u32..20_000, burst_max in 512u32..70_000, skip in 0u32..40,
        ) {
            let cut = Cut { total, segment_max: segment & !3, burst_max };
            let from = cut.after(Mark { data_sn: DataSn(7), offset: 0 }, skip);
            prop_assume!(from.offset < total);
            let (mut at, mut count, mut burst) = (from, 0, from.offset % burst_max);
            loop {
                prop_assert_eq!(cut.after(from, count), at);
                let segment = cut.segment(at);
                prop_assert!(segment.length > 0 && segment.length <= cut.segment_max);
                burst += segment.length;
                prop_assert!(burst <= burst_max);
                prop_assert_eq!(segment.ends_burst, segment.is_last || burst == burst_max);
                burst %= burst_max;
                count += 1;
                at = Mark { data_sn: at.data_sn.next(), offset: at.offset + segment.length };
                prop_assert_eq!(segment.is_last, at.offset == total);
                if segment.is_last {
                    break;
                }
            }
            prop_assert_eq!(cut.count(from), count);
        }
    }
}
