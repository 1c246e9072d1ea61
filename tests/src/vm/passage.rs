//! A way from this process into the network of a guest: a port of the loopback address, and a process in the namespace for
//! each of its connections. So a session is driven from a test and goes to a target in the guest, and the test can cut it.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};

use super::network::{Network, enter};

/// Carries both directions until one end is closed, then closes the other one.
const CARRY: &str = r#"
exec 3<>"/dev/tcp/$1/$2" 4<&0 || exit
trap 'kill $(jobs -p) 2>/dev/null' EXIT
cat <&4 >&3 &
cat <&3 &
wait -n
"#;

/// The processes of the connections that there are.
type Carriers = Arc<Mutex<Vec<Child>>>;

/// A passage that is open; its connections end with it.
#[derive(Debug)]
pub struct Passage {
    address: SocketAddr,
    carriers: Carriers,
}

impl Passage {
    /// Opens one that leads to an address in `network`.
    ///
    /// # Errors
    /// There is no port for it.
    pub fn open(network: &Network, to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, carriers) = (listener.local_addr()?, Carriers::default());
        let (kept, holder) = (Arc::clone(&carriers), network.holder());
        // It goes on until this process ends; behind a network that is gone nothing is reached.
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // Whoever connected sees that its connection is closed.
                if let Ok(carrier) = carry(holder, near, to) {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(carrier);
                }
            }
        });
        Ok(Self { address, carriers })
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all connections that there are; new ones are carried again.
    pub fn cut(&self) {
        for mut carrier in self.carriers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The group may have ended by itself; its number is not used again before it was waited for.
            let _ = kill_process_group(Pid::from_child(&carrier), Signal::KILL);
            let _ = carrier.wait();
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.cut();
    }
}

fn carry(holder: u32, near: TcpStream, to: SocketAddr) -> io::Result<Child> {
    let mut command = enter(holder, "bash");
    command.args(["-c", CARRY, "carry", &to.ip().to_string(), &to.port().to_string()]);
    // The two are all that holds the connection: it is closed when they end.
    let (input, output) = (OwnedFd::from(near.try_clone()?), OwnedFd::from(near));
    command.stdin(input).stdout(output).process_group(0).spawn()
}
