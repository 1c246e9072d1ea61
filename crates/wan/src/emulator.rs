//! The network as a whole: two ends and what is between them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;

use lunette_link::Link;

use crate::device::Device;
use crate::direction::{Direction, Statistics};
use crate::error::WanError;
use crate::namespace::Namespace;
use crate::warden::Warden;
use crate::watcher::{Keeping, Mark, Watcher, dropped};

/// The addresses of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Its name, and that of its device.
    pub name: &'static str,
    /// From the block for measurements of networks (RFC 2544, C.2.2).
    pub ipv4: Ipv4Addr,
    /// From the same block of IPv6 (RFC 5180, 8).
    pub ipv6: Ipv6Addr,
}

/// The near end.
pub const NEAR: End = End {
    name: "near",
    ipv4: Ipv4Addr::new(198, 18, 0, 1),
    ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1),
};

/// The far end.
pub const FAR: End =
    End { name: "far", ipv4: Ipv4Addr::new(198, 18, 0, 2), ipv6: Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2) };

/// The seed of the other direction, so that the two do not lose packets together.
const DOWN_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A running network. Dropping it ends it.
#[derive(Debug)]
pub struct Emulator {
    near: Namespace,
    far: Namespace,
    near_device: Arc<Device>,
    far_device: Arc<Device>,
    /// From the near end to the far one, and back.
    directions: [Direction; 2],
    /// Behind all else: it ends who is left.
    warden: Option<Warden>,
}

impl Emulator {
    /// Makes two namespaces with a link between them. All that the link leaves to chance comes from the seed.
    ///
    /// # Errors
    /// The process may not make namespaces or devices ([`crate::acquire_privileges`]), or the kernel has none.
    pub fn start(link: &Link, seed: u64) -> Result<Self, WanError> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let device = |namespace, end| Device::new(namespace, end, link.mtu).map(Arc::new);
        let (near_device, far_device) = (device(&near, NEAR)?, device(&far, FAR)?);
        let up = Direction::start("wan-up", [&near_device, &far_device], &link.up, seed)?;
        let down = [&far_device, &near_device];
        let down = Direction::start("wan-down", down, &link.down, seed ^ DOWN_SEED)?;
        Ok(Self { near, far, near_device, far_device, directions: [up, down], warden: None })
    }

    /// Has a process see to it that nobody is left at the ends when the network ends, even if this process is killed: what is there then
    /// is asked to end, and killed ten seconds later. The end of the network waits for it. To be set before anything is started
    /// there; the command is to call [`keep_watch`](crate::keep_watch) on its standard input.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn set_warden(&mut self, command: &mut Command) -> Result<(), WanError> {
        let started = Warden::start(command, [&self.near, &self.far]);
        self.warden = Some(started.map_err(WanError::of("a process that outlives this one"))?);
        Ok(())
    }

    /// The near end, whose address is [`NEAR`].
    #[must_use]
    pub const fn near(&self) -> &Namespace {
        &self.near
    }

    /// The far end, whose address is [`FAR`].
    #[must_use]
    pub const fn far(&self) -> &Namespace {
        &self.far
    }

    /// What was carried so far, from the near end to the far one and back.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn statistics(&self) -> io::Result<[Statistics; 2]> {
        let dropped = [dropped(&self.near, NEAR)?, dropped(&self.far, FAR)?];
        let [up, down] = &self.directions;
        Ok([up.statistics(dropped[0]), down.statistics(dropped[1])])
    }

    /// What looks at the network from any thread.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn watcher(&self) -> io::Result<Watcher> {
        let carried = self.directions.each_ref().map(|direction| Arc::clone(direction.carried()));
        Ok(Watcher::new(carried, [(self.near.try_clone()?, NEAR), (self.far.try_clone()?, FAR)]))
    }

    /// This moment, for [`Self::since`].
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn mark(&self) -> io::Result<Mark> {
        self.watcher()?.mark()
    }

    /// How the link was kept from then on.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn since(&self, mark: &Mark) -> io::Result<Keeping> {
        self.watcher()?.since(mark)
    }

    /// Puts another link between the ends, for all that is sent when this has returned. What is under way goes on, and stays in
    /// its order.
    ///
    /// # Errors
    /// The devices do not take the link's MTU, or a direction has stopped carrying.
    pub fn reshape(&self, link: &Link) -> io::Result<()> {
        self.near_device.set_mtu(&self.near, link.mtu)?;
        self.far_device.set_mtu(&self.far, link.mtu)?;
        let [up, down] = &self.directions;
        up.reshape(&link.up)?;
        down.reshape(&link.down)
    }

    /// Whether the kernel hands over several segments of a TCP connection at once, which raises how much can be carried.
    #[must_use]
    pub fn offloads(&self) -> bool {
        self.near_device.offloads() && self.far_device.offloads()
    }

    /// Whether both directions carry packets; one whose device fails stops. [`Self::end`] says why.
    #[must_use]
    pub fn carries(&self) -> bool {
        self.directions.iter().all(Direction::carries)
    }

    /// Ends the network.
    ///
    /// # Errors
    /// A direction had stopped carrying, because a device failed.
    pub fn end(self) -> io::Result<()> {
        let [mut up, mut down] = self.directions;
        up.end().and(down.end())
    }
}
