//! Proxies that can be cut, held one way or both, and slowed, for each program that connects through them. A program
//! is recognized by the socket that it opened: `/proc` says whose it is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
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

/// A connection whose program is asked for: its local port, and who asks.
type Asked = (u16, oneshot::Sender<String>);

/// The programs that are recognized, by the ids of their processes.
#[derive(Clone)]
pub struct People {
    known: Arc<Mutex<HashMap<u32, String>>>,
    asked: mpsc::Sender<Asked>,
}

impl People {
    pub fn new() -> Self {
        let (known, (asked, questions)) = (Arc::default(), mpsc::channel());
        let people = Self { known, asked };
        let known = people.known.clone();
        std::thread::spawn(move || recognize(&known, &questions));
        people
    }

    /// From now on this process is known by this name.
    pub fn meet(&self, pid: u32, name: &str) {
        let mut known = self.known.lock().unwrap();
        known.retain(|_, other| other != name);
        known.insert(pid, name.to_owned());
    }

    /// Whose socket has this local port; nobody's: a client's.
    async fn at_port(&self, port: u16) -> String {
        let (answer, name) = oneshot::channel();
        self.asked.send((port, answer)).unwrap();
        name.await.unwrap()
    }
}

/// Answers all that have asked meanwhile with one look at `/proc`. A look for each connection, on the threads that carry the
/// others, took so long where there were thousands of sockets that no member got a connection in time, and all tried again.
fn recognize(known: &Mutex<HashMap<u32, String>>, questions: &mpsc::Receiver<Asked>) {
    while let Ok(first) = questions.recv() {
        let asked: Vec<Asked> = std::iter::once(first).chain(questions.try_iter()).collect();
        let known = known.lock().unwrap().clone();
        let names = names(&known, asked.iter().map(|(port, _)| *port).collect());
        for (port, answer) in asked {
            let _ = answer.send(names.get(&port).map_or("client", String::as_str).to_owned());
        }
    }
}

/// The names of those to whom connected sockets with these local ports belong.
fn names(known: &HashMap<u32, String>, ports: HashSet<u16>) -> HashMap<u16, String> {
    let (mut inodes, mut names) = (inodes(&ports), HashMap::new());
    for (pid, name) in known {
        for file in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            if inodes.is_empty() {
                return names;
            }
            let to = std::fs::read_link(file.path()).unwrap_or_default();
            let inode = to.to_str().and_then(|to| to.strip_prefix("socket:[")?.strip_suffix(']'));
            if let Some(port) = inode.and_then(|inode| inodes.remove(inode)) {
                names.insert(port, name.clone());
            }
        }
    }
    names
}

/// The inodes of the sockets on 127.0.0.1 with these local ports that are connected.
fn inodes(ports: &HashSet<u16>) -> HashMap<String, u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let inode = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let port = u16::from_str_radix(fields.next()?.strip_prefix("0100007F:")?, 16).ok()?;
        let is_connected = fields.nth(1)? == "01";
        (is_connected && ports.contains(&port)).then(|| Some((fields.nth(5)?.to_owned(), port)))?
    };
    table.lines().filter_map(inode).collect()
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
                    let link = shared.link(&shared.people.at_port(address.port()).await);
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
