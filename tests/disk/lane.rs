//! One file, the server over it, and what breaks the disk under it.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader};
use std::sync::Arc;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use crate::common::server::{AS_LEFT, Place, Server, client_with, command, until};
use crate::common::shim::{DiskFault, Shim};

use super::site::{Call, Site};

/// Servers that notice soon what has run out.
const PROMPT: (&str, &str) = ("TAILBACK_REAPER__INTERVAL_MS", "50");

/// The admin key, which clients show: a case that stores an API key must not lock them out.
const ADMIN: &str = "admin-key-of-the-cases-0123456789abcdef";

/// See the module's documentation. The server is there except between [`Lane::stop`] and [`Lane::start_again`].
pub struct Lane {
    place: Place,
    pub shim: Shim,
    /// The mistake that the server makes, if any: see `src/faults.rs`.
    pub bug: &'static str,
    server: Option<Arc<Server>>,
    sites: u64,
    shift_ms: i64,
}

impl Lane {
    /// A new file, and no server yet.
    pub async fn without_server() -> Self {
        let place = Place::sqlite().await;
        let shim = Shim::disk(&place.url);
        Self { place, shim, bug: "", server: None, sites: 0, shift_ms: 0 }
    }

    /// Starts a server over a new file.
    pub async fn start() -> Self {
        let mut lane = Self::without_server().await;
        lane.start_again().await;
        assert!(lane.shim.attached() > 0, "the library is not loaded");
        lane
    }

    /// Starts the server again, and waits until it is ready.
    pub async fn start_again(&mut self) {
        self.launch();
        self.server().until_ready().await;
    }

    /// Starts the server; returns whether it listens.
    pub fn launch(&mut self) -> bool {
        let mut environment = self.shim.environment();
        environment.extend([
            PROMPT,
            if self.bug.is_empty() { AS_LEFT } else { ("TAILBACK_BUG", self.bug) },
            ("TAILBACK_AUTH__ADMIN_KEY", ADMIN),
        ]);
        let mut child = command(&self.place.url, &environment).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let base = line.trim().strip_prefix("listening on ").unwrap_or_default().to_owned();
        // Dropping it waits for the end of a process that does not listen.
        let shown = HeaderValue::try_from(format!("Bearer {ADMIN}")).unwrap();
        let http = client_with(HeaderMap::from_iter([(AUTHORIZATION, shown)]));
        let server = Server { base, child, http, is_current: true };
        self.server = (!server.base.is_empty()).then(|| Arc::new(server));
        self.server.is_some()
    }

    /// Waits until a server that listens is ready, or has ended; returns whether it is ready. The line by which it says where it
    /// listens waits a second for the store: where the machine is busy it comes before a start that fails.
    pub async fn becomes_ready(&self) -> bool {
        let status = Cell::new(None);
        until("the server is ready, or ends", || async {
            let answer = self.server().try_send(Method::GET, "/readyz", None).await;
            status.set(answer.ok().map(|(status, _)| status));
            status.get().is_none_or(|status| status == 200)
        })
        .await;
        if status.get().is_none() {
            self.until_gone().await;
        }
        status.get().is_some()
    }

    /// Kills the server if it lives still, and waits for its end.
    pub fn stop(&mut self) {
        let server = self.server.take().map(Arc::try_unwrap);
        assert!(server.is_none_or(|server| server.is_ok()), "the server is used elsewhere");
    }

    /// Kills the server, heals its disk, and starts it again.
    pub async fn restart(&mut self) {
        self.stop();
        self.shim.heal();
        self.start_again().await;
    }

    /// Sets the clock ahead, by more than a day.
    pub fn wait_long(&mut self) {
        self.shift_ms += Call::LATER_MS;
        self.shim.shift_clock(self.shift_ms);
    }

    pub fn server(&self) -> &Arc<Server> {
        self.server.as_ref().unwrap()
    }

    /// Returns a site of a new name.
    pub fn site(&mut self) -> Site {
        self.sites += 1;
        Site { server: self.server().clone(), name: format!("site{}", self.sites) }
    }

    /// Returns the site of this name at the server of now.
    pub fn again(&self, name: &str) -> Site {
        Site { server: self.server().clone(), name: name.to_owned() }
    }

    /// Cuts the power while the server writes something else.
    pub async fn cut_power(&mut self, site: Site) {
        let push = site.post("/queues/@.cut/jobs", serde_json::json!({"payload": 1}));
        // Where the server writes something by itself between the two looks at its count, nothing is struck.
        loop {
            self.shim.arm_next(DiskFault::PowerCut);
            let answer = site.make(&push.act).await;
            if answer.is_none() {
                break;
            }
            assert_eq!(self.shim.struck(), 0, "the server lives without power");
        }
        drop(site);
        self.restart().await;
    }

    /// Stops the server as an operator does, and reads the file: it is sound, and nothing is left or miscounted.
    pub async fn finish(mut self) {
        let server = self.server.take().unwrap();
        let mut server = Arc::try_unwrap(server).ok().unwrap();
        assert!(server.terminate().await.success());
        drop(server);
        self.check(0);
        self.place.clear().await;
    }

    /// Reads the file, which no server has open: it is sound, has so many jobs, and they are counted right.
    pub fn check(&self, jobs: i64) {
        let db = rusqlite::Connection::open(self.place.url.strip_prefix("sqlite:").unwrap()).unwrap();
        let text = |sql: &str| db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(text("PRAGMA integrity_check"), "ok");
        assert_eq!(number("SELECT count(*) FROM jobs"), jobs);
        let miscounted = "SELECT count(*) FROM \
             (SELECT queue, ready, reserved, blocked, done, dead FROM counters EXCEPT SELECT queue, sum(state = 'ready'), sum(state = 'reserved'), sum(state = 'blocked'), \
             sum(state = 'done'), sum(state = 'dead') FROM jobs GROUP BY queue)";
        assert_eq!(number(miscounted), 0, "the counts are wrong");
        assert_eq!(
            number(
                "SELECT count(*) FROM (SELECT DISTINCT queue FROM jobs EXCEPT SELECT queue FROM counters)"
            ),
            0,
            "queues are not counted"
        );
    }

    /// Waits until the process has ended.
    pub async fn until_gone(&self) {
        let pid = self.server().child.id();
        until("the server is gone", || async {
            // One that has ended and was not waited for is shown as a zombie, once its last thread is gone.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            threads <= 1 && stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X']))
        })
        .await;
    }
}
