//! The errors of starting a gateway.

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The configured address.
        address: std::net::SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file of the access log cannot be written.
    #[error("cannot open the access log")]
    AccessLog {
        /// The error of the system.
        source: std::io::Error,
    },
    /// The quota file cannot be written.
    #[error("cannot write the file of quotas, {}", file.display())]
    Quotas {
        /// The configured file.
        file: std::path::PathBuf,
    },
    /// A thread or its event loop cannot be started.
    #[error("cannot start a serving thread")]
    Thread {
        /// The error of the system.
        source: std::io::Error,
    },
}
