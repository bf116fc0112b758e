//! `[log]`: the gateway's own log.
//!
//! `config.rs` explains the syntax of `settings::table!`.

settings::choice! {
    /// Text for people, or JSON for log collectors.
    pub enum LogFormat {
        /// One readable line per event.
        "text" => Text,
        /// One JSON object per line.
        "json" => Json,
    }
}

settings::choice! {
    /// Log levels, the most severe first.
    pub enum Level {
        /// Errors.
        "error" => Error,
        /// Errors and warnings.
        "warn" => Warn,
        /// Errors, warnings and normal events.
        "info" => Info,
        /// The events of `info`, and details for debugging.
        "debug" => Debug,
        /// Everything.
        "trace" => Trace,
    }
}

settings::table! {
    /// The gateway's own log, which is written to standard error.
    pub struct LogTable => pub Log {
        /// One readable line or one JSON object per event.
        format: LogFormat = "text";
        /// The least severe level that is written.
        level: Level = "info";
    }
}
