//! Goal: a file or a server is told from its text, and no password is ever printed. Method: texts in,
//! what is shown out; each refusal is searched for the secrets that were in the text.

use super::*;

fn read(text: &str) -> Result<Location, String> {
    text.parse()
}

fn shown(text: &str) -> String {
    read(text).unwrap().to_string()
}

fn server(text: &str) -> Server {
    let Location::Server(server) = read(text).unwrap() else { panic!("{text}: a file") };
    *server
}

#[test]
fn files_and_servers_are_told_apart() {
    assert_eq!(read("chain.db"), Ok(Location::File("chain.db".into())));
    assert_eq!(read("./postgres:5432"), Ok(Location::File("./postgres:5432".into())));
    assert_eq!(shown("postgres://weir@db:5433/chains"), "postgres://weir@db:5433/chains");
    assert_eq!(shown("POSTGRESQL://weir@db/chains"), "postgres://weir@db:5432/chains");
    assert_eq!(shown("postgres://weir@[::1]:5/c?schema=weir"), "postgres://weir@[::1]:5/c");
    assert_eq!(shown("postgres://a@b/c?schema=mainnet"), "postgres://a@b:5432/c?schema=mainnet");
    let socket = "postgres:///chains?host=/run/postgresql&user=weir";
    assert_eq!(shown(socket), "postgres://weir@/run/postgresql/chains");
    assert_eq!(shown("postgres://a@b:1,c:2/d"), "postgres://a@b:1,c:2/d");
}

#[test]
fn what_is_far_is_asked_over_tls_unless_it_is_said_otherwise() {
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
fn refusals_say_what_is_allowed() {
    for (text, told) in [
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
        let error = read(text).unwrap_err();
        assert!(error.contains(told), "{text}: {error}");
    }
}

#[test]
fn passwords_are_never_shown() {
    for text in [
        "postgres://weir:sekrit@db/chains",
        "postgres://db/chains?user=weir&password=sekrit",
        "postgres://weir:sek%72it@db:5/chains?schema=sekrets",
    ] {
        let location = read(text).unwrap();
        assert!(location.has_password());
        let printed = format!("{location} {location:?} {:?}", server(text));
        assert!(!printed.contains("sekrit") && !printed.contains("sek%72it"), "{printed}");
    }
    assert!(!read("postgres://weir@db/chains").unwrap().has_password());
    for text in [
        "postgres://weir:sekrit@db:sekrit/chains",
        "postgres://weir:sekrit@db/chains?sekrit",
        "postgres://weir:sekrit@db/chains?sekrit=1",
        "postgres://weir:sekrit@db/chains?sslmode=sekrit",
        "postgres://weir:sekrit@/chains",
        "postgresq://weir:sekrit@db/chains",
        "postgres://weir:sekrit@db/chains?schema=SEKRIT",
    ] {
        let error = read(text).unwrap_err();
        assert!(!error.to_lowercase().contains("sekrit"), "{error}");
    }
}
