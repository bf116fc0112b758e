//! Decides when the log reports that a shared service, such as Redis, is up or down.
//!
//! Many clients of one process use the service, and each has its own circuit breaker. The log has
//! one line when the service goes down and one when it comes back. A reload creates new clients,
//! which is no news.

#[cfg(test)]
mod tests;

/// What one client has found out about the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// A probe succeeded.
    Up,
    /// The circuit breaker opened after calls failed.
    Down,
    /// A probe failed. It proves an outage only if no client has used the service before, because
    /// another client may already use it again.
    ProbeFailed,
}

/// The last reported state of a service.
#[derive(Debug, Default)]
pub struct ReportedAvailability {
    /// The address of the service, and true if it was reported as up. `None` before the first
    /// report.
    last: Option<(String, bool)>,
}

impl ReportedAvailability {
    /// Records a finding about the service at `address`. Returns the state to report: true if the
    /// service is up. Returns `None` if there is no news.
    pub fn record(&mut self, address: &str, finding: Finding) -> Option<bool> {
        let last = self.last.as_ref().filter(|(reported, _)| reported == address);
        let is_up = finding == Finding::Up;
        let is_news = match last {
            Some((_, was_up)) => *was_up != is_up && finding != Finding::ProbeFailed,
            None => true,
        };
        is_news.then(|| {
            self.last = Some((address.to_owned(), is_up));
            is_up
        })
    }
}
