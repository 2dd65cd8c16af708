//! `tailback dead`

use serde::Deserialize;

use super::client::{Call, query};
use super::failure::{DONE, Failure};
use super::table::{Cell, Table, Tone, number, text};
use super::time::age;
use super::{Context, Run};

/// Arguments of `dead`.
#[derive(Debug, clap::Args)]
pub struct Dead {
    /// Only in this queue
    #[arg(long, short)]
    queue: Option<String>,
    /// Only in queues whose names begin so
    #[arg(long, value_name = "PREFIX", conflicts_with = "queue")]
    prefix: Option<String>,
    /// How many groups (1 to 1000)
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Groups {
    groups: Vec<Group>,
    other: Option<Other>,
    scanned: u64,
    complete: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Group {
    error: String,
    count: u64,
    last_seen: Option<String>,
    queues: Vec<String>,
    samples: Vec<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Other {
    count: u64,
}

impl Run for Dead {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let path = query(
            "/v1/dead",
            &[
                ("group_by", Some("error".to_owned())),
                ("queue", self.queue),
                ("queue_prefix", self.prefix),
                ("limit", self.limit.map(|limit| limit.to_string())),
            ],
        );
        let answer = context.client.call(&Call::get(path)).await?;
        let out = context.out;
        if out.is_json {
            out.body(&answer.body)?;
            return Ok(DONE);
        }
        let dead: Groups = answer.read()?;
        let columns =
            [number("JOBS"), number("LAST"), text("ERROR"), text("QUEUES").spare(1), text("SAMPLE").spare(2)];
        let mut table = Table::new(&columns);
        for group in &dead.groups {
            let error = if group.error.is_empty() { "(none)" } else { &group.error };
            let sample = group.samples.first().map_or_else(String::new, |sample| {
                let id = sample.get("id").unwrap_or(sample);
                id.as_str().map_or_else(|| id.to_string(), str::to_owned)
            });
            table.row(vec![
                Cell::new(group.count.to_string(), Tone::Bad),
                Cell::from(group.last_seen.as_deref().map_or_else(String::new, age)),
                Cell::from(error),
                Cell::from(group.queues.join(", ")),
                Cell::from(sample),
            ]);
        }
        out.table(&table, "no dead jobs")?;
        if let Some(other) = dead.other.filter(|other| other.count > 0) {
            out.line(format!("{} more with other errors", other.count))?;
        }
        if !dead.complete {
            out.line(format!("only {} were counted: ask for fewer queues", dead.scanned))?;
        }
        Ok(DONE)
    }
}
