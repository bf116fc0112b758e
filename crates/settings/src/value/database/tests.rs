//! Goal: files and URLs are told apart, and no secret is shown. Method: texts in, what is shown out.

use super::*;

fn shown(text: &str) -> String {
    let database = Database::parse(text).unwrap();
    assert_eq!(format!("{database:?}"), database.to_string());
    database.to_string()
}

#[test]
fn secrets_are_masked() {
    assert_eq!(shown("chain.db"), "chain.db");
    let url = "postgres://weir:sekrit@db:5432/chains?schema=one&password=sekrit";
    assert_eq!(shown(url), "postgres://***@db:5432/chains?***");
    assert_eq!(shown("postgresql://db/chains"), "postgresql://db/chains");
    assert_eq!(shown("postgres://a:sek@rit@db/chains"), "postgres://***@db/chains");
    assert_eq!(shown("postgres://weir@[::1]:5432,db/a"), "postgres://***@[::1]:5432,db/a");
    assert_eq!(shown("postgres:///a?host=/run/postgresql"), "postgres:///a?***");
    for text in [
        "mysql://weir:sekrit@db",
        "postgres//weir:sekrit@db",
        "postgres://weir:sekrit/db",
        "postgres://db/chains,password=sekrit",
    ] {
        assert_eq!(masked(text).unwrap(), "\"***\"", "{text}");
    }
}

#[test]
fn other_urls_are_refused() {
    for text in ["mysql://a:sekrit@b/c", "postgres://", ""] {
        let why = Database::parse(text).unwrap_err();
        assert!(!why.contains("sekrit"), "{why}");
    }
}

#[test]
fn a_file_is_looked_for_from_the_folder_on() {
    let within = |text| Database::parse(text).unwrap().within(Path::new("/etc/weir")).to_string();
    assert_eq!(within("chain.db"), "/etc/weir/chain.db");
    assert_eq!(within("/var/chain.db"), "/var/chain.db");
    assert_eq!(within("postgres://db/chains"), "postgres://db/chains");
}
