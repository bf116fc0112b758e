//! Why the gateway cannot start or had to stop.

/// Why the gateway cannot start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: std::net::SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file of the access log cannot be written.
    #[error("cannot open the access log: {source}")]
    AccessLog {
        /// What the system says.
        source: std::io::Error,
    },
    /// What keys use of their quotas cannot be kept.
    #[error("cannot write the file of quotas, {}", file.display())]
    Quotas {
        /// The configured file.
        file: std::path::PathBuf,
    },
    /// A thread or its event loop cannot be started.
    #[error("cannot start a serving thread: {source}")]
    Thread {
        /// What the system says.
        source: std::io::Error,
    },
}
