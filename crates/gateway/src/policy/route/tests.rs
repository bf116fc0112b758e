//! Goal: the most specific route wins, and ambiguous ones are rejected. Method: tables.

use super::*;

fn router() -> Router {
    let ethereum = ChainRoutes {
        paths: vec!["/eth", "/"],
        methods: vec![("eth_getLogs", 1), ("debug_*", 2), ("debug_trace*", 3), ("trace_*", 3)],
        default_group: 0,
    };
    let harmony = ChainRoutes {
        paths: vec!["/harmony", "/api/v1/hmy/v2"],
        methods: vec![("*", 5)],
        default_group: 4,
    };
    Router::new(&[ethereum, harmony], None).unwrap()
}

#[test]
fn paths_lead_to_chains() {
    let router = router();
    for (path, chain) in [
        ("/", Some(0)),
        ("", Some(0)),
        ("/eth", Some(0)),
        ("/eth/", Some(0)),
        ("/harmony", Some(1)),
        ("/api/v1/hmy/v2", Some(1)),
        ("/api/v1/hmy", None),
        ("/Eth", None),
    ] {
        assert_eq!(router.find_chain(path), chain, "{path}");
    }
    let default = Router::new(&[], Some(7)).unwrap();
    assert_eq!(default.find_chain("/anything"), Some(7));
}

#[test]
fn the_most_specific_pattern_wins() {
    let router = router();
    for (method, group) in [
        ("eth_getLogs", 1),
        ("eth_getLogsX", 0),
        ("debug_getRawHeader", 2),
        ("debug_traceCall", 3),
        ("trace_block", 3),
        ("eth_call", 0),
        ("", 0),
    ] {
        assert_eq!(router.find_group(0, method), group, "{method}");
    }
    assert_eq!(router.find_group(1, "hmyv2_call"), 5);
}

#[test]
fn ambiguous_routes_are_refused() {
    fn chain<'a>(paths: &[&'a str], methods: &[(&'a str, usize)]) -> ChainRoutes<'a> {
        ChainRoutes { paths: paths.to_vec(), methods: methods.to_vec(), default_group: 0 }
    }
    fn fault(chains: &[ChainRoutes<'_>]) -> RouteError {
        Router::new(chains, None).unwrap_err()
    }
    assert_eq!(
        fault(&[chain(&["/a"], &[]), chain(&["/a/"], &[])]),
        RouteError::PathTwice("/a/".into())
    );
    assert_eq!(
        fault(&[chain(&[], &[("eth_*", 0), ("eth_*", 1)])]),
        RouteError::PatternTwice("eth_*".into())
    );
    for pattern in ["eth_*Logs", "**", "*_call"] {
        let methods = [(pattern, 0)];
        assert_eq!(fault(&[chain(&[], &methods)]), RouteError::Star(pattern.into()));
    }
}
