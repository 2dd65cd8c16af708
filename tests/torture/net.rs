//! Proxies that can be cut, held one way or both, and slowed, for each program that connects through them. A program
//! is recognized by the socket that it opened: `/proc` says whose it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to the connections from one program through one gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// What the program sends arrives.
    pub sends: bool,
    /// What it is sent arrives.
    pub receives: bool,
    /// What it is sent is thrown away, and the connection closed instead.
    pub loses: bool,
    pub delay: Duration,
    /// Connections are reset when this changes.
    pub epoch: u64,
}

impl Default for Link {
    fn default() -> Self {
        Self { sends: true, receives: true, loses: false, delay: Duration::ZERO, epoch: 0 }
    }
}

/// The programs that are recognized, by the ids of their processes.
#[derive(Clone, Default)]
pub struct People(Arc<Mutex<HashMap<u32, String>>>);

impl People {
    /// From now on this process is known by this name.
    pub fn meet(&self, pid: u32, name: &str) {
        let mut people = self.0.lock().unwrap();
        people.retain(|_, known| known != name);
        people.insert(pid, name.to_owned());
    }

    /// Whose socket has this local port; nobody's: a client's.
    fn at_port(&self, port: u16) -> String {
        let found = inode(port).and_then(|inode| {
            let people = self.0.lock().unwrap().clone();
            let socket = format!("socket:[{inode}]");
            people.into_iter().find(|(pid, _)| {
                let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
                files
                    .filter_map(|file| std::fs::read_link(file.path()).ok())
                    .any(|to| to.as_os_str() == socket.as_str())
            })
        });
        found.map_or_else(|| "client".to_owned(), |(_, name)| name)
    }
}

/// The inode of the socket on 127.0.0.1 with this local port that is connected.
fn inode(port: u16) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let local = format!("0100007F:{port:04X}");
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut fields = fields.filter(|fields| fields.get(1) == Some(&local.as_str()));
    fields.find(|fields| fields.get(3) == Some(&"01")).and_then(|fields| Some((*fields.get(9)?).to_owned()))
}

struct Shared {
    /// Where connections go: a port on this machine.
    target: Mutex<u16>,
    people: People,
    links: Mutex<HashMap<String, watch::Sender<Link>>>,
}

impl Shared {
    fn link(&self, name: &str) -> watch::Receiver<Link> {
        self.links
            .lock()
            .unwrap()
            .entry(name.to_owned())
            .or_insert_with(|| watch::channel(Link::default()).0)
            .subscribe()
    }
}

/// A port that leads to another one.
pub struct Gate {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Gate {
    pub async fn start(target: u16, people: &People) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared =
            Arc::new(Shared { target: Mutex::new(target), people: people.clone(), links: Mutex::default() });
        let own = shared.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((client, address)) = listener.accept().await else { continue };
                let shared = own.clone();
                tokio::spawn(async move {
                    let link = shared.link(&shared.people.at_port(address.port()));
                    let target = *shared.target.lock().unwrap();
                    carry(client, target, link).await;
                });
            }
        });
        Self { port, shared, accepting }
    }

    /// From now on new connections go there.
    pub fn lead_to(&self, target: u16) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// Changes what happens to the connections of this program.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Link)) {
        drop(self.shared.link(name));
        self.shared.links.lock().unwrap()[name].send_modify(change);
    }

    /// Everything passes again.
    pub fn heal(&self) {
        for link in self.shared.links.lock().unwrap().values() {
            link.send_modify(|link| *link = Link { epoch: link.epoch, ..Link::default() });
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(client: TcpStream, target: u16, mut link: watch::Receiver<Link>) {
    let epoch = link.borrow_and_update().epoch;
    // Nothing is connected while nothing that is sent arrives.
    if link.wait_for(|link| link.sends || link.epoch != epoch).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = link.clone();
    tokio::select! {
        () = pump(from_client, to_server, link.clone(), |link| link.sends, |_| false) => {}
        () = pump(from_server, to_client, link, |link| link.receives, |link| link.loses) => {}
        _ = cut.wait_for(|link| link.epoch != epoch) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut link: watch::Receiver<Link>,
    passes: impl Fn(&Link) -> bool,
    loses: impl Fn(&Link) -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let delay = match link.wait_for(|link| passes(link)).await {
            Ok(link) if loses(&link) => return,
            Ok(link) => link.delay,
            Err(_) => return,
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
