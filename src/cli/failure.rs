//! Why a command did not do what was asked, and the exit code that says so to a script.

use serde::Deserialize;

use super::shown::shown;

/// The command was done.
pub const DONE: u8 = 0;
/// It failed: the job died, the command of a job failed, the server made a mistake, a file could not be written.
pub const FAILED: u8 = 1;
/// The command line, or a profile, is wrong; nothing was sent.
pub const USAGE: u8 = 2;
/// There is nothing there: no such job, no job to reserve, not finished in time.
pub const NOTHING: u8 = 3;
/// The server refused: the reservation is lost, a field is invalid, the state does not allow it.
pub const REFUSED: u8 = 4;
/// The key is missing or wrong, or does not allow this.
pub const FORBIDDEN: u8 = 5;
/// The server was not reached, or asks to try again later. The outcome may be unknown.
pub const LATER: u8 = 6;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line or a profile is wrong.
    #[error("{0}")]
    Usage(String),
    /// The server refused.
    #[error("{}", .0.text())]
    Problem(Box<Problem>),
    /// The server was not reached, or the connection broke. A request that was sent may have taken effect.
    #[error("{0}")]
    Unreachable(String),
    /// The same, and no request was sent: nothing can have taken effect.
    #[error("{0}")]
    Unconnected(String),
    /// There is nothing.
    #[error("{0}")]
    Nothing(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
    /// The reader of the output has closed it.
    #[error("the reader has left")]
    Closed,
}

impl Failure {
    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Problem(problem) => problem.code(),
            Self::Unreachable(_) | Self::Unconnected(_) => LATER,
            Self::Nothing(_) => NOTHING,
            Self::Failed(_) => FAILED,
            Self::Closed => DONE,
        }
    }

    /// Returns whether the same call may succeed later.
    pub fn is_passing(&self) -> bool {
        self.code() == LATER
    }
}

/// Returns the exit code of what was done, also where the reader has closed the output.
pub fn printed<T>(result: Result<T, Failure>, code: u8) -> Result<u8, Failure> {
    match result {
        Ok(_) | Err(Failure::Closed) => Ok(code),
        Err(failure) => Err(failure),
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// A response that is no success.
#[derive(Debug, Clone, Default)]
pub struct Problem {
    /// The status.
    pub status: u16,
    /// The body as it came.
    pub body: Vec<u8>,
    /// What a server of ours says; empty if something else answered.
    said: Said,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Said {
    title: String,
    detail: String,
    code: String,
    request_id: String,
    pointer: Option<String>,
    parameter: Option<String>,
    retryable: bool,
    retry_after_ms: Option<u64>,
}

impl Problem {
    /// Reads the body of a response with this status.
    pub fn new(status: u16, body: &[u8]) -> Self {
        Self { status, said: serde_json::from_slice(body).unwrap_or_default(), body: body.to_vec() }
    }

    /// Returns the problem's code, such as `reservation-lost`; empty where something else than a server of ours answered.
    pub fn word(&self) -> &str {
        &self.said.code
    }

    /// Says it otherwise to people: in terms of the command line instead of the interface.
    pub fn said(mut self, detail: impl Into<String>) -> Self {
        self.said.detail = detail.into();
        self
    }

    /// Returns after how many milliseconds to try again, if the server says so.
    pub fn retry_after_ms(&self) -> Option<u64> {
        self.said.retry_after_ms
    }

    /// Returns whether the server says of a thing that it is not there; not that it does not know the path.
    fn is_of_a_thing(&self) -> bool {
        self.said.code.starts_with("unknown-") || self.said.code.ends_with("-gone")
    }

    fn code(&self) -> u8 {
        match self.status {
            401 | 403 | 421 => FORBIDDEN,
            404 | 410 if self.is_of_a_thing() => NOTHING,
            // What answers instead of the server may be gone later.
            404 | 410 if self.said.code.is_empty() => LATER,
            404 | 410 => FAILED,
            408 | 429 | 502 | 503 | 504 | 507 => LATER,
            _ if self.said.retryable => LATER,
            400..=499 => REFUSED,
            _ => FAILED,
        }
    }

    /// For people, without anything that a terminal obeys.
    fn text(&self) -> String {
        let said = &self.said;
        if said.code.is_empty() {
            let body = String::from_utf8_lossy(&self.body);
            let beginning: String = shown(body.trim()).chars().take(200).collect();
            return format!(
                "the answer has the status {}, and is not of a Tailback server: {beginning}",
                self.status
            );
        }
        let mut text = if said.detail.is_empty() { said.title.clone() } else { said.detail.clone() };
        if let Some(at) = said.pointer.as_ref().or(said.parameter.as_ref()) {
            // What a call asks for under this name is a flag here.
            let flags: &[(&str, &str)] = &[
                ("/confirm", "--confirm"),
                ("/filter/queue", "--queue"),
                ("/to", "--to"),
                ("/limit", "--limit"),
                ("/delay_ms", "--delay"),
                ("/run_at", "--at"),
                ("/key", "--job-key"),
            ];
            let flag = flags.iter().find(|(pointer, _)| at == pointer).map(|(_, flag)| *flag);
            let flag = flag.unwrap_or(at);
            text = match text.strip_prefix(at.as_str()) {
                Some(rest) => format!("{flag}{rest}"),
                None => format!("{flag}: {text}"),
            };
        }
        text = format!("{text} ({} {}", self.status, said.code);
        if self.status == 401 {
            text = format!("{text}; the key is that of --key-file, --key, TAILBACK_KEY or a profile");
        }
        if self.code() == FAILED && !said.request_id.is_empty() {
            text = format!("{text}, request {}", said.request_id);
        }
        shown(&format!("{text})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_exit_code() {
        for (status, body, code) in [
            (400, "{}", REFUSED),
            (401, "{}", FORBIDDEN),
            (403, "{}", FORBIDDEN),
            (404, r#"{"code": "unknown-job"}"#, NOTHING),
            (410, r#"{"code": "job-gone"}"#, NOTHING),
            (404, r#"{"code": "not-found"}"#, FAILED),
            (404, "{}", LATER),
            (410, "<html>", LATER),
            (409, "{}", REFUSED),
            (409, r#"{"code": "request-pending", "retryable": true}"#, LATER),
            (412, "{}", REFUSED),
            (422, "{}", REFUSED),
            (429, "{}", LATER),
            (500, "{}", FAILED),
            (502, "<html>", LATER),
            (503, r#"{"code": "store-damaged", "retryable": false}"#, LATER),
            (302, "", FAILED),
        ] {
            let failure = Failure::Problem(Box::new(Problem::new(status, body.as_bytes())));
            assert_eq!(failure.code(), code, "{status} {body}");
        }
    }

    #[test]
    fn a_problem_is_told_without_what_a_terminal_obeys() {
        let body = r#"{"code": "unknown-job", "detail": "no\u001b[2J job", "request_id": "r1"}"#;
        assert_eq!(Problem::new(404, body.as_bytes()).text(), "no\\u{1b}[2J job (404 unknown-job)");
        let confirm = br#"{"code": "invalid-field", "pointer": "/confirm", "detail": "/confirm must be so"}"#;
        assert_eq!(Problem::new(422, confirm).text(), "--confirm must be so (422 invalid-field)");
        let key = br#"{"code": "unauthorized", "detail": "no key"}"#;
        let hint =
            "no key (401 unauthorized; the key is that of --key-file, --key, TAILBACK_KEY or a profile)";
        assert_eq!(Problem::new(401, key).text(), hint);
        assert_eq!(
            Problem::new(502, b"<h1>\x1bgone").text(),
            "the answer has the status 502, and is not of a Tailback server: <h1>\\u{1b}gone"
        );
    }
}
