//! The line of the log with the cause of a failure has the trace of the request that failed, also where a round carried it.

use serde_json::{Value, json};

use crate::common::proxy::{Fault, Proxy};
use crate::common::server::{Place, Server, command, until};
use crate::on_one_store;
use crate::trace::receiver::{Receiver, context, post_in};

on_one_store! { mongo:
    the_line_with_the_cause_names_the_trace
}

async fn the_line_with_the_cause_names_the_trace(place: &Place) {
    let proxy = Proxy::before(&place.url).await;
    let receiver = Receiver::start().await;
    // Neither recorded nor exported, and recorded: then the round has a trace of its own as well.
    let exporting = receiver.environment("0").to_vec();
    for (recorded, more) in [("00", Vec::new()), ("01", exporting)] {
        let log = tempfile::NamedTempFile::new().unwrap();
        let environment = [("TAILBACK_LOG__FORMAT", "json"), ("TAILBACK_MONGODB__DEADLINE_MS", "1500")];
        let environment: Vec<_> = environment.into_iter().chain(more).collect();
        let mut command = command(&proxy.url(&place.url), &environment);
        command.stderr(std::fs::File::create(log.path()).unwrap());
        let server = Server::of(command);
        server.until_ready().await;
        let sent = context(recorded);
        let _away = proxy.every("insert", "jobs", Fault::HoldBefore);
        let path = "/v1/queues/logged/jobs";
        assert_eq!(post_in(&server, path, &[("traceparent", &sent)], json!({})).await.0, 503);
        let line = || {
            let text = std::fs::read_to_string(log.path()).unwrap();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.into_iter().find(|line| line["call"] == "push")
        };
        until("the log has the cause", || async { line().is_some() }).await;
        let (line, trace_id) = (line().unwrap(), sent.split('-').nth(1).unwrap().to_owned());
        assert_eq!(line["trace_id"], json!(trace_id), "{line}");
        let cause = line["error"].as_str().unwrap();
        assert!(cause.contains("no answer") || cause.contains("timeout"), "{line}");
    }
}
