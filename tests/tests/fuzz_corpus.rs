//! The fuzz targets' entry points on the committed corpus, on what the corpus becomes when a byte of it changes or its end
//! is cut off, and on noise. `cargo xtask fuzz` looks for new inputs.

use std::fs;
use std::path::{Path, PathBuf};

use lunette_tests::fuzz::ENTRIES;
use lunette_tests::random::Random;

/// Variants of each input.
const VARIANTS: usize = 200;
/// Inputs of noise per target.
const NOISE: usize = 300;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = repository().join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("an input"))).collect()
}

/// Runs an entry point; what fails names its input.
fn run(target: &str, entry: fn(&[u8]), what: &str, input: &[u8]) {
    if std::panic::catch_unwind(|| entry(input)).is_err() {
        panic!("fuzz target {target} fails on {what}: {input:02x?}");
    }
}

fn run_on_corpus(target: &str) {
    let (_, entry) = ENTRIES.iter().find(|(name, _)| *name == target).expect("an entry point");
    let corpus = corpus(target);
    assert!(corpus.len() >= 4, "the corpus of {target} has only {} inputs", corpus.len());
    for (path, input) in &corpus {
        let name = path.display().to_string();
        run(target, *entry, &name, input);
        let mut random = Random::new(input.len() as u64);
        for _ in 0..VARIANTS.min(input.len() * 8) {
            let mut variant = input.clone();
            for _ in 0..=random.below(3) {
                let position = random.below(variant.len() as u64) as usize;
                variant[position] = random.next() as u8;
            }
            variant.truncate(1 + random.below(2 * variant.len() as u64) as usize);
            run(target, *entry, &format!("a variant of {name}"), &variant);
        }
    }
    let mut random = Random::new(1);
    for _ in 0..NOISE {
        let length = random.below(400) as usize;
        let input: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        run(target, *entry, "noise", &input);
    }
}

#[test]
fn pdu() {
    run_on_corpus("pdu");
}

#[test]
fn text() {
    run_on_corpus("text");
}

#[test]
fn login() {
    run_on_corpus("login");
}

#[test]
fn session() {
    run_on_corpus("session");
}

#[test]
fn discovery() {
    run_on_corpus("discovery");
}

#[test]
fn initiator() {
    run_on_corpus("initiator");
}

#[test]
fn scsi() {
    run_on_corpus("scsi");
}

#[test]
fn answers() {
    run_on_corpus("answers");
}

#[test]
fn isns() {
    run_on_corpus("isns");
}

#[test]
fn nbd() {
    run_on_corpus("nbd");
}

#[test]
fn every_target_has_an_entry_point_a_source_and_a_corpus() {
    let listed = |directory: &str, ending: &str| {
        let entries = fs::read_dir(repository().join(directory)).expect(directory);
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry.expect("an entry").file_name().to_string_lossy().trim_end_matches(ending).to_owned()
            })
            .collect();
        names.sort();
        names
    };
    let mut names: Vec<&str> = ENTRIES.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(listed("fuzz/fuzz_targets", ".rs"), names);
    assert_eq!(listed("fuzz/corpus", ""), names);
}
