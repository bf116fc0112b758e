//! The monthly quota of a key (calendar month in UTC): charges calls and tracks usage.
//!
//! An [`Account`] holds the last reported usage and the usage since then. The report comes from
//! this gateway's file, or from Redis for all gateways together. `quota.rs` stores the accounts.

use core::fmt;

#[cfg(test)]
mod tests;

/// A calendar month, as the number of months since January 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(u32);

/// Last year that is supported.
const YEAR_MAX: u32 = 9998;

impl Month {
    /// Returns the month that contains a second since 1970, in UTC.
    pub fn containing(second: u64) -> Month {
        let second = i64::try_from(second).unwrap_or(i64::MAX);
        let Ok(time) = jiff::Timestamp::from_second(second) else { return Month(MONTH_MAX) };
        let date = time.to_zoned(jiff::tz::TimeZone::UTC).date();
        let years = u32::try_from(i32::from(date.year()) - 1970).unwrap_or(0);
        let month = u32::try_from(date.month() - 1).unwrap_or(0);
        Month((years * 12 + month).min(MONTH_MAX))
    }

    /// Returns the second at which the next month begins.
    pub fn end(self) -> u64 {
        let next = self.0.min(MONTH_MAX) + 1;
        let year = i16::try_from(1970 + next / 12).unwrap_or(i16::MAX);
        let month = i8::try_from(next % 12 + 1).unwrap_or(1);
        let start = jiff::civil::date(year, month, 1).to_zoned(jiff::tz::TimeZone::UTC);
        start.ok().and_then(|start| u64::try_from(start.timestamp().as_second()).ok()).unwrap_or(0)
    }

    /// Parses a month such as `2026-11`.
    pub fn parse(text: &str) -> Option<Month> {
        let (year, month) = text.split_once('-')?;
        let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
        let fits = (1970..=YEAR_MAX).contains(&year) && (1..=12).contains(&month);
        fits.then(|| Month((year - 1970) * 12 + month - 1))
            .filter(|month| month.to_string() == text)
    }
}

/// The last month that is supported.
const MONTH_MAX: u32 = (YEAR_MAX - 1970) * 12 + 11;

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", 1970 + self.0 / 12, self.0 % 12 + 1)
    }
}

/// The usage of one key in one month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    month: Month,
    /// Number of used units in the last report, including units of other gateways.
    reported: u64,
    /// Number of units used in this gateway since the last report.
    unreported: u64,
}

/// Part of the rest of a quota that a gateway may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// The whole rest: there are no other gateways, or this gateway receives their usage
    /// continuously.
    Whole,
    /// An equal share of the rest among this many gateways, because this gateway cannot reach the
    /// others.
    Share(u64),
}

/// Usage to report to other gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageReport {
    /// Month of the usage.
    pub month: Month,
    /// Number of units used since the last report.
    pub unreported: u64,
    /// Number of all known units of the month, including `unreported`. All gateways together have
    /// used at least this number.
    pub used_min: u64,
}

impl Account {
    /// Creates an account with this usage.
    pub fn new(month: Month, used: u64) -> Account {
        Account { month, reported: used, unreported: 0 }
    }

    /// Returns the units used in a month; 0 for a past month.
    pub fn used(&self, month: Month) -> u64 {
        if self.month >= month { self.reported.saturating_add(self.unreported) } else { 0 }
    }

    /// Raises the usage of a month to at least this value.
    pub fn raise(&mut self, month: Month, used: u64) {
        if month > self.month {
            *self = Account::new(month, used);
        } else if month == self.month {
            let missing = used.saturating_sub(self.used(month));
            self.reported = self.reported.saturating_add(missing);
        }
    }

    /// Charges a call unless it would exceed the quota. Returns true if it was charged. If the
    /// clock goes back to an earlier month, the usage does not fall.
    pub fn charge(&mut self, month: Month, cost: u64, quota: u64, allowance: Allowance) -> bool {
        if month > self.month {
            *self = Account { month, reported: 0, unreported: 0 };
        }
        let used_max = match allowance {
            Allowance::Whole => quota,
            Allowance::Share(gateways) => {
                self.reported.saturating_add(quota.saturating_sub(self.reported) / gateways.max(1))
            }
        };
        let used = self.reported.saturating_add(self.unreported).saturating_add(cost);
        let is_within = used <= used_max;
        if is_within {
            self.unreported = self.unreported.saturating_add(cost);
        }
        is_within
    }

    /// Returns the usage to report now.
    pub fn report(&self) -> UsageReport {
        let used_min = self.reported.saturating_add(self.unreported);
        UsageReport { month: self.month, unreported: self.unreported, used_min }
    }

    /// Confirms a report. `used` is the usage of all gateways, including the report. Usage never
    /// falls within a month.
    pub fn confirm(&mut self, reported: UsageReport, used: u64) {
        if reported.month != self.month {
            return;
        }
        self.reported = self.reported.saturating_add(reported.unreported).max(used);
        self.unreported = self.unreported.saturating_sub(reported.unreported);
    }
}
