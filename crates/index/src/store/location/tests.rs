//! Goal: a text is parsed as a file or a server, and no password is ever printed. Method: texts and
//! their printed locations; each error message is searched for the secrets of its text.

use super::*;

fn parse(text: &str) -> Result<Location, String> {
    text.parse()
}

fn printed(text: &str) -> String {
    parse(text).unwrap().to_string()
}

fn server(text: &str) -> Server {
    let Location::Server(server) = parse(text).unwrap() else { panic!("{text}: a file") };
    *server
}

#[test]
fn files_and_servers_are_distinguished() {
    assert_eq!(parse("chain.db"), Ok(Location::File("chain.db".into())));
    assert_eq!(parse("./postgres:5432"), Ok(Location::File("./postgres:5432".into())));
    assert_eq!(printed("postgres://weir@db:5433/chains"), "postgres://weir@db:5433/chains");
    assert_eq!(printed("POSTGRESQL://weir@db/chains"), "postgres://weir@db:5432/chains");
    assert_eq!(printed("postgres://weir@[::1]:5/c?schema=weir"), "postgres://weir@[::1]:5/c");
    assert_eq!(printed("postgres://a@b/c?schema=mainnet"), "postgres://a@b:5432/c?schema=mainnet");
    let socket = "postgres:///chains?host=/run/postgresql&user=weir";
    assert_eq!(printed(socket), "postgres://weir@/run/postgresql/chains");
    assert_eq!(printed("postgres://a@b:1,c:2/d"), "postgres://a@b:1,c:2/d");
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
fn errors_name_the_allowed_values() {
    for (text, expected) in [
        ("mysql://a@b/c", "begins with postgres://"),
        ("", "empty"),
        ("postgres:///c", "no host"),
        ("postgres://a@b:port/c", "not a url such as"),
        ("postgres://a@b/c?sslmode=prefer", "disable, require, verify-full"),
        ("postgres://a@b/c?sslmode=verify-ca", "disable, require, verify-full"),
        ("postgres://a@b/c?sslrootcert=/none/there.pem", "sslrootcert /none/there.pem: "),
        ("postgres://a@b/c?schema=Main", "a schema is 1 to 63"),
        ("postgres://a@b/c?schema=pg_x", "a schema is 1 to 63"),
        ("postgres://a@b/c?schema=", "a schema is 1 to 63"),
        ("postgres://a@b/c?bird=1", "known are schema, sslmode"),
        ("postgres://a@b/c?sslrootcert=%2", "hexadecimal"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
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
    for text in [
        "postgres://weir:sekrit@db:sekrit/chains",
        "postgres://weir:sekrit@db/chains?sekrit",
        "postgres://weir:sekrit@db/chains?sekrit=1",
        "postgres://weir:sekrit@db/chains?sslmode=sekrit",
        "postgres://weir:sekrit@/chains",
        "postgresq://weir:sekrit@db/chains",
        "postgres://weir:sekrit@db/chains?schema=SEKRIT",
    ] {
        let error = parse(text).unwrap_err();
        assert!(!error.to_lowercase().contains("sekrit"), "{error}");
    }
}
