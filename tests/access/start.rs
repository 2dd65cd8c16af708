//! With which keys a server starts, and where it listens.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use super::support::*;

fn serve(place: &Place, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(["serve", "--listen", "0.0.0.0:0", "--store", &place.url]);
    command.env("TAILBACK_LOG__FILTER", "warn").envs([UNHURRIED]).envs(environment.iter().copied());
    command
}

/// A server beyond loopback, which must start.
async fn exposed(place: &Place, environment: &[(&str, &str)]) -> Server {
    let mut command = serve(place, environment);
    command.stdout(std::process::Stdio::piped());
    let server = Server::of(command);
    server.until_ready().await;
    server
}

async fn refuses(command: Command) -> String {
    let mut command = command;
    let Output { status, stderr, .. } =
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(status.code(), Some(2));
    String::from_utf8_lossy(&stderr).into_owned()
}

pub async fn an_exposed_server_needs_a_key(place: &Place) {
    for environment in [&[][..], &[("TAILBACK_AUTH__REQUIRED", "true")][..]] {
        let said = refuses(serve(place, environment)).await;
        for way in ["auth.admin_key_file", "tailback keys create", "127.0.0.1", "auth.required = false"] {
            assert!(said.contains(way), "{said}");
        }
    }
    let mut server = exposed(place, &[("TAILBACK_AUTH__REQUIRED", "false")]).await;
    ok(&server.get("/v1/queues").await);
    server.terminate().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin.key");
    std::fs::write(&file, format!("{ADMIN}\n")).unwrap();
    let mut server = exposed(place, &[("TAILBACK_AUTH__ADMIN_KEY_FILE", file.to_str().unwrap())]).await;
    refused(&server.get("/v1/queues").await, 401, "unauthorized");
    let reader = key_for(&server, &["read"], &[]).await;
    server.terminate().await;
    let server = exposed(place, &[]).await;
    refused(&server.get("/v1/queues").await, 401, "unauthorized");
    ok(&get(&server, &reader, "/v1/queues").await);
}

pub async fn files_are_their_owners(place: &Place) {
    let server = locked(place).await;
    push(&server, ADMIN, "q", json!({"payload": 1})).await;
    let file = place.url.strip_prefix("sqlite:").unwrap();
    for suffix in ["", "-wal", "-shm", "-lock"] {
        let mode = std::fs::metadata(format!("{file}{suffix}")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}{suffix}");
    }
    drop(server);
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("a.key");
    let create = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
        command.args(["keys", "create", "--name", "a", "--scope", "read", "--store", &place.url]);
        command.arg("--output").arg(&key).output().unwrap()
    };
    let made = create();
    assert!(made.status.success(), "{made:?}");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&key).unwrap();
    assert!(text.starts_with("tb_"), "{text}");
    assert!(!String::from_utf8_lossy(&made.stdout).contains(text.trim()));
    assert_eq!(create().status.code(), Some(1), "a file that is there is not overwritten");
    let server = Server::start(&place.url).await;
    ok(&get(&server, text.trim(), "/v1/queues").await);
    drop(server);
    // A call that fails leaves no file in the way of the next one.
    let other = directory.path().join("b.key");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(["keys", "rotate", "AAAAAAAAAAAA", "--store", &place.url]);
    let failed = command.arg("--output").arg(&other).output().unwrap();
    assert!(!failed.status.success() && !other.exists(), "{failed:?}");
}
