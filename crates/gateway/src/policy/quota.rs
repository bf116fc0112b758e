//! What a key may use in a calendar month (UTC), and how much of that is left.
//!
//! An [`Account`] knows how much was used as far as it was last told, by its own file or by Redis
//! for all gateways together, and what has been used since. Where accounts are kept is `quota.rs`.

use core::fmt;

#[cfg(test)]
mod tests;

/// A calendar month, counted from January 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(u32);

/// Years that can be told.
const YEAR_MAX: u32 = 9998;

impl Month {
    /// The month of a second since 1970, UTC.
    pub fn of(second: u64) -> Month {
        let second = i64::try_from(second).unwrap_or(i64::MAX);
        let Ok(time) = jiff::Timestamp::from_second(second) else { return Month(LAST) };
        let date = time.to_zoned(jiff::tz::TimeZone::UTC).date();
        let years = u32::try_from(i32::from(date.year()) - 1970).unwrap_or(0);
        let month = u32::try_from(date.month() - 1).unwrap_or(0);
        Month((years * 12 + month).min(LAST))
    }

    /// The second at which the next month begins.
    pub fn end(self) -> u64 {
        let next = self.0.min(LAST) + 1;
        let year = i16::try_from(1970 + next / 12).unwrap_or(i16::MAX);
        let month = i8::try_from(next % 12 + 1).unwrap_or(1);
        let start = jiff::civil::date(year, month, 1).to_zoned(jiff::tz::TimeZone::UTC);
        start.ok().and_then(|start| u64::try_from(start.timestamp().as_second()).ok()).unwrap_or(0)
    }

    /// The month of a text such as `2026-11`.
    pub fn parse(text: &str) -> Option<Month> {
        let (year, month) = text.split_once('-')?;
        let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
        let fits = (1970..=YEAR_MAX).contains(&year) && (1..=12).contains(&month);
        fits.then(|| Month((year - 1970) * 12 + month - 1)).filter(|own| own.to_string() == text)
    }
}

/// The last month that can be told.
const LAST: u32 = (YEAR_MAX - 1970) * 12 + 11;

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", 1970 + self.0 / 12, self.0 % 12 + 1)
    }
}

/// What one key has used this month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    month: Month,
    /// Units used as far as was last told; those of other gateways are in it.
    told: u64,
    /// Units used here since then.
    since: u64,
}

/// How an account stands with the other gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There are none, or it hears of them all the time.
    Whole,
    /// It cannot hear of them: of so many gateways it may use its part of what was left.
    Share(u64),
}

/// Units that others are to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// When they were used.
    pub month: Month,
    /// Units since the last time.
    pub since: u64,
    /// All units of the month, with these.
    pub least: u64,
}

impl Account {
    /// One that has used so much.
    pub fn new(month: Month, used: u64) -> Account {
        Account { month, told: used, since: 0 }
    }

    /// Units used in a month; one that is over counts no more.
    pub fn used(&self, month: Month) -> u64 {
        if self.month >= month { self.told.saturating_add(self.since) } else { 0 }
    }

    /// Takes in that at least so much was used in a month.
    pub fn raise(&mut self, month: Month, used: u64) {
        if month > self.month {
            *self = Account::new(month, used);
        } else if month == self.month {
            let missing = used.saturating_sub(self.used(month));
            self.told = self.told.saturating_add(missing);
        }
    }

    /// Charges a call, unless that would go beyond the quota; whether it did. A clock that goes
    /// back over the end of a month gives nothing back.
    pub fn charge(&mut self, month: Month, cost: u64, quota: u64, standing: Standing) -> bool {
        if month > self.month {
            *self = Account { month, told: 0, since: 0 };
        }
        let most = match standing {
            Standing::Whole => quota,
            Standing::Share(gateways) => {
                self.told.saturating_add(quota.saturating_sub(self.told) / gateways.max(1))
            }
        };
        let used = self.told.saturating_add(self.since).saturating_add(cost);
        let within = used <= most;
        if within {
            self.since = self.since.saturating_add(cost);
        }
        within
    }

    /// What to tell others now.
    pub fn telling(&self) -> Told {
        let least = self.told.saturating_add(self.since);
        Told { month: self.month, since: self.since, least }
    }

    /// Takes in that others were told, and what all have used with it. Nothing is ever given back
    /// within a month.
    pub fn heard(&mut self, told: Told, used: u64) {
        if told.month != self.month {
            return;
        }
        self.told = self.told.saturating_add(told.since).max(used);
        self.since = self.since.saturating_sub(told.since);
    }
}
