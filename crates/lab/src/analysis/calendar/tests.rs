//! Goal: instants are formatted as the right dates. Method: dates that calendars often get wrong.

use super::rfc3339;

#[test]
fn leap_days_and_ends_of_years_are_right() {
    let checks = [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (951_782_400.0, "2000-02-29T00:00:00.000Z"),
        (951_868_799.999, "2000-02-29T23:59:59.999Z"),
        (1_709_164_800.0, "2024-02-29T00:00:00.000Z"),
        (1_735_689_599.5, "2024-12-31T23:59:59.500Z"),
        (1_735_689_600.0, "2025-01-01T00:00:00.000Z"),
        (4_107_542_400.0, "2100-03-01T00:00:00.000Z"),
    ];
    for (unix, expected) in checks {
        assert_eq!(rfc3339(unix), expected);
    }
}
