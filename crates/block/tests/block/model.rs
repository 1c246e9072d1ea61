//! Random operations against a vector of bytes.

use lunette_cases::cases;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::common::{Bench, ENGINES, open_or_skip, spec};
use lunette_block::*;

const SIZE_BYTES: u64 = 512 << 10;
const LARGE_PAGE_BYTES: u64 = 2 << 20;

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, len: usize, fill: u8, stable: bool },
    Zero { offset: u64, length: u64, unmap: bool },
    Unmap { offset: u64, length: u64 },
    Read { offset: u64, len: usize },
    Flush,
    Extents { offset: u64, length: u64 },
}

/// An offset and a length within the volume; short ones and ones that cross chunks.
fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..SIZE_BYTES, prop_oneof![0..2048_u64, 0..200_000_u64])
        .prop_map(|(offset, length)| (offset, length.min(SIZE_BYTES - offset)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (range(), 1..=255_u8, any::<bool>()).prop_map(|((offset, length), fill, stable)| {
            Step::Write { offset, len: length as usize, fill, stable }
        }),
        1 => (range(), any::<bool>())
            .prop_map(|((offset, length), unmap)| Step::Zero { offset, length, unmap }),
        1 => range().prop_map(|(offset, length)| Step::Unmap { offset, length }),
        3 => range().prop_map(|(offset, length)| Step::Read { offset, len: length as usize }),
        1 => Just(Step::Flush),
        1 => range().prop_map(|(offset, length)| Step::Extents { offset, length }),
    ]
}

/// All that a range lends.
fn lent(range: &LentRange, length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = range.lend(bytes.len() as u32, length, true) {
        bytes.extend_from_slice(piece.bytes());
    }
    bytes
}

fn take(bench: &mut Bench, model: &mut [u8], step: Step) {
    let place = |offset: u64, length: u64| offset as usize..(offset + length) as usize;
    match step {
        Step::Write { offset, len, fill, stable } => {
            bench.write(offset, &vec![fill; len], stable).unwrap();
            model[place(offset, len as u64)].fill(fill);
        }
        Step::Zero { offset, length, unmap } => {
            bench.zero(offset..offset + length, unmap).unwrap();
            model[place(offset, length)].fill(0);
        }
        Step::Unmap { offset, length } => {
            if bench.volume.features().unmap {
                bench.unmap(offset..offset + length).unwrap();
                model[place(offset, length)].fill(0);
            }
        }
        Step::Read { offset, len } => {
            assert!(bench.read(offset, len).unwrap() == model[place(offset, len as u64)]);
            if let Some(range) = bench.volume.lendable(offset, len as u32) {
                assert!(lent(&range, len as u32) == model[place(offset, len as u64)]);
            }
        }
        Step::Flush => {
            bench.flush().unwrap();
        }
        Step::Extents { offset, length } => {
            for extent in bench.extents(offset..offset + length) {
                let bytes = &model[place(extent.offset, extent.length)];
                assert!(
                    extent.allocation == Allocation::Data || bytes.iter().all(|byte| *byte == 0),
                    "data in a hole: {extent:?}"
                );
            }
        }
    }
}

fn engine() -> impl Strategy<Value = EngineKind> {
    prop::sample::select(&ENGINES[..])
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn memory_is_a_vector(engine in engine(), steps in prop::collection::vec(step(), 1..40)) {
        let mut model = vec![0; SIZE_BYTES as usize];
        let mut bench = Bench::open(&spec(StoreSpec::Memory { size_bytes: SIZE_BYTES }, engine));
        steps.into_iter().for_each(|step| take(&mut bench, &mut model, step));
        prop_assert!(bench.read(0, SIZE_BYTES as usize).unwrap() == model);
    }

    /// With the rest of its large page in use, what is given back is kept for the next chunk; otherwise it is the system's.
    #[test]
    fn memory_in_large_pages_is_a_vector(
        is_rest_used in any::<bool>(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut model = vec![0; SIZE_BYTES as usize];
        let memory = spec(StoreSpec::Memory { size_bytes: LARGE_PAGE_BYTES }, EngineKind::Auto);
        let mut bench = Bench::open(&VolumeSpec { large_pages: true, ..memory });
        let rest = vec![if is_rest_used { 0xaa } else { 0 }; (LARGE_PAGE_BYTES - SIZE_BYTES) as usize];
        if is_rest_used {
            bench.write(SIZE_BYTES, &rest, false).unwrap();
        }
        steps.into_iter().for_each(|step| take(&mut bench, &mut model, step));
        prop_assert!(bench.read(0, SIZE_BYTES as usize).unwrap() == model);
        prop_assert!(bench.read(SIZE_BYTES, rest.len()).unwrap() == rest);
    }

    #[test]
    fn a_file_is_a_vector_also_after_reopening(
        engine in engine(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("a.img");
        let spec = spec(StoreSpec::File { path: path.clone(), create_bytes: Some(SIZE_BYTES) }, engine);
        let mut model = vec![0; SIZE_BYTES as usize];
        let Some(mut bench) = open_or_skip(&spec).map(Bench::new) else { return Ok(()) };
        steps.into_iter().for_each(|step| take(&mut bench, &mut model, step));
        bench.volume.close().unwrap();
        let mut bench = Bench::open(&spec);
        prop_assert!(bench.read(0, SIZE_BYTES as usize).unwrap() == model);
        prop_assert!(std::fs::read(&path).unwrap() == model);
    }
}
