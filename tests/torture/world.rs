//! Three mongods and three servers, or one server over a file, with a gate before each and between all.

use std::time::{Duration, Instant};

use mongodb::bson::doc;

use super::net::{Gate, People};
use crate::common::fleet::kill_9;
use crate::common::own_mongod::OwnMongod;
use crate::common::server::{AS_LEFT, PATIENCE, Place, Server, until};
use crate::common::shim::Shim;
use crate::common::signal::{self, Signal};

/// How soon a set finds that its primary is away, as docs/reliability.md advises.
const ELECTION_TIMEOUT_MS: i32 = 2000;
const HEARTBEAT_MS: i32 = 500;
/// That of compose.yaml, and one so that a test need not wait for a member that stops in order.
const PARAMETERS: [&str; 2] =
    ["transactionLifetimeLimitSeconds=10", "shutdownTimeoutMillisForSignaledShutdown=1000"];

/// One member of the set, and the gate that all others know it by.
pub struct Member {
    pub mongod: OwnMongod,
    pub gate: Gate,
    pub name: String,
}

/// A server, and the gate that clients know it by.
pub struct Slot {
    pub server: Option<Server>,
    pub gate: Gate,
    pub name: String,
    /// Shifts its clock, and may break its disk.
    pub shim: Option<Shim>,
    /// An older version runs here now and then.
    pub is_old: bool,
}

pub struct World {
    pub members: Vec<Member>,
    pub slots: Vec<Slot>,
    pub url: String,
    /// Variables of every server.
    environment: Vec<(String, String)>,
    people: People,
    place: Option<Place>,
}

impl World {
    /// Three of each.
    pub async fn mongo(environment: &[(&str, &str)]) -> Self {
        let people = People::new();
        let mut members = Vec::new();
        for n in 0..3 {
            let mut mongod = OwnMongod::idle();
            mongod.set_parameters(&PARAMETERS);
            mongod.launch();
            let (gate, name) = (Gate::start(mongod.port(), &people).await, format!("m{n}"));
            people.meet(mongod.pid().unwrap(), &name);
            members.push(Member { mongod, gate, name });
        }
        initiate(&members).await;
        let hosts: Vec<String> =
            members.iter().map(|member| format!("127.0.0.1:{}", member.gate.port)).collect();
        let url = format!("mongodb://{}/tailback?replicaSet=rs0", hosts.join(","));
        let world = Self::with(members, url, 3, environment, people, None).await;
        world.until_primary().await;
        world
    }

    /// One server over a file.
    pub async fn sqlite(environment: &[(&str, &str)]) -> Self {
        let place = Place::sqlite().await;
        let url = place.url.clone();
        let environment = [&[AS_LEFT], environment].concat();
        Self::with(Vec::new(), url, 1, &environment, People::new(), Some(place)).await
    }

    async fn with(
        members: Vec<Member>,
        url: String,
        servers: usize,
        environment: &[(&str, &str)],
        people: People,
        place: Option<Place>,
    ) -> Self {
        let mut slots = Vec::new();
        for n in 0..servers {
            // The last server's clock is shifted; the only server's disk and clock.
            let shim =
                if place.is_some() { Some(Shim::disk(&url)) } else { (n + 1 == servers).then(Shim::clock) };
            let gate = Gate::start(0, &people).await;
            slots.push(Slot { server: None, gate, name: format!("s{n}"), shim, is_old: n == 1 });
        }
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut world = Self { members, slots, url, environment: environment.collect(), people, place };
        for n in 0..servers {
            world.start_server(n).await;
        }
        world.until_ready().await;
        world
    }

    /// Starts the server of this slot, and waits until it listens.
    pub async fn start_server(&mut self, n: usize) {
        let slot = &mut self.slots[n];
        let mut variables: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        // As it is shipped: clients meet 503 soon.
        variables.push(crate::common::server::SHIPPED_DEADLINE);
        variables.push(("TAILBACK_LOG__FILTER", "error"));
        let shim = slot.shim.as_ref().map(Shim::environment).unwrap_or_default();
        variables.extend(shim);
        let url = self.url.clone();
        let binary = crate::load::old_server().filter(|_| slot.is_old);
        let owned: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let launch = tokio::task::spawn_blocking(move || {
            let variables: Vec<(&str, &str)> =
                owned.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            Server::launch_binary(binary.as_deref(), &url, &variables)
        });
        let server = launch.await.unwrap();
        self.people.meet(server.child.id(), &slot.name);
        let port = server.base.rsplit(':').next().unwrap().parse().unwrap();
        slot.gate.lead_to(port);
        slot.server = Some(server);
    }

    /// What clients know.
    pub fn bases(&self) -> Vec<String> {
        self.slots.iter().map(|slot| format!("http://127.0.0.1:{}", slot.gate.port)).collect()
    }

    pub async fn kill_server(&mut self, n: usize) {
        if let Some(mut server) = self.slots[n].server.take()
            && server.child.try_wait().unwrap().is_none()
        {
            kill_9(&server).await;
        }
    }

    /// SIGTERM; it must end by itself.
    pub async fn terminate_server(&mut self, n: usize) {
        if let Some(mut server) = self.slots[n].server.take() {
            let status = server.terminate().await;
            assert!(status.success(), "{} ended with {status}", self.slots[n].name);
        }
    }

    pub fn signal_server(&self, n: usize, with: Signal) {
        if let Some(server) = &self.slots[n].server {
            signal::send(server.child.id(), with);
        }
    }

    /// Whether a process ended although nothing was done to it.
    pub fn check(&mut self) {
        for slot in &mut self.slots {
            if let Some(server) = &mut slot.server
                && let Some(status) = server.child.try_wait().unwrap()
                && slot.shim.as_ref().is_none_or(|shim| shim.struck() == 0)
            {
                panic!("{} ended by itself: {status}", slot.name);
            }
        }
    }

    /// The member that takes writes, if there is one.
    pub async fn primary(&self) -> Option<usize> {
        let hellos = self.members.iter().map(|member| async {
            if member.mongod.pid().is_none() {
                return false;
            }
            let hello = tokio::time::timeout(Duration::from_secs(2), member.mongod.hello()).await;
            hello.ok().flatten().is_some_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
        });
        futures::future::join_all(hellos).await.into_iter().position(|is_primary| is_primary)
    }

    pub async fn until_primary(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.primary().await.is_none() {
            assert!(
                Instant::now() < deadline,
                "waited in vain until there is a primary: {}",
                self.views().await
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What each member says of the set.
    async fn views(&self) -> String {
        let mut views = Vec::new();
        for member in &self.members {
            let status = member.mongod.command(doc! { "replSetGetStatus": 1 }).await;
            views.push(format!("{} ({:?}): {status:?}", member.name, member.mongod.pid()));
        }
        views.join("\n")
    }

    pub fn launch_member(&mut self, n: usize) {
        let Member { mongod, name, .. } = &mut self.members[n];
        mongod.launch();
        self.people.meet(mongod.pid().unwrap(), name);
    }

    /// Everything runs and is connected again, and is ready.
    pub async fn heal(&mut self) {
        for n in 0..self.members.len() {
            self.members[n].gate.heal();
            if self.members[n].mongod.pid().is_none() {
                self.launch_member(n);
            }
        }
        for n in 0..self.slots.len() {
            let slot = &mut self.slots[n];
            slot.gate.heal();
            let has_ended = |server: &mut Server| server.child.try_wait().unwrap().is_some();
            if slot.server.as_mut().is_none_or(has_ended) {
                slot.server = None;
                self.start_server(n).await;
            }
        }
        if !self.members.is_empty() {
            self.until_primary().await;
        }
        self.until_ready().await;
    }

    async fn until_ready(&self) {
        for slot in &self.slots {
            slot.server.as_ref().unwrap().until_ready().await;
        }
    }

    /// Removes what there is.
    pub async fn close(mut self) {
        for slot in &mut self.slots {
            slot.server = None;
        }
        if let Some(place) = self.place.take() {
            place.clear().await;
        }
    }
}

async fn initiate(members: &[Member]) {
    let electable = std::env::var("TAILBACK_TORTURE_ELECTABLE").map_or(members.len(), |n| n.parse().unwrap());
    let hosts = members.iter().enumerate().map(|(n, member)| {
        let host = format!("127.0.0.1:{}", member.gate.port);
        doc! { "_id": i32::try_from(n).unwrap(), "host": host, "priority": i32::from(n < electable) }
    });
    let settings =
        doc! { "electionTimeoutMillis": ELECTION_TIMEOUT_MS, "heartbeatIntervalMillis": HEARTBEAT_MS };
    let config = doc! { "_id": "rs0", "members": hosts.collect::<Vec<_>>(), "settings": settings };
    let first = &members[0].mongod;
    until("the set is initiated", || async {
        let all = futures::future::join_all(members.iter().map(|member| member.mongod.hello())).await;
        if all.iter().any(Option::is_none) {
            return false;
        }
        let _ = first.command(doc! { "replSetInitiate": config.clone() }).await;
        first.hello().await.is_some_and(|hello| hello.contains_key("setName"))
    })
    .await;
}
