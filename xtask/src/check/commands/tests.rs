//! Commands that exist pass. Misspelt commands and flags of this tool and of weir are found.

use anyhow::{Result, bail};

use super::{check_command, read_commands, split_commands};

fn verdict(line: &str) -> Result<()> {
    let mut help = |name: &str| match name {
        "serve" => Ok("Usage: weir serve [OPTIONS]\n      --upstream <URL>  a node\n".to_owned()),
        "index" => Ok("Usage: weir index <COMMAND>\n\nCommands:\n  sync  Fetch\n".to_owned()),
        "index sync" => Ok("Usage: weir index sync [OPTIONS]\n      --db <FILE>\n".to_owned()),
        _ => bail!("weir has no command {name}"),
    };
    let words = split_commands(line);
    assert!(!words.is_empty(), "{line}");
    words.iter().try_for_each(|words| check_command(words, &mut help))
}

#[test]
fn commands_that_exist_pass() {
    for line in [
        "cargo xtask check --fast",
        "cargo xtask bench gateway --case hit --seconds 2",
        "cargo run --release -- serve --upstream=http://a --upstream http://b &",
        "weir serve --upstream 'http://a # b'   # a comment with --nothing",
        "UPDATE_EXPECT=1 cargo test -p gateway limit",
        "curl -s localhost:8645 | less",
        "weir index sync --db chain.db",
        "weir index",
        "weir --version",
        ".ci/run",
    ] {
        verdict(line).unwrap();
    }
}

#[test]
fn commands_that_do_not_exist_are_caught() {
    for line in [
        "cargo xtask chekc",
        "cargo xtask check --quick",
        "cargo run --release -- serv",
        "cargo run --release serve",
        "weir serve --up http://a",
        "weir index snyc --db chain.db",
        "weir index sync --database chain.db",
        "weir index --db chain.db",
        "curl -s localhost && weir nothing",
        "wget x",
        "cargo frobnicate",
    ] {
        assert!(verdict(line).is_err(), "{line}");
    }
}

#[test]
fn here_documents_are_left_out() {
    let page = "```sh\ncat > a.toml <<'EOF'\n[node]\nEOF\nweir check a.toml\n```\n";
    let lines: Vec<usize> =
        read_commands("a.md", page).iter().map(|written| written.line).collect();
    assert_eq!(lines, [2, 5]);
}

#[test]
fn only_shell_blocks_are_read_and_lines_are_joined() {
    let page =
        "```toml\nx = 1\n```\n\n```sh\n# first\nweir serve \\\n  --upstream a\nls | cat\n```\nls\n";
    let found: Vec<(usize, String)> = read_commands("a.md", page)
        .into_iter()
        .map(|found| (found.line, found.words.join(" ")))
        .collect();
    let expected = [(7, "weir serve --upstream a"), (9, "ls"), (9, "cat")];
    assert_eq!(found, expected.map(|(line, words)| (line, words.to_owned())));
}
