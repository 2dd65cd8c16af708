//! TLS: the server's certificate, which is read again when its files change, and the certificates of clients.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{RootCertStore, crypto};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Which certificates are used.
#[derive(Debug, Clone)]
pub struct Files {
    /// The server's certificate and those between it and its authority, as PEM.
    pub certificate: PathBuf,
    /// The certificate's key, as PEM.
    pub key: PathBuf,
    /// The authorities of the clients' certificates, as PEM; without them, clients need none.
    pub client_ca: Option<PathBuf>,
}

/// How connections are encrypted.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which certificates are used.
    pub files: Files,
    /// The timeout for a handshake.
    pub handshake_wait: Duration,
}

/// Encrypts connections with the certificate that the files have now.
pub struct Tls {
    options: Options,
    current: RwLock<Arc<ServerConfig>>,
    /// When the files were written that were read first.
    read_of: Vec<Option<SystemTime>>,
}

impl Tls {
    /// Reads the files.
    pub fn open(options: Options) -> anyhow::Result<Self> {
        let read_of = modified(&options.files); // before: what is written meanwhile is read again
        let current = RwLock::new(Arc::new(read(&options.files)?));
        Ok(Self { options, current, read_of })
    }

    /// Does the handshake of a new connection, within `wait` at most; `None` if the client does not do its part in time.
    pub async fn accept(&self, stream: TcpStream, wait: Duration) -> Option<TlsStream<TcpStream>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let handshake = TlsAcceptor::from(current).accept(stream);
        match tokio::time::timeout(self.options.handshake_wait.min(wait), handshake).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                // What a client does wrong is no error of the server.
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
            Err(_) => None,
        }
    }

    /// Reads the files again whenever they change, for new connections; those that are open go on. Files that cannot be used,
    /// such as a certificate whose key is still to be written, change nothing.
    pub async fn follow(&self) {
        let (mut seen, mut failed) = (self.read_of.clone(), None);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = modified(&self.options.files);
            if now == seen {
                continue;
            }
            match read(&self.options.files) {
                Ok(config) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                    tracing::info!("the TLS certificate was read again");
                    (seen, failed) = (now, None);
                }
                // What was in the way may go without a new time of the files, such as their owner: they are read until they can be.
                Err(error) => {
                    let text = format!("{error:#}");
                    if failed.as_ref() != Some(&text) {
                        tracing::error!(error = text, "the new TLS certificate cannot be used");
                    }
                    failed = Some(text);
                }
            }
        }
    }
}

/// When the files were written.
fn modified(files: &Files) -> Vec<Option<SystemTime>> {
    let all = [Some(&files.certificate), Some(&files.key), files.client_ca.as_ref()];
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    all.into_iter().flatten().map(modified).collect()
}

fn read(files: &Files) -> anyhow::Result<ServerConfig> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("tls.key: no key can be read from {}", files.key.display()))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| format!("tls.client_ca: {}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).context("tls.certificate does not fit tls.key")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let unreadable = || format!("no certificate can be read from {}", path.display());
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.with_context(unreadable)?;
    anyhow::ensure!(!certificates.is_empty(), unreadable());
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_right_after_the_first_look_is_read() {
        let files = tempfile::tempdir().unwrap();
        let write = || {
            let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            std::fs::write(files.path().join("key"), own.signing_key.serialize_pem()).unwrap();
            std::fs::write(files.path().join("certificate"), own.cert.pem()).unwrap();
        };
        write();
        let [certificate, key] = ["certificate", "key"].map(|name| files.path().join(name));
        let files = Files { certificate, key, client_ca: None };
        let tls = Tls::open(Options { files, handshake_wait: Duration::from_secs(1) }).unwrap();
        let current = || tls.current.read().unwrap().clone();
        let first = current();
        write();
        // The times of files are coarse: one that is written within the same moment looks as it was.
        while modified(&tls.options.files) == tls.read_of {
            write();
        }
        let followed = async {
            while Arc::ptr_eq(&first, &current()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = tls.follow() => {}
            () = followed => {}
            () = tokio::time::sleep(LOOK_EVERY * 20) => panic!("it is not noticed"),
        }
    }
}
