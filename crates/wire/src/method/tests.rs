//! Goal: the tables say something about every method that is named in the sources, and nothing
//! that contradicts itself. Method: lists of names as data, and rules over all rows.
use super::*;

#[test]
fn tables_are_read_and_not_empty() {
    for name in FamilyName::ALL {
        assert!(family(name).methods().count() > 50, "{name:?}");
        assert_eq!(name.as_str().parse(), Ok(name));
    }
    assert!("solana".parse::<FamilyName>().is_err());
}
