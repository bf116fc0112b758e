//! Goal: files and URLs are distinguished, errors name the allowed values, and no secret is
//! printed. Method: texts with the expected printed form or error. No error may contain the secret
//! of its text.

use super::*;

fn printed(text: &str) -> String {
    let database = Database::parse(text).unwrap();
    assert_eq!(format!("{database:?}"), database.to_string());
    database.to_string()
}

#[test]
fn files_are_not_urls() {
    for text in ["chain.db", "/var/lib/weir/chain.db", "./user:x@host/db", "a@b", "./postgres:5432"]
    {
        assert_eq!(Database::parse(text), Ok(Database::File(text.into())), "{text}");
    }
    assert_eq!(printed("./a:b@c"), "./a:b@c");
}

#[test]
fn secrets_are_masked() {
    for (text, expected) in [
        ("postgres://weir:sekrit@db:5432/chains", "postgres://***@db:5432/chains"),
        ("POSTGRESQL://weir@db/chains", "postgres://***@db/chains"),
        ("postgres://db/chains?user=weir&password=sekrit", "postgres://db/chains?***"),
        ("postgres://a@db/c?password=sekrit&schema=one", "postgres://***@db/c?schema=one&***"),
        ("postgres://weir@[::1]:5432,db/a", "postgres://***@[::1]:5432,db/a"),
        ("postgres:///a?host=/run/postgresql", "postgres:///a?host=/run/postgresql"),
        ("postgres://a:sek%40rit@db", "postgres://***@db"),
    ] {
        assert_eq!(printed(text), expected);
        assert_eq!(mask_address(text).unwrap(), format!("\"{expected}\""));
    }
}

#[test]
fn errors_name_the_allowed_values_and_no_secret() {
    for (text, expected) in [
        ("", "the name of a file is empty"),
        ("mysql://weir:sekrit@db/c", "neither postgres:// nor postgresql://"),
        ("weir:sekrit@db/chains", "a url without its scheme, postgres://"),
        ("//weir:sekrit@db/chains", "a url without its scheme, postgres://"),
        ("postgres:/weir:sekrit@db/chains", "a url without its scheme, postgres://"),
        ("postgres//weir:sekrit@db", "a url without its scheme, postgres://"),
        ("db.example/chains?user=weir&password=sekrit", "a url without its scheme, postgres://"),
        ("host=db user=weir Password=sekrit", "a url without its scheme, postgres://"),
        ("postgres://", "the url has no host"),
        ("postgres:///c", "the url has no host; a local socket is ?host=/run/postgresql"),
        ("postgres://weir:sekrit@/c", "the url has no host"),
        ("postgres://weir:sekrit/db", "the port is not one of 1 to 65535"),
        ("postgres://weir:sekrit@db:0/c", "the port is not one of 1 to 65535"),
        ("postgres://weir:sekrit@[::1]1/c", "the port is not one of 1 to 65535"),
        ("postgres://weir:sekrit@[db]/c", "neither a name nor an address"),
        ("postgres://weir:sekrit@db,/c", "neither a name nor an address"),
        ("postgres://weir:sek@rit@db/c", "@ is written %40"),
        ("postgres://weir:sek/rit@db/c", "/ is %2F"),
        ("postgres://weir:1?sekrit@db/c", "? is %3F"),
        ("postgres://weir@db/c?options=sekrit@", "@ is written %40"),
        ("postgres://db/chains,password=sekrit", "the name of the database"),
        ("postgres://db/c?sekrit=1", "known are schema, sslmode, sslrootcert, host, "),
        ("postgres://db/c?sslmode=sekrit", "none of disable, require and verify-full"),
        ("postgres://db/c?sslrootcert=sekrit%2", "hexadecimal"),
        ("postgres://db/c?schema=SEKRIT", "a schema is 1 to 63 of a-z"),
        ("postgres://db/c?schema=pg_x", "not with pg_"),
        ("postgres://db/c?schema=", "a schema is 1 to 63"),
    ] {
        let error = Database::parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.to_lowercase().contains("sekrit"), "{error}");
        assert_eq!(mask_address(text).unwrap(), "\"***\"", "{text}");
    }
}

#[test]
fn the_client_gets_only_its_own_parameters() {
    let text = "postgres://a:b@db/c?schema=one&sslmode=require&port=1&sslrootcert=%2Fca%20s.pem";
    let Ok(Database::Url(url)) = Database::parse(text) else { panic!("{text}") };
    assert_eq!(url.client_url, "postgres://a:b@db/c?port=1");
    assert_eq!((url.schema.as_deref(), url.tls), (Some("one"), Some(true)));
    assert_eq!(url.root_certificates.as_deref(), Some(Path::new("/ca s.pem")));
}

#[test]
fn a_file_is_relative_to_the_folder() {
    let within = |text| Database::parse(text).unwrap().within(Path::new("/etc/weir")).to_string();
    assert_eq!(within("chain.db"), "/etc/weir/chain.db");
    assert_eq!(within("/var/chain.db"), "/var/chain.db");
    assert_eq!(within("postgres://db/chains"), "postgres://db/chains");
}
