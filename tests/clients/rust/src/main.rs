//! What a generated Rust client does with a server of tomorrow.

use std::num::NonZero;

use serde_json::json;

progenitor::generate_api!(spec = "tailback-3.0.json", interface = Builder);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args().nth(1).ok_or("usage: tailback-client-check URL")?;
    let client = Client::new(&base);

    let payload = json!({"n": 1});
    let push = client.push_job().queue("rust").body_map(|body| body.payload(payload.clone())).send().await?;
    assert_eq!(push.state.as_str(), "resting");
    let job = client.get_job().id(push.id.clone()).send().await?;
    assert_eq!((&job.id, &job.payload), (&push.id, &payload));

    let reserved = client.reserve_jobs().queue("rust").body_map(|body| body.count(NonZero::new(1))).send().await?;
    let job = &reserved.jobs[0];
    let token = job.reservation.clone();
    let commit = client.commit_job().id(job.id.clone()).body_map(|body| body.reservation(token.as_str()));
    assert_eq!(commit.send().await?.state.as_str(), "resting");

    let again = client.commit_job().id(job.id.clone()).body_map(|body| body.reservation("x"));
    match again.send().await {
        Err(Error::ErrorResponse(problem)) => assert_eq!(problem.code.as_str(), "brand-new"),
        other => return Err(format!("a lost reservation: {other:?}").into()),
    }

    let patch = client.update_queue().queue("rust").body_map(|body| body.max_attempts(3));
    let changed = patch.send().await?;
    assert_eq!(changed.effective.as_ref().map(|effective| effective.max_attempts), Some(3));
    println!("rust: ok");
    Ok(())
}
