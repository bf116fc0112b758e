//! `[log]`: what the gateway logs of itself.

settings::choice! {
    /// Text for people or JSON for collectors.
    pub enum LogFormat {
        /// One readable line per event.
        "text" => Text,
        /// One JSON object per line.
        "json" => Json,
    }
}

settings::choice! {
    /// Severities, the worst first.
    pub enum Level {
        /// Errors.
        "error" => Error,
        /// And warnings.
        "warn" => Warn,
        /// And what happens.
        "info" => Info,
        /// And what helps to find faults.
        "debug" => Debug,
        /// And everything else.
        "trace" => Trace,
    }
}

settings::table! {
    /// What is logged, to standard error.
    pub struct LogTable => pub Log {
        /// One readable line or one JSON object per event.
        format: LogFormat = "text";
        /// The least severe level that is written.
        level: Level = "info";
    }
}
