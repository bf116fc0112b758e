//! The monthly quota of a key: charges calls in units and tracks the usage of the calendar month. A
//! call costs one unit, or as many units as the weight of its method.
//!
//! An [`Account`] holds the usage of one key: the units that all gateways have reported to Redis,
//! and the units that this gateway has not reported yet. `src/quota.rs` stores the accounts.

use core::fmt;

use jiff::Timestamp;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;

#[cfg(test)]
mod tests;

/// A calendar month in UTC, as its first day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(Date);

/// The last month that is supported.
const MONTH_MAX: Month = Month(date(9998, 12, 1));

impl Month {
    /// Returns the month of a time in seconds since 1970. For a time after the last supported
    /// month, returns that month.
    pub fn containing(second: u64) -> Month {
        let second = i64::try_from(second).unwrap_or(i64::MAX);
        let Ok(time) = Timestamp::from_second(second) else { return MONTH_MAX };
        Month(time.to_zoned(TimeZone::UTC).date().first_of_month()).min(MONTH_MAX)
    }

    /// Returns the time at which the next month begins, in seconds since 1970.
    pub fn end(self) -> u64 {
        let last_day = self.0.last_of_month().to_zoned(TimeZone::UTC).ok();
        let second = last_day.and_then(|day| u64::try_from(day.timestamp().as_second()).ok());
        second.unwrap_or(0) + 24 * 3600
    }

    /// Parses a month such as `2026-11`. Returns `None` if the text is malformed or the month is
    /// not supported.
    pub fn parse(text: &str) -> Option<Month> {
        let month = Month(format!("{text}-01").parse().ok()?);
        let is_supported = (Month::default()..=MONTH_MAX).contains(&month);
        (is_supported && month.to_string() == text).then_some(month)
    }
}

impl Default for Month {
    /// Returns January 1970, the first month that is supported.
    fn default() -> Month {
        Month(date(1970, 1, 1))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0.year(), self.0.month())
    }
}

/// The usage of one key in one month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    month: Month,
    /// Number of units in the last report, including units of other gateways. Without Redis, this
    /// is the usage that this gateway has read from its quota file.
    reported: u64,
    /// Number of units used in this gateway since the last report.
    unreported: u64,
}

/// Part of the unused quota that a gateway may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// The whole unused quota. There are no other gateways, or this gateway receives their usage
    /// continuously.
    Whole,
    /// The quota that was unused at the last report, divided by this number of gateways, because
    /// this gateway cannot reach the others.
    Share(u64),
}

/// Usage to report to other gateways through Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageReport {
    /// Month of the usage.
    pub month: Month,
    /// Number of units used since the last report.
    pub unreported: u64,
    /// Number of all units of the month that this gateway knows of, including `unreported`. All
    /// gateways together have used at least this number.
    pub used_min: u64,
}

impl Account {
    /// Creates an account with this usage.
    pub fn new(month: Month, used: u64) -> Account {
        Account { month, reported: used, unreported: 0 }
    }

    /// Returns the number of units used in `month`; 0 if the account still holds the usage of an
    /// earlier month. If `month` is before the account's month, because the clock went back,
    /// returns the usage of the account's month.
    pub fn used(&self, month: Month) -> u64 {
        if self.month >= month { self.total() } else { 0 }
    }

    /// Returns the number of all units that this gateway knows of.
    fn total(&self) -> u64 {
        self.reported.saturating_add(self.unreported)
    }

    /// Raises the usage of a month to at least this value. Ignores a month before the account's
    /// month.
    pub fn raise(&mut self, month: Month, used: u64) {
        if month > self.month {
            *self = Account::new(month, used);
        } else if month == self.month {
            let missing = used.saturating_sub(self.total());
            self.reported = self.reported.saturating_add(missing);
        }
    }

    /// Charges a call of `cost` units if the quota allows it. Returns true if the call was charged.
    /// If the clock goes back to an earlier month, the usage does not fall.
    pub fn charge(&mut self, month: Month, cost: u64, quota: u64, allowance: Allowance) -> bool {
        if month > self.month {
            *self = Account::new(month, 0);
        }
        let used_max = match allowance {
            Allowance::Whole => quota,
            Allowance::Share(gateways) => {
                self.reported.saturating_add(quota.saturating_sub(self.reported) / gateways.max(1))
            }
        };
        let is_within = self.total().saturating_add(cost) <= used_max;
        if is_within {
            self.unreported = self.unreported.saturating_add(cost);
        }
        is_within
    }

    /// Returns the usage to report now.
    pub fn build_report(&self) -> UsageReport {
        UsageReport { month: self.month, unreported: self.unreported, used_min: self.total() }
    }

    /// Confirms that a report has arrived. `used` is the usage of all gateways, including the
    /// report. Usage never falls within a month. Ignores a report of another month.
    pub fn confirm_report(&mut self, reported: UsageReport, used: u64) {
        if reported.month != self.month {
            return;
        }
        self.reported = self.reported.saturating_add(reported.unreported).max(used);
        self.unreported = self.unreported.saturating_sub(reported.unreported);
    }
}
