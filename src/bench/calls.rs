//! The calls of a client: push, reserve, commit and pop, with minimal overhead.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use serde::Deserialize;

use super::client::Client;

/// The maximum size of a push, in bytes, when a scenario only fills a queue.
const FILL_BYTES: usize = 8 << 20;

/// A queue, and the paths of its calls.
#[derive(Debug, Clone)]
pub struct Queue {
    /// Its name.
    pub name: String,
    jobs: String,
    batch: String,
    reserve: String,
    pop: String,
    /// The path of its figures.
    pub stats: String,
}

impl Queue {
    /// Returns a new queue with a unique name, unaffected by earlier runs.
    pub fn unique() -> Self {
        Self::named(format!("bench-{:08x}", rand::random::<u32>()))
    }

    /// Returns `count` new queues whose names share a prefix.
    pub fn several(count: usize) -> Vec<Self> {
        let name = Self::unique().name;
        (0..count).map(|n| Self::named(format!("{name}-{n}"))).collect()
    }

    fn named(name: String) -> Self {
        let at = |call: &str| format!("/v1/queues/{name}/{call}");
        let (jobs, batch, reserve) = (at("jobs"), at("jobs/batch"), at("reserve"));
        Self { pop: at("pop"), stats: at("stats"), name, jobs, batch, reserve }
    }
}

/// Jobs to push: identical, serialized once; only their groups may differ.
#[derive(Debug)]
pub struct Jobs {
    one: String,
    many: String,
    batch: usize,
    groups: Option<Groups>,
}

/// The number of groups, assigned round-robin.
#[derive(Debug)]
struct Groups {
    count: usize,
    next: AtomicUsize,
}

impl Jobs {
    /// Returns jobs with a payload of `payload_bytes` bytes of text, pushed `batch` at a time.
    pub fn new(payload_bytes: usize, batch: usize) -> Self {
        Self::with(payload_bytes, batch, "")
    }

    /// Returns such jobs, spread round-robin over groups.
    pub fn grouped(payload_bytes: usize, batch: usize, groups: usize) -> Self {
        let groups = Some(Groups { count: groups.max(1), next: AtomicUsize::new(0) });
        Self { groups, ..Self::new(payload_bytes, batch) }
    }

    /// Returns such jobs with a route through these queues.
    pub fn along(payload_bytes: usize, batch: usize, route: &[Queue]) -> Self {
        let stages: Vec<String> =
            route.iter().map(|queue| format!("{{\"queue\":\"{}\"}}", queue.name)).collect();
        Self::with(payload_bytes, batch, &format!(",\"then\":[{}]", stages.join(",")))
    }

    /// Returns such jobs with additional fields, each preceded by a comma.
    pub fn with(payload_bytes: usize, batch: usize, fields: &str) -> Self {
        let one = format!("{{\"payload\":{{\"x\":\"{}\"}}{fields}}}", "x".repeat(payload_bytes));
        let many = list([one.as_str()].into_iter().cycle().take(if batch > 1 { batch } else { 0 }));
        Self { one, many, batch, groups: None }
    }

    /// Returns jobs that are pushed in batches of the maximum size.
    pub fn in_bulk(payload_bytes: usize) -> Self {
        Self::new(payload_bytes, (FILL_BYTES / (payload_bytes + 32)).clamp(1, 1000))
    }

    /// Returns the number of jobs per call.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the body that creates a batch of `count` of these jobs in a queue, with a callback in another.
    pub fn as_batch(&self, queue: &Queue, after: &Queue, count: usize) -> String {
        let job = self.one.strip_prefix('{').unwrap_or(&self.one);
        let job = format!("{{\"queue\":\"{}\",{job}", queue.name);
        let jobs = list([job.as_str()].into_iter().cycle().take(count));
        let jobs = jobs.strip_suffix('}').unwrap_or(&jobs);
        format!("{jobs},\"on_finished\":{{\"queue\":\"{}\",\"payload\":1}}}}", after.name)
    }

    fn one(&self) -> Cow<'_, str> {
        match &self.groups {
            None => Cow::Borrowed(&self.one),
            Some(Groups { count, next }) => {
                let group = next.fetch_add(1, Ordering::Relaxed) % count;
                let job = self.one.strip_suffix('}').unwrap_or(&self.one);
                Cow::Owned(format!("{job},\"group\":\"g{group}\"}}"))
            }
        }
    }

    fn body(&self, count: usize) -> Cow<'_, str> {
        if self.groups.is_none() && count == self.batch {
            return Cow::Borrowed(&self.many);
        }
        Cow::Owned(list((0..count).map(|_| self.one())))
    }
}

/// Returns the body that pushes jobs.
fn list(jobs: impl Iterator<Item = impl AsRef<str>>) -> String {
    let mut list = String::from("{\"jobs\":[");
    for (n, job) in jobs.enumerate() {
        list.push_str(if n > 0 { "," } else { "" });
        list.push_str(job.as_ref());
    }
    list.push_str("]}");
    list
}

/// The fields of a reserved job that this client uses.
#[derive(Debug, Deserialize)]
pub struct Reserved<'a> {
    id: &'a str,
    reservation: &'a str,
    /// When it was due (RFC 3339).
    pub run_at: &'a str,
}

#[derive(Deserialize)]
struct ReserveResponse<'a> {
    #[serde(borrow)]
    jobs: Vec<Reserved<'a>>,
}

/// A response with the next jobs.
#[derive(Deserialize)]
struct NextResponse<'a> {
    #[serde(borrow)]
    next: ReserveResponse<'a>,
}

#[derive(Deserialize)]
struct PopResponse {
    jobs: Vec<serde::de::IgnoredAny>,
}

/// The result for one of several jobs.
#[derive(Deserialize)]
struct Outcome {
    status: u16,
}

#[derive(Deserialize)]
struct PushResponse {
    results: Vec<Outcome>,
}

#[derive(Deserialize)]
struct SettleResponse {
    commit: Vec<Outcome>,
}

/// A client and the jobs that it has reserved.
pub struct Caller {
    client: Client,
    /// The commit of the jobs reserved last: path and body.
    commit: (String, String),
    /// The number of jobs in it.
    held: usize,
}

impl Caller {
    /// Returns a caller that uses this connection.
    pub fn new(client: Client) -> Self {
        Self { client, commit: Default::default(), held: 0 }
    }

    /// Pushes `count` jobs in one call.
    pub async fn push(&mut self, queue: &Queue, jobs: &Jobs, count: usize) -> anyhow::Result<()> {
        if jobs.batch == 1 {
            self.client.call("POST", &queue.jobs, &jobs.one()).await?;
            return Ok(());
        }
        self.push_body(queue, &jobs.body(count), count).await
    }

    /// Pushes the `count` jobs in `body`.
    pub async fn push_body(&mut self, queue: &Queue, body: &str, count: usize) -> anyhow::Result<()> {
        let response = self.client.call("POST", &queue.batch, body).await?;
        check(&serde_json::from_slice::<PushResponse>(response)?.results, 201, count, response)
    }

    /// Reserves up to `count` jobs, waiting up to `wait_ms` for the first; returns how many it got.
    pub async fn reserve(&mut self, queue: &Queue, count: usize, wait_ms: u64) -> anyhow::Result<usize> {
        self.reserve_each(queue, count, wait_ms, |_| Ok(())).await
    }

    /// Reserves a job as this worker; returns how many it got.
    pub async fn reserve_as(&mut self, queue: &Queue, worker: &str) -> anyhow::Result<usize> {
        let body = format!("{{\"worker\":\"{worker}\"}}");
        let response = self.client.call("POST", &queue.reserve, &body).await?;
        let jobs = serde_json::from_slice::<ReserveResponse<'_>>(response)?.jobs;
        let (path, commit);
        (self.held, path, commit) = hold(&jobs, 1)?;
        self.commit = (path, commit);
        Ok(self.held)
    }

    /// Reserves like [`Self::reserve`] and passes each job to `show`.
    pub async fn reserve_each(
        &mut self,
        queue: &Queue,
        count: usize,
        wait_ms: u64,
        mut show: impl FnMut(&Reserved<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let (path, body) = &mut self.commit;
        body.clear();
        write!(body, "{{\"count\":{count},\"wait_ms\":{wait_ms}}}")?;
        let response = self.client.call("POST", &queue.reserve, body).await?;
        let jobs = serde_json::from_slice::<ReserveResponse<'_>>(response)?.jobs;
        (self.held, *path, *body) = hold(&jobs, count)?;
        jobs.iter().try_for_each(&mut show)?;
        Ok(jobs.len())
    }

    /// Commits the jobs reserved last, and takes up to `count` next ones with the same call; returns how many it got.
    pub async fn commit_and_take(&mut self, count: usize) -> anyhow::Result<usize> {
        let (path, body) = &mut self.commit;
        body.pop(); // the end of the object
        write!(body, ",\"next\":{{\"count\":{count}}}}}")?;
        let response = self.client.call("POST", path, body).await?;
        if path == "/v1/settle" {
            check(&serde_json::from_slice::<SettleResponse>(response)?.commit, 200, self.held, response)?;
        }
        let jobs = serde_json::from_slice::<NextResponse<'_>>(response)?.next.jobs;
        (self.held, *path, *body) = hold(&jobs, count)?;
        Ok(jobs.len())
    }

    /// Commits the jobs reserved last.
    pub async fn commit(&mut self) -> anyhow::Result<()> {
        let (path, body) = &self.commit;
        let response = self.client.call("POST", path, body).await?;
        if path == "/v1/settle" {
            check(&serde_json::from_slice::<SettleResponse>(response)?.commit, 200, self.held, response)?;
        }
        Ok(())
    }

    /// Returns the path and the body of the commit of the job reserved last.
    pub fn held(&self) -> (String, String) {
        self.commit.clone()
    }

    /// Moves the job reserved last into another queue.
    pub async fn move_to(&mut self, queue: &Queue) -> anyhow::Result<()> {
        let (path, body) = &self.commit;
        let path = path.strip_suffix("commit").context("one job must be reserved")?;
        let reservation = body.strip_suffix('}').unwrap_or(body);
        let body = format!("{reservation},\"queue\":\"{}\"}}", queue.name);
        self.client.call("POST", &format!("{path}move"), &body).await.map(drop)
    }

    /// Pops a job; returns whether there was one.
    pub async fn pop(&mut self, queue: &Queue) -> anyhow::Result<bool> {
        let response = self.client.call("POST", &queue.pop, "{}").await?;
        Ok(!serde_json::from_slice::<PopResponse>(response)?.jobs.is_empty())
    }

    /// Sends any other request.
    pub async fn send(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        self.client.call(method, path, body).await.map(drop)
    }

    /// Gets a path; returns the size of the response, in bytes.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<usize> {
        Ok(self.client.call("GET", path, "").await?.len())
    }

    /// Deletes a queue with all of its jobs.
    pub async fn delete(&mut self, queue: &Queue) -> anyhow::Result<()> {
        self.client.call("DELETE", &format!("/v1/queues/{}?force=true", queue.name), "").await?;
        Ok(())
    }
}

/// Returns how many jobs are held, and the path and the body of their commit.
fn hold(jobs: &[Reserved<'_>], count: usize) -> anyhow::Result<(usize, String, String)> {
    let (mut path, mut body) = (String::new(), String::new());
    if let ([job], 1) = (jobs, count) {
        write!(path, "/v1/jobs/{}/commit", job.id)?;
        write!(body, "{{\"reservation\":\"{}\"}}", job.reservation)?;
    } else {
        path.push_str("/v1/settle");
        for job in jobs {
            let open = if body.is_empty() { "{\"commit\":[" } else { "," };
            write!(body, "{open}{{\"id\":\"{}\",\"reservation\":\"{}\"}}", job.id, job.reservation)?;
        }
        body.push_str("]}");
    }
    Ok((jobs.len(), path, body))
}

/// Checks that there is one result for each job, each with this status.
fn check(results: &[Outcome], status: u16, count: usize, response: &[u8]) -> anyhow::Result<()> {
    anyhow::ensure!(
        results.len() == count,
        "{count} jobs were sent, but {} results were returned",
        results.len()
    );
    let Some(at) = results.iter().position(|result| result.status != status) else { return Ok(()) };
    // Only in this case, where speed no longer matters, is the response parsed as a whole.
    let response: serde_json::Value = serde_json::from_slice(response)?;
    let lists = response.as_object().into_iter().flatten();
    let element = lists.filter_map(|(_, list)| list.get(at)).next().unwrap_or(&response);
    anyhow::bail!("a job was rejected: {element}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_written_once_for_each_size() {
        let jobs = Jobs::new(2, 3);
        assert_eq!(jobs.one, r#"{"payload":{"x":"xx"}}"#);
        assert!(matches!(jobs.body(3), Cow::Borrowed(_)));
        assert_eq!(jobs.body(2), r#"{"jobs":[{"payload":{"x":"xx"}},{"payload":{"x":"xx"}}]}"#);
        let grouped = Jobs::grouped(0, 1, 2);
        let third = [grouped.one(), grouped.one(), grouped.one()].into_iter().last().unwrap();
        assert_eq!(third, r#"{"payload":{"x":""},"group":"g0"}"#);
        assert_eq!(Jobs::in_bulk(200).batch(), 1000);
        assert_eq!(Jobs::in_bulk(4 << 20).batch(), 1);
    }

    #[test]
    fn a_batch_is_written_with_its_callback() {
        let text = Jobs::new(1, 2).as_batch(&Queue::named("q".into()), &Queue::named("a".into()), 2);
        let batch: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(batch["jobs"][1], serde_json::json!({"queue": "q", "payload": {"x": "x"}}));
        assert_eq!(batch["on_finished"]["queue"], "a");
    }

    #[test]
    fn a_reserved_job_is_read_without_copying() {
        let text = br#"{"jobs":[{"id":"A","x":[1,{"id":"B"}],"run_at":"2026-01-31T08:00:00.000Z","reservation":"C"}]}"#;
        let jobs = serde_json::from_slice::<ReserveResponse<'_>>(text).unwrap().jobs;
        assert_eq!((jobs[0].id, jobs[0].reservation, jobs[0].run_at), ("A", "C", "2026-01-31T08:00:00.000Z"));
    }

    #[test]
    fn every_job_must_have_its_result() {
        let outcomes = |statuses: &[u16]| -> Vec<Outcome> {
            statuses.iter().map(|status| Outcome { status: *status }).collect()
        };
        assert!(check(&outcomes(&[200, 200]), 200, 2, b"").is_ok());
        assert!(check(&outcomes(&[200]), 200, 2, b"").is_err());
        let response = br#"{"commit":[{"status":200},{"status":409,"problem":"lost"}],"rollback":[]}"#;
        let error = check(&outcomes(&[200, 409]), 200, 2, response).unwrap_err().to_string();
        assert_eq!(error, r#"a job was rejected: {"status":409,"problem":"lost"}"#);
    }
}
