//! Goal: a text becomes the location of a file, or of a server with the parameters of its URL. No
//! password is printed. Method: texts and their locations; the crate `settings` tests the grammar.

use super::*;

fn parse(text: &str) -> Result<Location, String> {
    text.parse()
}

fn server(text: &str) -> Server {
    let Location::Server(server) = parse(text).unwrap() else { panic!("{text}: a file") };
    *server
}

#[test]
fn remote_servers_need_tls_by_default() {
    let tls = |text: &str| server(text).tls.is_some();
    assert!(!tls("postgres://a@127.0.0.1/c"));
    assert!(!tls("postgres://a@localhost/c"));
    assert!(!tls("postgres://a@[::1]/c"));
    assert!(!tls("postgres:///c?host=/run/postgresql"));
    assert!(tls("postgres://a@db.example/c"));
    assert!(tls("postgres://a@127.0.0.1,db.example/c"));
    assert!(tls("postgres://a@127.0.0.1/c?sslmode=verify-full"));
    assert!(!tls("postgres://a@db.example/c?sslmode=disable"));
    assert_eq!(server("postgres://a@db.example/c").client.get_ssl_mode(), SslMode::Require);
}

#[test]
fn the_schema_has_a_default() {
    assert_eq!(server("postgres://a@b/c").schema, "weir");
    assert_eq!(server("postgres://a@b/c?schema=mainnet").schema, "mainnet");
}

#[test]
fn errors_name_the_parameter() {
    for (text, expected) in [
        ("postgres://weir:sekrit@b/c?port=sekrit", "invalid value for option `port`"),
        ("postgres://weir:sekrit@b/c?connect_timeout=sekrit", "`connect_timeout`"),
        ("postgres://weir:sekrit@b/c?sslrootcert=/none/there.pem", "sslrootcert /none/there.pem: "),
        ("weir:sekrit@b/c", "a url without its scheme"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected) && !error.contains("sekrit"), "{text}: {error}");
    }
}

#[test]
fn passwords_are_never_printed() {
    for text in [
        "postgres://weir:sekrit@db/chains",
        "postgres://db/chains?user=weir&password=sekrit",
        "postgres://weir:sek%72it@db:5/chains?schema=sekrets",
    ] {
        let location = parse(text).unwrap();
        assert!(location.has_password());
        let printed = format!("{location} {location:?} {:?}", server(text));
        assert!(!printed.contains("sekrit") && !printed.contains("sek%72it"), "{printed}");
    }
    assert!(!parse("postgres://weir@db/chains").unwrap().has_password());
}
