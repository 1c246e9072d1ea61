//! Which crate may depend on which, and what a PURE crate may use at all. The map is ARCHITECTURE.md; this table is its
//! enforcement. A crate that is not listed is an error, so a new one gets its row on the day it appears.

use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata};

use crate::report::{Report, Tally};
use crate::workspace::Workspace;

/// What one crate of the workspace may use.
struct Rule {
    package: &'static str,
    /// Workspace crates that it may depend on, in any kind of dependency.
    may_use: &'static [&'static str],
    /// PURE: no sockets, files, threads, clock or unseeded randomness.
    pure: bool,
}

const RULES: &[Rule] = &[
    Rule { package: "lunette-wire", may_use: &["lunette-cases"], pure: true },
    Rule { package: "lunette-scsi", may_use: &["lunette-cases"], pure: true },
    Rule { package: "lunette-iscsi", may_use: &["lunette-wire", "lunette-cases"], pure: true },
    Rule { package: "lunette-isns", may_use: &["lunette-cases"], pure: true },
    Rule { package: "lunette-link", may_use: &["lunette-cases"], pure: true },
    Rule { package: "lunette-nbd", may_use: &["lunette-cases"], pure: true },
    // What is set on connections within this machine.
    Rule { package: "lunette-tcp", may_use: &["lunette-skip"], pure: false },
    // How many cases a property test runs; only tests use it.
    Rule { package: "lunette-cases", may_use: &[], pure: false },
    // How a test says that it was skipped; only tests use it.
    Rule { package: "lunette-skip", may_use: &[], pure: false },
    Rule { package: "lunette-block", may_use: &["lunette-cases", "lunette-skip"], pure: false },
    Rule {
        package: "lunette-target",
        may_use: &[
            "lunette-iscsi",
            "lunette-isns",
            "lunette-scsi",
            "lunette-block",
            "lunette-wire",
            "lunette-tcp",
            "lunette-cases",
            "lunette-skip",
        ],
        pure: false,
    },
    Rule {
        package: "lunette-initiator",
        may_use: &[
            "lunette-iscsi",
            "lunette-isns",
            "lunette-scsi",
            "lunette-wire",
            "lunette-tcp",
            "lunette-cases",
            "lunette-skip",
        ],
        pure: false,
    },
    Rule { package: "lunette-workload", may_use: &["lunette-cases"], pure: true },
    Rule {
        package: "lunette-lab",
        may_use: &[
            "lunette-workload",
            "lunette-link",
            "lunette-wan",
            "lunette-initiator",
            "lunette-scsi",
            "lunette-wire",
            "lunette-block",
            "lunette-tcp",
            "lunette-cases",
            "lunette-skip",
        ],
        pure: false,
    },
    Rule { package: "lunette-wan", may_use: &["lunette-link", "lunette-tcp", "lunette-skip"], pure: false },
    Rule {
        package: "lunette-attach",
        may_use: &[
            "lunette-initiator",
            "lunette-nbd",
            "lunette-scsi",
            "lunette-wire",
            "lunette-tcp",
            "lunette-cases",
        ],
        pure: false,
    },
    Rule {
        package: "lunette-cli",
        may_use: &[
            "lunette-link",
            "lunette-wan",
            "lunette-attach",
            "lunette-lab",
            "lunette-workload",
            "lunette-target",
            "lunette-initiator",
            "lunette-iscsi",
            "lunette-scsi",
            "lunette-block",
            "lunette-wire",
            "lunette-cases",
            "lunette-skip",
        ],
        pure: false,
    },
    // Tests speak to the binary from outside and, where they need a fault or a look inside, to a target in process.
    Rule {
        package: "lunette-tests",
        may_use: &[
            "lunette-target",
            "lunette-initiator",
            "lunette-nbd",
            "lunette-iscsi",
            "lunette-isns",
            "lunette-scsi",
            "lunette-block",
            "lunette-wire",
            "lunette-wan",
            "lunette-cases",
            "lunette-skip",
        ],
        pure: false,
    },
    // The generator must not share the code that it measures, but for the layout of PDUs, digests, the hashes of CHAP and
    // what is set on sockets; its tests start the target by the harness.
    Rule {
        package: "lunette-bench",
        may_use: &["lunette-iscsi", "lunette-wire", "lunette-tcp", "lunette-tests"],
        pure: false,
    },
    Rule { package: "xtask", may_use: &["lunette-link", "lunette-tests"], pure: false },
];

/// External crates that a PURE crate may use: bytes, tables, checksums, hashes, seeded generators and error types,
/// nothing that does I/O.
const PURE_EXTERNAL: &[&str] = &[
    "base64",
    "bytes",
    "crc-fast",
    "crc32c",
    "md-5",
    "rand_xoshiro",
    "sha1",
    "sha2",
    "sha3",
    "slab",
    "stringprep",
    "subtle",
    "thiserror",
    "unicode-normalization",
    "zerocopy",
];

/// External crates that the tests of a PURE crate may use on top.
const PURE_EXTERNAL_TESTS: &[&str] = &["proptest"];

/// The clippy configuration that every PURE crate links.
const PURE_CLIPPY: &str = "pure.clippy.toml";

/// One crate of the workspace as the check sees it.
struct Node {
    name: String,
    directory: PathBuf,
    uses: Vec<Use>,
}

struct Use {
    name: String,
    of_workspace: bool,
    only_tests: bool,
}

/// The step.
pub(crate) fn step(workspace: &Workspace, report: &mut Report) {
    report.step("layers", |failures| {
        let graph = graph(&workspace.metadata()?);
        let mut faults = check(&graph);
        for node in graph.iter().filter(|node| rule(&node.name).is_some_and(|rule| rule.pure)) {
            faults.extend(check_pure_files(node, &workspace.root().join(PURE_CLIPPY)));
        }
        if !faults.is_empty() {
            faults.into_iter().for_each(|fault| failures.tell(fault));
            return Ok(Tally::FAILED);
        }
        println!("{} crates keep their directions", graph.len());
        Ok(Tally::PASSED)
    });
}

fn graph(metadata: &Metadata) -> Vec<Node> {
    let packages = metadata.workspace_packages();
    let names: Vec<String> = packages.iter().map(|package| package.name.to_string()).collect();
    let of_package = |package: &&cargo_metadata::Package| Node {
        name: package.name.to_string(),
        directory: package
            .manifest_path
            .parent()
            .map(|path| path.as_std_path().to_owned())
            .unwrap_or_default(),
        uses: package
            .dependencies
            .iter()
            .map(|dependency| Use {
                name: dependency.name.clone(),
                of_workspace: names.contains(&dependency.name),
                only_tests: dependency.kind == DependencyKind::Development,
            })
            .collect(),
    };
    packages.iter().map(of_package).collect()
}

fn rule(package: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.package == package)
}

/// Every edge against the table; returns one sentence a fault.
fn check(graph: &[Node]) -> Vec<String> {
    let mut faults = Vec::new();
    for node in graph {
        let Some(rule) = rule(&node.name) else {
            faults.push(format!("{} has no row in the table of xtask/src/layers.rs", node.name));
            continue;
        };
        for used in &node.uses {
            if used.of_workspace {
                if !rule.may_use.contains(&used.name.as_str()) {
                    faults.push(format!("{} must not depend on {}", node.name, used.name));
                }
            } else if rule.pure {
                let listed = PURE_EXTERNAL.contains(&used.name.as_str())
                    || (used.only_tests && PURE_EXTERNAL_TESTS.contains(&used.name.as_str()));
                if !listed {
                    faults.push(format!("{} is PURE and must not use {}", node.name, used.name));
                }
            }
        }
    }
    faults
}

/// A PURE crate forbids unsafe code and links the strict clippy configuration.
fn check_pure_files(node: &Node, pure_clippy: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let root = node.directory.join("src/lib.rs");
    let forbids = std::fs::read_to_string(&root)
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]"));
    if !forbids {
        faults.push(format!("{} is PURE: {} must say #![forbid(unsafe_code)]", node.name, root.display()));
    }
    let link = node.directory.join("clippy.toml");
    let linked = link.is_symlink()
        && link.canonicalize().is_ok_and(|path| pure_clippy.canonicalize().is_ok_and(|pure| path == pure));
    if !linked {
        faults.push(format!(
            "{} is PURE: {} must be a symbolic link to {PURE_CLIPPY}",
            node.name,
            link.display()
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uses: &[(&str, bool, bool)]) -> Node {
        let uses = uses.iter().map(|&(name, of_workspace, only_tests)| Use {
            name: name.to_owned(),
            of_workspace,
            only_tests,
        });
        Node { name: name.to_owned(), directory: PathBuf::new(), uses: uses.collect() }
    }

    #[test]
    fn accepts_what_the_table_lists() {
        let graph = [
            node("lunette-wire", &[("crc-fast", false, false), ("proptest", false, true)]),
            node("lunette-iscsi", &[("lunette-wire", true, false)]),
            node("lunette-target", &[("lunette-iscsi", true, false), ("socket2", false, false)]),
        ];
        assert_eq!(check(&graph), Vec::<String>::new());
    }

    #[test]
    fn refuses_edges_against_the_direction() {
        let graph = [
            node("lunette-wire", &[("lunette-iscsi", true, false)]),
            node("lunette-iscsi", &[("lunette-scsi", true, true)]),
            node("lunette-block", &[("lunette-scsi", true, false)]),
        ];
        assert_eq!(
            check(&graph),
            [
                "lunette-wire must not depend on lunette-iscsi",
                "lunette-iscsi must not depend on lunette-scsi",
                "lunette-block must not depend on lunette-scsi",
            ]
        );
    }

    #[test]
    fn refuses_input_output_in_a_pure_crate() {
        let graph = [node("lunette-scsi", &[("socket2", false, false), ("proptest", false, false)])];
        assert_eq!(
            check(&graph),
            [
                "lunette-scsi is PURE and must not use socket2",
                "lunette-scsi is PURE and must not use proptest"
            ]
        );
    }

    #[test]
    fn refuses_a_crate_without_a_row() {
        let graph = [node("lunette-surprise", &[])];
        assert_eq!(check(&graph).len(), 1);
    }

    #[test]
    fn refuses_a_pure_crate_without_its_guards() {
        let directory = tempfile::tempdir().expect("a directory");
        let pure_clippy = directory.path().join(PURE_CLIPPY);
        std::fs::write(&pure_clippy, "").expect("a file");
        let crate_directory = directory.path().join("crate");
        std::fs::create_dir_all(crate_directory.join("src")).expect("directories");
        std::fs::write(crate_directory.join("src/lib.rs"), "//! Nothing.\n").expect("a file");
        let mut pure = node("lunette-wire", &[]);
        pure.directory.clone_from(&crate_directory);
        assert_eq!(check_pure_files(&pure, &pure_clippy).len(), 2);

        std::fs::write(crate_directory.join("src/lib.rs"), "//! Nothing.\n#![forbid(unsafe_code)]\n")
            .expect("a file");
        std::os::unix::fs::symlink(&pure_clippy, crate_directory.join("clippy.toml")).expect("a link");
        assert_eq!(check_pure_files(&pure, &pure_clippy), Vec::<String>::new());
    }
}
