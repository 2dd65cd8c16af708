//! Three mongods, of which one has what no majority has.

use mongodb::bson::doc;

use crate::common::own_mongod::OwnMongod;
use crate::common::server::until;

/// Longer than any of these tests takes: the primary stays what it is, also while it hears from no other member.
const ELECTION_TIMEOUT_MS: i32 = 600_000;

/// See the module's documentation. The two secondaries can be frozen: then the primary goes on, and no majority has what it does.
pub struct Set {
    pub members: Vec<OwnMongod>,
}

impl Set {
    pub async fn start() -> Self {
        let mut members: Vec<OwnMongod> = std::iter::repeat_with(OwnMongod::idle).take(3).collect();
        members.iter_mut().for_each(OwnMongod::launch);
        let hosts = members.iter().enumerate().map(|(n, member)| {
            let host = format!("127.0.0.1:{}", member.port());
            doc! { "_id": i32::try_from(n).unwrap(), "host": host, "priority": if n == 0 { 2 } else { 1 } }
        });
        let settings = doc! { "electionTimeoutMillis": ELECTION_TIMEOUT_MS };
        let config = doc! { "_id": "rs0", "members": hosts.collect::<Vec<_>>(), "settings": settings };
        until("the first member is the primary", || async {
            let all = futures::future::join_all(members.iter().map(OwnMongod::hello)).await;
            if all.iter().any(Option::is_none) {
                return false;
            }
            let first = &members[0];
            // Later ones find it done, or under way.
            let _ = first.command(doc! { "replSetInitiate": config.clone() }).await;
            let _ = first.command(doc! { "replSetStepUp": 1 }).await;
            let hello = first.hello().await;
            hello.is_some_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
        })
        .await;
        Self { members }
    }

    pub fn url(&self) -> String {
        self.members[0].url()
    }

    pub fn stall(&self) {
        self.members[1..].iter().for_each(OwnMongod::freeze);
    }

    pub fn go_on(&self) {
        self.members[1..].iter().for_each(OwnMongod::thaw);
    }

    /// The URL by which a server finds whichever member is the primary.
    pub fn url_of_all(&self) -> String {
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        format!("mongodb://{}/tailback?replicaSet=rs0", hosts.join(","))
    }

    /// The primary goes on alone: no other member gets what it does from now on.
    pub fn cut_off(&mut self) {
        self.members[1..].iter_mut().for_each(OwnMongod::kill);
    }

    /// The primary is gone with what it did alone, and the second member takes its place.
    pub async fn fail_over(&mut self) {
        self.members[0].kill();
        self.members[1..].iter_mut().for_each(OwnMongod::launch);
        let second = &self.members[1];
        until("the second member is the primary", || async {
            let _ = second.command(doc! { "replSetStepUp": 1 }).await;
            let hello = second.hello().await;
            hello.is_some_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
        })
        .await;
    }
}
