//! Which cells of a study are measured, on which targets, and in which order.

use lunette_link::Link;
use lunette_wan::Proxy;

use super::peer::Peer;
use super::probe::Probe;
use super::result::Lacking;
use super::runner::Laboratory;
use super::setting::{self, Key, Setting};
use super::{Cell, Parameter, Study, dalgic, disaster, lu, trinkle, varied};

/// The parameter of cells that have peers, and its value for our own target.
pub(crate) const TARGET: &str = "target";
const OURS: &str = "lunette";

/// A cell with its target, which is ours where it has no peer.
pub(super) struct Aimed {
    pub(super) cell: Cell,
    pub(super) peer: Option<Peer>,
}

impl Aimed {
    pub(super) fn link(&self) -> Option<&str> {
        self.cell.link.as_deref()
    }
}

impl Laboratory<'_> {
    /// The targets beside ours: those that were asked for, or else those of the study's own that are here; and why others are
    /// not. There are none where something is set that only ours has.
    pub(super) fn peers_of(&self, study: &Study) -> (Vec<Peer>, Vec<String>) {
        if !self.peers.is_empty() || self.is_proxied || setting::find(self.set, Key::Write).is_some() {
            return (self.peers.to_vec(), Vec::new());
        }
        let mut absent = Vec::new();
        let mut is_here = |peer: &Peer| {
            let lack = peer.check().err();
            absent.extend(lack.as_ref().map(ToString::to_string));
            lack.is_none()
        };
        let peers = study.peers().iter().copied().filter(|peer| is_here(peer)).collect();
        (peers, absent)
    }

    /// Whether there is time for a cell: beside targets that nobody has asked for, a quick run has those profiles alone that are
    /// compared by target, with standard frames: a short run on istgt takes twice as long as one on another.
    pub(super) fn has_time_for(&self, aimed: &Aimed, are_asked_for: bool) -> bool {
        are_asked_for || !self.is_quick || aimed.peer.is_none() || trinkle::is_compared(&aimed.cell)
    }

    /// Whether a cell is one of those that a quick run of all has no time for. Who asks for some cells alone has them all.
    pub(super) fn is_too_wide(&self, cell: &Cell) -> bool {
        let is_wide = || {
            lu::is_wide(cell) || dalgic::is_wide(cell) || disaster::is_wide(cell) || trinkle::is_wide(cell)
        };
        // Our target is in all of them.
        let asks_for_some = self.only.iter().any(|(name, value)| name != TARGET || value != OURS);
        self.is_quick && !asks_for_some && is_wide()
    }

    pub(super) fn wants(&self, cell: &Cell) -> bool {
        let has = |name: &str, value: &str| cell.parameters.iter().any(|own| own.0 == name && own.1 == value);
        // A cell names its target where there are others beside it.
        let is_ours = |name: &str, value: &str| {
            name == TARGET && value == OURS && cell.parameters.iter().all(|own| own.0 != TARGET)
        };
        self.only.iter().all(|(name, value)| has(name, value) || is_ours(name, value))
    }

    /// Why none of these cells is wanted, where that follows from what only some are to have: of which parameter there is none, or which
    /// value.
    pub(super) fn why_none(&self, cells: &[Aimed]) -> Option<String> {
        let cells: Vec<&Cell> = cells.iter().map(|aimed| &aimed.cell).collect();
        if self.only.is_empty() || cells.is_empty() || cells.iter().any(|cell| self.wants(cell)) {
            return None;
        }
        let varied = varied(cells.iter().map(|cell| cell.parameters.as_slice()));
        for (name, value) in self.only {
            let own = varied.iter().find(|parameter| parameter.name == name);
            // Where there is none beside it, our target is no parameter.
            let ours = Parameter { name: TARGET, values: vec![OURS.to_owned()] };
            let Some(own) = own.or((name == TARGET).then_some(&ours)) else {
                let names: Vec<&str> = varied.iter().map(|parameter| parameter.name).collect();
                return Some(format!("there is no {name}; there are {}", names.join(", ")));
            };
            if !own.values.contains(value) {
                let are = if own.values.len() == 1 { "is" } else { "are" };
                return Some(format!("no cell has {name}={value}; there {are} {}", own.values.join(", ")));
            }
        }
        let all: Vec<String> = self.only.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Some(format!("no cell has all of {} together", all.join(", ")))
    }

    /// A cell with what is set, which are parameters of it; nothing if it is over a link and has something of it not. What others are
    /// divided by stays for their sake, with as much of it as plain TCP has.
    pub(super) fn with_keys(&self, mut cell: Cell) -> Option<Cell> {
        if self.set.is_empty() {
            return Some(cell);
        }
        let is_ceiling = trinkle::is_ceiling(&cell);
        let is_of_tcp = |setting: &&Setting| matches!(setting.key, Key::Mtu | Key::TcpBufferBytes);
        let own: Vec<Setting> =
            self.set.iter().filter(|one| !is_ceiling || is_of_tcp(one)).copied().collect();
        let is_set = cell.link.is_some() && cell.probe.set(&own);
        if cell.link.is_some() && !is_set {
            return None;
        }
        cell.link = cell.link.map(|link| setting::link(self.set, &link));
        let has = |setting: &Setting| is_set && own.contains(setting);
        let value = |setting: &Setting| if has(setting) { setting.value() } else { "-".to_owned() };
        cell.parameters.extend(self.set.iter().map(|setting| (setting.key.name(), value(setting))));
        Some(cell)
    }

    /// A cell, and the same with each peer. Peers have sessions of one connection.
    pub(super) fn beside_peers(&self, cell: Cell) -> Vec<Aimed> {
        if self.peers.is_empty() {
            return vec![Aimed { cell, peer: None }];
        }
        let may_have = |peer: &Peer| match &cell.probe {
            Probe::Disk(disk) => disk.connections == 1 && disk.design.is_none() && disk.units == 1,
            // Both ends of a link in virtual machines measure nothing but these.
            Probe::Virtual(_) => *peer != Peer::Lio,
            _ => false,
        };
        let peers = self.peers.iter().copied().filter(|peer| cell.link.is_some() && may_have(peer));
        let peers: Vec<Peer> = peers.collect();
        let with = |peer: Option<Peer>| {
            let mut cell = cell.clone();
            let name = peer.map_or(OURS, Peer::name);
            cell.parameters.push((TARGET, name.to_owned()));
            match cell.of_peers.iter().find(|own| own.peer == name).cloned() {
                Some(own) => (cell.published, cell.beside) = (own.published, own.beside),
                // What was published of one target says nothing of another one.
                None if peer.is_some() => {
                    (cell.published, cell.published_times, cell.beside) = (None, None, Vec::new());
                }
                None => {}
            }
            Aimed { cell, peer }
        };
        std::iter::once(None).chain(peers.into_iter().map(Some)).map(with).collect()
    }
}

/// In which order cells are measured in a turn: one after the other, and the targets of a cell so that each of them comes first
/// as often as the others. Who comes first finds the machine as the cell before has left it.
pub(super) fn order(cells: &[Aimed], turn: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cells.len()).collect();
    // Peers stand behind the cell of ours that they have.
    for (number, of_cell) in order.chunk_by_mut(|_, &next| cells[next].peer.is_some()).enumerate() {
        of_cell.rotate_left((turn + number) % of_cell.len());
    }
    order
}

/// The cells that this machine has everything for, and what it lacks for the others.
pub(super) fn divided(cells: Vec<Aimed>, is_proxied: bool) -> (Vec<Aimed>, Vec<Lacking>) {
    let mut lacking: Vec<Lacking> = Vec::new();
    let needs_network = |aimed: &Aimed| is_proxied && (aimed.peer.is_some() || !passes_a_proxy(&aimed.cell));
    let lacks = |aimed: &Aimed| {
        let network = needs_network(aimed).then(|| NETWORK.to_owned());
        network.or_else(|| aimed.cell.probe.lacks())
    };
    let has_all = |aimed: &Aimed| match lacks(aimed) {
        None => true,
        Some(what) => {
            match lacking.iter_mut().find(|known| known.what == what) {
                Some(known) => known.cells += 1,
                None => lacking.push(Lacking { what, cells: 1 }),
            }
            false
        }
    };
    let able = cells.into_iter().filter(has_all).collect();
    (able, lacking)
}

/// What a proxy is not.
const NETWORK: &str = "a network (through a proxy there are no losses, no reservations, no windows of TCP's, and nothing but our own target)";

/// Whether a cell's figure means something through a proxy: a workload on the target of ours that each site has.
fn passes_a_proxy(cell: &Cell) -> bool {
    let Some(link) = &cell.link else { return true };
    let is_plain = match &cell.probe {
        Probe::Disk(disk) => disk.is_plain(),
        _ => false,
    };
    is_plain && link.parse::<Link>().is_ok_and(|link| Proxy::lacks(&link).is_none())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::study::study;

    /// A laboratory with peers, which measures nothing.
    pub(in crate::study) fn with_peers<T>(peers: &[Peer], told: impl FnOnce(&Laboratory<'_>) -> T) -> T {
        told(&Laboratory {
            binary: Path::new("/bin/false"),
            seed: 1,
            is_quick: false,
            stops: &AtomicBool::new(false),
            scratch: Path::new("/nowhere"),
            only: &[],
            set: &[],
            congestion_control: None,
            peers,
            is_proxied: false,
            patience: None,
        })
    }

    #[test]
    fn each_target_comes_first_as_often_as_the_others() {
        let peers = [Peer::Tgtd, Peer::Istgt];
        let cells: Vec<Aimed> = with_peers(&peers, |laboratory| {
            let cells = (study("dalgic-lan").expect("a study").cells)(1).into_iter().take(2);
            cells.flat_map(|cell| laboratory.beside_peers(cell)).collect()
        });
        assert_eq!(
            [0, 1, 2].map(|turn| order(&cells, turn)),
            [[0, 1, 2, 4, 5, 3], [1, 2, 0, 5, 3, 4], [2, 0, 1, 3, 4, 5]]
        );
        let alone: Vec<Aimed> = with_peers(&[], |laboratory| {
            let cells = (study("dalgic-lan").expect("a study").cells)(1).into_iter().take(3);
            cells.flat_map(|cell| laboratory.beside_peers(cell)).collect()
        });
        assert_eq!(order(&alone, 1), [0, 1, 2]);
    }

    #[test]
    fn published_figures_stand_beside_the_target_that_they_are_of() {
        let published = |name: &str| {
            with_peers(&[Peer::Tgtd], |laboratory| {
                let cell = (study(name).expect("a study").cells)(1).remove(0);
                let aimed = laboratory.beside_peers(cell);
                let told = |aimed: &Aimed| (aimed.peer, aimed.cell.published.is_some());
                aimed.iter().map(told).collect::<Vec<_>>()
            })
        };
        // Trinkle compares targets; Dalgic and others had one, which was none of these.
        assert_eq!(published("trinkle-profiles"), [(None, true), (Some(Peer::Tgtd), true)]);
        assert_eq!(published("dalgic-sweep"), [(None, true), (Some(Peer::Tgtd), false)]);
    }

    #[test]
    fn a_cell_without_others_beside_it_is_of_our_own_target() {
        let wanted = |peers: &[Peer], name: &str, value: &str| {
            let only = [(name.to_owned(), value.to_owned())];
            with_peers(peers, |laboratory| {
                let laboratory = Laboratory { only: &only, ..*laboratory };
                let cell = (study("trinkle-profiles").expect("a study").cells)(1).remove(0);
                let aimed = laboratory.beside_peers(cell).into_iter();
                aimed
                    .filter(|aimed| laboratory.wants(&aimed.cell))
                    .map(|aimed| aimed.peer)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(wanted(&[], "target", "lunette"), [None]);
        assert_eq!(wanted(&[Peer::Tgtd], "target", "lunette"), [None]);
        assert_eq!(wanted(&[Peer::Tgtd], "target", "tgtd"), [Some(Peer::Tgtd)]);
        assert_eq!((wanted(&[], "target", "tgtd"), wanted(&[], "mode", "lunette")), (vec![], vec![]));
    }

    #[test]
    fn ceilings_stay_beside_what_is_set_for_others() {
        let told = |set: &[&str]| {
            let set: Vec<Setting> = set.iter().map(|one| one.parse().expect("a setting")).collect();
            with_peers(&[], |laboratory| {
                let laboratory = Laboratory { set: &set, ..*laboratory };
                let cells = (study("trinkle-profiles").expect("a study").cells)(1).into_iter();
                let cells = cells.filter(trinkle::is_ceiling).filter_map(|cell| laboratory.with_keys(cell));
                let told = |cell: Cell| {
                    let set =
                        cell.parameters[3..].iter().map(|own| own.1.clone()).collect::<Vec<_>>().join(" ");
                    (cell.link.unwrap_or_default(), set)
                };
                cells.map(told).collect::<Vec<_>>()
            })
        };
        let all = told(&["depth=8", "mtu=9000"]);
        assert_eq!(all.len(), 5);
        assert_eq!(all[0], ("gige,mtu=9000".to_owned(), "- 9000".to_owned()));
        assert_eq!(all[4], (String::new(), "- -".to_owned()), "the store has neither");
    }

    #[test]
    fn a_quick_run_of_all_leaves_wide_cells_out() {
        let count = |name: &str, is_quick, only: &[(String, String)]| {
            with_peers(&[], |laboratory| {
                let laboratory = Laboratory { is_quick, only, ..*laboratory };
                let cells = (study(name).expect("a study").cells)(1).into_iter();
                cells.filter(|cell| laboratory.wants(cell) && !laboratory.is_too_wide(cell)).count()
            })
        };
        let all = ["lu-login", "dalgic-connections", "dr-wan", "dalgic-sweep", "trinkle-profiles"];
        assert_eq!(all.map(|name| count(name, false, &[])), [264, 128, 60, 96, 45]);
        // Of the profiles with a virtual initiator those alone that are compared by target.
        assert_eq!(all.map(|name| count(name, true, &[])), [132, 64, 36, 96, 25 + 4]);
        let between = [("added_ms".to_owned(), "200".to_owned())];
        assert_eq!(count("dr-wan", true, &between), 12);
    }

    #[test]
    fn what_is_lacking_is_told_once_with_the_cells_that_it_is_lacking_for() {
        let cells = (study("trinkle-profiles").expect("a study").cells)(1).into_iter();
        let (able, lacking) = divided(cells.map(|cell| Aimed { cell, peer: None }).collect(), true);
        // Those with a virtual initiator and plain TCP, at least.
        assert!((1..=21).contains(&able.len()), "{}", able.len());
        assert_eq!(lacking, [Lacking { what: NETWORK.to_owned(), cells: 45 - able.len() }]);
    }

    #[test]
    fn who_is_compared_is_there_without_being_asked_for() {
        let trinkle = study("trinkle-profiles").expect("a study");
        let installed: Vec<Peer> = trinkle::PEERS.into_iter().filter(|peer| peer.check().is_ok()).collect();
        let of = |peers: &[Peer], change: fn(&mut Laboratory<'_>), name| {
            with_peers(peers, |laboratory| {
                let mut laboratory = *laboratory;
                change(&mut laboratory);
                laboratory.peers_of(study(name).expect("a study"))
            })
        };
        let (peers, absent) = of(&[], |_| (), "trinkle-profiles");
        assert_eq!((&peers, absent.len()), (&installed, trinkle::PEERS.len() - installed.len()));
        assert!(absent.iter().all(|lack| lack.contains("Debian: apt-get install ")), "{absent:?}");
        assert_eq!(of(&[Peer::Lio], |_| (), "trinkle-profiles"), (vec![Peer::Lio], Vec::new()));
        assert_eq!(of(&[], |_| (), "dalgic-sweep"), (Vec::new(), Vec::new()));
        assert_eq!(of(&[], |laboratory| laboratory.is_proxied = true, "trinkle-profiles").0, []);

        // All of them, and in a quick run those of figures 4.21 and 4.22.
        let count = |is_quick, are_asked_for| {
            with_peers(&[Peer::Tgtd], |laboratory| {
                let laboratory = Laboratory { is_quick, ..*laboratory };
                let cells =
                    (trinkle.cells)(1).into_iter().filter(|cell| matches!(cell.probe, Probe::Disk(_)));
                let aimed = cells.flat_map(|cell| laboratory.beside_peers(cell));
                aimed.filter(|aimed| laboratory.has_time_for(aimed, are_asked_for)).count()
            })
        };
        // Twenty profiles, and the store, which has no target.
        assert_eq!((count(false, false), count(true, true), count(true, false)), (41, 41, 21 + 4));
    }
}
