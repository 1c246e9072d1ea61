//! Block Limits, Block Device Characteristics and Logical Block Provisioning (SBC-3; SBC-4 for atomic writes).

use super::{Query, query, whole};
use crate::codes::vpd_page;

/// Block Limits page. 0 means "not told" unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: a WRITE SAME of 0 blocks is refused.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks; 0: the command does not exist.
    pub compare_and_write_blocks_max: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY in blocks.
    pub optimal_granularity_blocks: u16,
    /// MAXIMUM TRANSFER LENGTH in blocks.
    pub transfer_blocks_max: u32,
    /// OPTIMAL TRANSFER LENGTH in blocks.
    pub optimal_transfer_blocks: u32,
    /// MAXIMUM PREFETCH LENGTH in blocks.
    pub prefetch_blocks_max: u32,
    /// MAXIMUM UNMAP LBA COUNT in blocks; 0: UNMAP does not exist, all ones: no limit.
    pub unmap_blocks_max: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; as above.
    pub unmap_descriptors_max: u32,
    /// OPTIMAL UNMAP GRANULARITY in blocks.
    pub unmap_granularity_blocks: u32,
    /// UNMAP GRANULARITY ALIGNMENT: the first LBA of the first grain, where it is told.
    pub unmap_alignment_lba: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH in blocks.
    pub write_same_blocks_max: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH in blocks; 0: WRITE ATOMIC does not exist.
    pub atomic_blocks_max: u32,
}

/// Asks for the Block Limits page.
pub fn limits() -> Query<BlockLimits> {
    query(vpd_page::BLOCK_LIMITS, |command, data| {
        let page = whole(command, data)?;
        let alignment = page.be32_told(32);
        Ok(BlockLimits {
            write_same_non_zero: page.bit_told(4, 0x01),
            compare_and_write_blocks_max: page.u8_told(5),
            optimal_granularity_blocks: page.be16_told(6),
            transfer_blocks_max: page.be32_told(8),
            optimal_transfer_blocks: page.be32_told(12),
            prefetch_blocks_max: page.be32_told(16),
            unmap_blocks_max: page.be32_told(20),
            unmap_descriptors_max: page.be32_told(24),
            unmap_granularity_blocks: page.be32_told(28),
            // The top bit is UGAVALID.
            unmap_alignment_lba: (alignment >> 31 != 0).then_some(alignment & 0x7fff_ffff),
            write_same_blocks_max: page.be64_told(36),
            atomic_blocks_max: page.be32_told(44),
        })
    })
}

/// How a medium moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rotation {
    /// Not told.
    #[default]
    Unknown,
    /// It does not: solid state.
    None,
    /// Revolutions per minute.
    PerMinute(u16),
}

/// Block Device Characteristics page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockDeviceCharacteristics {
    /// MEDIUM ROTATION RATE
    pub rotation: Rotation,
    /// NOMINAL FORM FACTOR, as the standard codes it.
    pub form_factor: u8,
    /// FUAB: FUA and SYNCHRONIZE CACHE are about the medium, not a cache that keeps its data without power.
    pub cache_reaches_medium: bool,
}

/// Asks for the Block Device Characteristics page.
pub fn characteristics() -> Query<BlockDeviceCharacteristics> {
    query(vpd_page::BLOCK_DEVICE_CHARACTERISTICS, |command, data| {
        let page = whole(command, data)?;
        Ok(BlockDeviceCharacteristics {
            rotation: match page.be16_told(4) {
                1 => Rotation::None,
                rate @ 0x0401..=0xfffe => Rotation::PerMinute(rate),
                _ => Rotation::Unknown,
            },
            form_factor: page.u8_told(7) & 0x0f,
            cache_reaches_medium: page.bit_told(8, 0x02),
        })
    })
}

/// PROVISIONING TYPE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProvisioningType {
    /// Not told, or every block has its space.
    #[default]
    Full,
    /// There is space for all blocks, and blocks can be given back.
    Resource,
    /// There need not be space for all.
    Thin,
    /// A reserved value.
    Other(u8),
}

/// Logical Block Provisioning page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// THRESHOLD EXPONENT: thresholds and log counters count in two to this power blocks; 0: there are none.
    pub threshold_exponent: u8,
    /// LBPU: UNMAP works.
    pub unmap: bool,
    /// LBPWS: WRITE SAME (16) unmaps.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME (10) unmaps.
    pub write_same_10: bool,
    /// LBPRZ: blocks without space read as zeros.
    pub reads_zeros: bool,
    /// ANC_SUP: blocks can be anchored.
    pub anchors: bool,
    /// PROVISIONING TYPE
    pub kind: ProvisioningType,
}

/// Asks for the Logical Block Provisioning page.
pub fn provisioning() -> Query<Provisioning> {
    query(vpd_page::LOGICAL_BLOCK_PROVISIONING, |command, data| {
        let page = whole(command, data)?;
        Ok(Provisioning {
            threshold_exponent: page.u8_told(4),
            unmap: page.bit_told(5, 0x80),
            write_same_16: page.bit_told(5, 0x40),
            write_same_10: page.bit_told(5, 0x20),
            reads_zeros: page.bit_told(5, 0x04),
            anchors: page.bit_told(5, 0x02),
            kind: match page.u8_told(6) & 0x07 {
                0 => ProvisioningType::Full,
                1 => ProvisioningType::Resource,
                2 => ProvisioningType::Thin,
                other => ProvisioningType::Other(other),
            },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(code: u8, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut data = vec![0; 64];
        data[1..4].copy_from_slice(&[code, 0, 60]);
        for &(at, value) in fields {
            data[at..at + value.len()].copy_from_slice(value);
        }
        data
    }

    #[test]
    fn block_limits() {
        let data = page(
            0xb0,
            &[(4, &[1, 255]), (8, &[0, 0, 8, 0]), (32, &[0x80, 0, 0, 7]), (36, &[0, 0, 0, 1, 0, 0, 0, 0])],
        );
        let page = limits().decode(&data).unwrap();
        assert!(page.write_same_non_zero);
        assert_eq!((page.compare_and_write_blocks_max, page.transfer_blocks_max), (255, 2048));
        assert_eq!(page.unmap_alignment_lba, Some(7));
        assert_eq!(page.write_same_blocks_max, 1 << 32);
    }

    /// The page had sixteen bytes in SBC-2.
    #[test]
    fn a_short_page_of_old_tells_less() {
        let mut data = vec![0; 16];
        data[..4].copy_from_slice(&[0, 0xb0, 0, 12]);
        data[11] = 9;
        let page = limits().decode(&data).unwrap();
        assert_eq!(page, BlockLimits { transfer_blocks_max: 9, ..BlockLimits::default() });
        assert_eq!(limits().decode(&data[..12]).unwrap_err().needed_bytes(), Some(16));
    }

    #[test]
    fn rotation() {
        let rate =
            |rate: u16| characteristics().decode(&page(0xb1, &[(4, &rate.to_be_bytes())])).unwrap().rotation;
        assert_eq!([rate(0), rate(1)], [Rotation::Unknown, Rotation::None]);
        assert_eq!([rate(7200), rate(0xffff)], [Rotation::PerMinute(7200), Rotation::Unknown]);
    }

    #[test]
    fn thin_units() {
        let page = provisioning().decode(&[0, 0xb2, 0, 4, 9, 0xe4, 2, 0]).unwrap();
        assert!(page.unmap && page.write_same_16 && page.write_same_10 && page.reads_zeros && !page.anchors);
        assert_eq!((page.threshold_exponent, page.kind), (9, ProvisioningType::Thin));
        assert_eq!(provisioning().decode(&[0, 0xb2, 0, 0]), Ok(Provisioning::default()));
    }
}
