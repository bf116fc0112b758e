//! Decides when the log reports that a shared service, such as Redis, is up or down.
//!
//! Many clients of one process use the service, and each has its own circuit breaker. The log has
//! one line when the service goes down and one when it comes back. A reload creates new clients,
//! which is no news.

#[cfg(test)]
mod tests;

/// Number of failed probes in a row that prove an outage. The clients of a reload that comes just
/// before an outage only probe.
const FAILED_PROBES_MAX: u32 = 5;

/// What one client has found out about the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// A probe succeeded.
    Up,
    /// The circuit breaker opened after calls failed.
    Down,
    /// A probe failed. It proves an outage only if no client has used the service before or
    /// [`FAILED_PROBES_MAX`] probes have failed in a row, because another client may already use
    /// the service again.
    ProbeFailed,
}

/// The last reported state of a service.
#[derive(Debug, Default)]
pub struct ReportedAvailability {
    /// The address of the service, and true if it was reported as up. `None` before the first
    /// report.
    last: Option<(String, bool)>,
    /// Number of failed probes since the last successful one.
    failed_probes: u32,
}

impl ReportedAvailability {
    /// Records a finding about the service at `address`. Returns the state to report: true if the
    /// service is up. Returns `None` if there is no news.
    pub fn record(&mut self, address: &str, finding: Finding) -> Option<bool> {
        let last = self.last.as_ref().filter(|(reported, _)| reported == address);
        let is_up = finding == Finding::Up;
        self.failed_probes = match finding {
            Finding::Up => 0,
            Finding::Down => self.failed_probes,
            Finding::ProbeFailed => self.failed_probes.saturating_add(1),
        };
        let is_proven = finding != Finding::ProbeFailed || self.failed_probes >= FAILED_PROBES_MAX;
        let is_news = last.is_none_or(|(_, was_up)| *was_up != is_up && is_proven);
        is_news.then(|| {
            self.last = Some((address.to_owned(), is_up));
            is_up
        })
    }
}
