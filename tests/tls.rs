//! TLS: with clients, and with MongoDB. Certificates are made for each test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::own_mongod::OwnMongod;
use common::server::{PATIENCE, Server, command, metric, until};
use mongodb::bson::doc;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An authority that signs certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate and its key.
    fn sign(&self, subject: &str) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        [params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem()]
    }

    fn client(&self) -> reqwest::ClientBuilder {
        let root = reqwest::Certificate::from_pem(self.pem.as_bytes()).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder().tls_certs_only([root]).timeout(PATIENCE)
    }
}

/// Files of certificates.
struct Files(tempfile::TempDir);

impl Files {
    fn new(own: [String; 2]) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write(own);
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn modified(&self, name: &str) -> std::time::SystemTime {
        std::fs::metadata(self.path(name)).unwrap().modified().unwrap()
    }

    fn set_modified(&self, name: &str, time: std::time::SystemTime) {
        std::fs::File::options().write(true).open(self.path(name)).unwrap().set_modified(time).unwrap();
    }

    fn write(&self, [certificate, key]: [String; 2]) {
        self.put("key.pem", &key);
        self.put("certificate.pem", &certificate);
    }
}

fn launch(files: &Files, settings: &[(&str, &str)]) -> Server {
    launch_logging(files, settings, Stdio::inherit())
}

fn launch_logging(files: &Files, settings: &[(&str, &str)], log: Stdio) -> Server {
    let (certificate, key) = (files.path("certificate.pem"), files.path("key.pem"));
    let own = [("TAILBACK_TLS__CERTIFICATE", certificate.as_str()), ("TAILBACK_TLS__KEY", key.as_str())];
    let mut command = command("sqlite::memory:", &[&own, settings].concat());
    command.stderr(log);
    let server = Server::of(command);
    assert!(server.base.starts_with("https://"), "{}", server.base);
    server
}

async fn is_served(client: &reqwest::Client, server: &Server) -> bool {
    let response = client.get(format!("{}/healthz", server.base)).send().await;
    response.is_ok_and(|response| response.status() == 200)
}

/// Waits until its store is there: it listens before.
async fn until_ready(client: &reqwest::Client, server: &Server) {
    until("the server is ready", || async {
        let response = client.get(format!("{}/readyz", server.base)).send().await;
        response.is_ok_and(|response| response.status() == 200)
    })
    .await;
}

#[tokio::test]
async fn calls_are_encrypted_and_plain_ones_get_nothing() {
    let authority = Authority::new("ours");
    let files = Files::new(authority.sign("server"));
    let server = launch(&files, &[]);
    let client = authority.client().build().unwrap();
    until_ready(&client, &server).await;
    let push = client.post(format!("{}/v1/queues/mail/jobs", server.base)).json(&json!({"payload": 1}));
    assert_eq!(push.send().await.unwrap().status(), 201);
    assert!(!is_served(&Authority::new("other").client().build().unwrap(), &server).await);

    let address = server.base.trim_start_matches("https://");
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await.expect("it is closed");
    assert!(!String::from_utf8_lossy(&answer).contains("200"), "{answer:?}");
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_closed() {
    let files = Files::new(Authority::new("ours").sign("server"));
    let server = launch(&files, &[("TAILBACK_TLS__HANDSHAKE_WAIT_MS", "500")]);
    for bytes in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut half = TcpStream::connect(server.base.trim_start_matches("https://")).await.unwrap();
        half.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, half.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "it is held for ever");
    }
}

/// A client that says nothing does not hold up the end of a server.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_handshake() {
    let authority = Authority::new("ours");
    let files = Files::new(authority.sign("server"));
    // Longer than a test waits for anything.
    let waits = [("TAILBACK_TLS__HANDSHAKE_WAIT_MS", "600000"), ("TAILBACK__SHUTDOWN_MS", "600000")];
    let mut server = launch(&files, &waits);
    let mut silent = TcpStream::connect(server.base.trim_start_matches("https://")).await.unwrap();
    silent.write_all(b"\x16").await.unwrap();
    server.http = authority.client().build().unwrap();
    until("it is accepted", || async { metric(&server, "tailback_http_connections").await >= 2.0 }).await;
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn a_new_certificate_is_used_and_drops_no_connection() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = Files::new(old.sign("server"));
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut server = launch_logging(&files, &[], Stdio::from(log.reopen().unwrap()));
    let open = old.client().pool_max_idle_per_host(1).build().unwrap();
    until_ready(&open, &server).await;

    // A call that waits while the certificate changes.
    let url = format!("{}/v1/queues/mail", server.base);
    let (waiter, ask) = (open.clone(), format!("{url}/reserve"));
    let waiting =
        tokio::spawn(async move { waiter.post(ask).json(&json!({"wait_ms": 60_000})).send().await });
    server.http = old.client().build().unwrap();
    until("it waits", || async { metric(&server, "tailback_waiting_consumers").await == 1.0 }).await;
    // What cannot be used changes nothing.
    files.put("certificate.pem", "-----BEGIN CERTIFICATE-----\nbroken\n");
    until("the server has looked at it", || async {
        let log = std::fs::read_to_string(log.path()).unwrap();
        log.contains("the new TLS certificate cannot be used")
    })
    .await;
    assert!(is_served(&old.client().build().unwrap(), &server).await, "the old one is still used");
    // What was in the way of a file may go without a new time of it.
    let times = ["certificate.pem", "key.pem"].map(|name| files.modified(name));
    files.write(new.sign("server"));
    ["certificate.pem", "key.pem"]
        .into_iter()
        .zip(times)
        .for_each(|(name, time)| files.set_modified(name, time));
    until("the new certificate is used", || async {
        is_served(&new.client().build().unwrap(), &server).await
    })
    .await;
    assert!(!is_served(&old.client().build().unwrap(), &server).await, "new connections have the new one");
    let push = new.client().build().unwrap().post(format!("{url}/jobs")).json(&json!({"payload": 1}));
    assert_eq!(push.send().await.unwrap().status(), 201);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200, "the connection was not dropped");
}

#[tokio::test]
async fn clients_present_certificates_where_they_must() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let files = Files::new(ours.sign("server"));
    files.put("clients.pem", &ours.pem);
    let server = launch(&files, &[("TAILBACK_TLS__CLIENT_CA", &files.path("clients.pem"))]);
    let with = |own: [String; 2]| {
        let identity = reqwest::Identity::from_pem(own.concat().as_bytes()).unwrap();
        ours.client().identity(identity).build().unwrap()
    };
    assert!(is_served(&with(ours.sign("worker")), &server).await);
    assert!(!is_served(&with(other.sign("worker")), &server).await, "of another authority");
    assert!(!is_served(&ours.client().build().unwrap(), &server).await, "without one");
}

#[tokio::test]
async fn files_that_cannot_be_used_end_the_start() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let [certificate, _] = ours.sign("server");
    let [_, key] = other.sign("server");
    let files = Files::new([certificate, key]);
    let start = |settings: &[(&str, String)]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailback"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", "sqlite::memory:"]);
        command.envs(settings.iter().map(|(name, value)| (*name, value.clone())));
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let certificate = ("TAILBACK_TLS__CERTIFICATE", files.path("certificate.pem"));
    let none = PathBuf::from(files.path("none.pem")).display().to_string();
    for (settings, says) in [
        (vec![certificate.clone()], "tls.key"),
        (vec![("TAILBACK_TLS__KEY", files.path("key.pem"))], "tls.certificate"),
        (vec![("TAILBACK_TLS__CLIENT_CA", files.path("key.pem"))], "tls.certificate"),
        (vec![certificate.clone(), ("TAILBACK_TLS__KEY", files.path("key.pem"))], "does not fit"),
        (vec![certificate.clone(), ("TAILBACK_TLS__KEY", none.clone())], "none.pem"),
        (vec![("TAILBACK_TLS__CERTIFICATE", none), ("TAILBACK_TLS__KEY", files.path("key.pem"))], "none.pem"),
    ] {
        let stderr = start(&settings);
        assert!(stderr.contains(says) && !stderr.contains("PRIVATE KEY"), "{says}: {stderr}");
    }
}

/// Runs a server over this MongoDB, and takes a job through it; whether it gets there. It is waited for so long that it becomes ready.
async fn works_over(url: &str, patience: Duration) -> bool {
    let server = Server::launch(url, &[]);
    let begin = Instant::now();
    loop {
        match server.try_send(reqwest::Method::GET, "/readyz", None).await {
            Ok((200, _)) => break,
            Ok(_) if begin.elapsed() > patience => return false,
            Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(_) => return false, // what another try cannot mend ends the start
        }
    }
    server.push("mail", json!({"payload": 1})).await;
    let jobs = server.reserve("mail", json!({})).await;
    server.settle(&jobs[0], "commit", json!({})).await.0 == 200
}

#[tokio::test]
async fn mongodb_is_reached_over_tls_with_credentials_or_a_certificate() {
    let authority = Authority::new("ours");
    let files = Files::new(authority.sign("server"));
    files.put("ca.pem", &authority.pem);
    files.put("mongod.pem", &authority.sign("mongod").concat());
    files.put("worker.pem", &authority.sign("worker").concat());
    files.put("secret", "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0");
    std::fs::set_permissions(files.path("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let mut mongod = OwnMongod::idle();
    for argument in ["--tlsMode", "requireTLS", "--tlsAllowConnectionsWithoutCertificates"] {
        mongod.arguments.push(argument.to_owned());
    }
    for (name, file) in [("--tlsCAFile", "ca.pem"), ("--tlsCertificateKeyFile", "mongod.pem")] {
        mongod.arguments.extend([name.to_owned(), files.path(file)]);
    }
    let tls = format!("&tls=true&tlsCAFile={}", files.path("ca.pem"));
    mongod.options = tls.clone();
    mongod.run().await;
    assert!(works_over(&mongod.url(), PATIENCE).await, "encrypted, without credentials");

    let roles = json!([{"role": "readWrite", "db": "tailback"}, {"role": "clusterMonitor", "db": "admin"}]);
    let roles = mongodb::bson::serialize_to_bson(&roles).unwrap();
    let user = doc! { "createUser": "tailback", "pwd": "canary-password", "roles": &roles };
    let client = mongodb::Client::with_uri_str(mongod.url()).await.unwrap();
    client.database("admin").run_command(user).await.unwrap();
    let user = doc! { "createUser": "CN=worker", "roles": roles };
    client.database("$external").run_command(user).await.unwrap();
    mongod.terminate().await;
    mongod.arguments.extend(["--auth".to_owned(), "--keyFile".to_owned(), files.path("secret")]);
    mongod.launch();

    let host = format!("127.0.0.1:{}/tailback?replicaSet=rs0{tls}", mongod.port());
    let user = |password| format!("mongodb://tailback:{password}@{host}&authSource=admin");
    assert!(works_over(&user("canary-password"), PATIENCE).await);
    let own = format!("tlsCertificateKeyFile={}", files.path("worker.pem"));
    let x509 = format!("mongodb://{host}&{own}&authMechanism=MONGODB-X509&authSource=$external");
    assert!(works_over(&x509, PATIENCE).await, "with a certificate");
    // Who has become ready has done so within moments, above.
    let moments = Duration::from_secs(5);
    assert!(!works_over(&user("wrong"), moments).await);
    assert!(!works_over(&format!("mongodb://{host}"), moments).await, "without credentials");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let authority = Authority::new("ours");
    let files = Files::new(authority.sign("server"));
    let server = launch(&files, &[("TAILBACK_LIMITS__WRITE_WAIT_MS", "1000")]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let tcp = TcpStream::connect(server.base.trim_start_matches("https://")).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
    // It sends until the server reads no more, and reads nothing.
    let (_unread, mut writer) = tokio::io::split(stream);
    let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1000);
    let sending = async { while writer.write_all(request.as_bytes()).await.is_ok() {} };
    assert!(tokio::time::timeout(PATIENCE, sending).await.is_ok(), "the connection is held for ever");
}
