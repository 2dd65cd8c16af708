//! What is trusted: the system's authorities, or those of one file.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::failure::Failure;
use super::shown::shown;

/// Returns what makes connections that are encrypted.
pub fn connector(ca: Option<&Path>) -> Result<TlsConnector, Failure> {
    let roots = match ca {
        Some(ca) => of_file(ca)?,
        None => of_system(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into())
}

fn of_file(ca: &Path) -> Result<RootCertStore, Failure> {
    let name = shown(&ca.display().to_string());
    let unread =
        |error: &dyn std::fmt::Display| Failure::Usage(format!("--ca: {name} cannot be read: {error}"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|error| unread(&error))? {
        let certificate = certificate.map_err(|error| unread(&error))?;
        roots.add(certificate).map_err(|error| unread(&error))?;
    }
    if roots.is_empty() {
        return Err(Failure::Usage(format!("--ca: there is no certificate in {name} (PEM)")));
    }
    Ok(roots)
}

/// The system's authorities (also `SSL_CERT_FILE`), or Mozilla's where the system has none, as in small containers.
fn of_system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// Returns what may be wrong where no encrypted connection comes about: what answers may speak without TLS.
pub fn hint(error: &std::io::Error) -> &'static str {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    if matches!(of_tls, Some(rustls::Error::InvalidMessage(_))) { "; is it http:// there?" } else { "" }
}

/// Returns the name that the server's certificate must have.
pub fn name(host: &str) -> Result<ServerName<'static>, Failure> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| Failure::Usage(format!("{} is no name that a certificate can have", shown(host))))
}
