//! Decides which text an index records about the verification of its blocks.

use crate::harmony;
use crate::verify::Level;

/// Returns the record of a new index: the name of the level, or the reason why blocks are not
/// verified.
pub fn initial_record(level: Level, hmyv2: bool) -> String {
    match level {
        _ if hmyv2 => harmony::UNVERIFIED_REASON.to_owned(),
        Level::Off => "off: no response of a node was verified".to_owned(),
        level => level.to_string(),
    }
}

/// Returns the new record if a sync continues at a lower level than recorded, or `None` if the
/// record does not change.
pub fn downgraded_record(recorded: &str, level: Level) -> Option<String> {
    let recorded_level: Level = recorded.parse().ok()?;
    (level < recorded_level).then(|| match level {
        Level::Off => "off: some responses of nodes were not verified".to_owned(),
        level => level.to_string(),
    })
}

#[cfg(test)]
mod tests {
    //! Goal: an index never claims more than was verified of all its blocks.

    use super::*;

    #[test]
    fn a_record_only_gets_weaker() {
        assert_eq!(initial_record(Level::Full, false), "full");
        assert_eq!(initial_record(Level::Senders, true), harmony::UNVERIFIED_REASON);
        assert_eq!(downgraded_record("full", Level::Full), None);
        assert_eq!(downgraded_record("full", Level::Senders), None);
        assert_eq!(downgraded_record("full", Level::Headers).as_deref(), Some("headers"));
        let off = downgraded_record("headers", Level::Off).unwrap();
        assert!(off.starts_with("off: some"), "{off}");
        for recorded in
            [off, initial_record(Level::Off, false), harmony::UNVERIFIED_REASON.to_owned()]
        {
            assert_eq!(downgraded_record(&recorded, Level::Off), None, "{recorded}");
        }
    }
}
