//! Generates pages of `docs/`, files of `deploy/` and the man pages from tables and types in the
//! code. `cargo xtask generate` runs this program.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod monitoring;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use lab_model::results::capacity::CapacityResult;
use lab_model::results::compare::CompareResult;
use lab_model::results::equal::EqualResult;
use lab_model::results::schema;

/// Write the generated pages of the documentation
#[derive(Parser)]
#[command(name = "generate")]
struct Arguments {
    /// Folder of the pages
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Folder of the files for Prometheus and Grafana, which are left out without this option
    #[arg(long, value_name = "FOLDER")]
    deploy: Option<PathBuf>,

    /// Address of the page about alerts, to which the alert rules link
    #[arg(long, value_name = "URL", default_value = monitoring::DEFAULT_RUNBOOK_URL)]
    runbook_url: String,

    /// Folder of the man pages, which are left out without this option
    #[arg(long, value_name = "FOLDER", conflicts_with = "check")]
    man: Option<PathBuf>,

    /// Write nothing, and fail if a page is not up to date
    #[arg(long)]
    check: bool,
}

/// A page: file name, and the function that generates the text.
type Page = (&'static str, fn() -> String);

/// The generated pages, without those of studies (`lab::study::KINDS`).
const PAGES: &[Page] = &[
    ("config.md", gateway::config::render_reference),
    ("gateway.schema.json", gateway::config::render_schema),
    ("plan.md", lab_model::plan::reference::markdown),
    ("plan.schema.json", lab_model::plan::reference::schema),
    ("metrics.md", render_metrics_page),
    ("alerts.md", monitoring::render_alerts_page),
    ("status.schema.json", gateway::admin::status::render_schema),
    ("cli.md", render_cli_page),
    ("result.schema.json", schema::run),
    ("capacity.schema.json", schema::closed::<CapacityResult>),
    ("compare.schema.json", schema::closed::<CompareResult>),
    ("equal.schema.json", schema::closed::<EqualResult>),
    ("host-metrics.md", lab::report::host_metrics),
    ("client-habits.md", lab::report::client_habits),
    ("demo.svg", weir::demo_picture),
    ("chains.md", weir::chains_page),
];

/// Returns the name and the text of each generated file of `deploy/`.
fn render_deployed_files(runbook_url: &str) -> [(&'static str, String); 3] {
    [
        ("prometheus/weir.rules.yml", monitoring::render_rules(runbook_url)),
        ("grafana/dashboards/weir-gateway.json", monitoring::gateway_dashboard()),
        ("grafana/dashboards/weir-lab.json", monitoring::lab_dashboard()),
    ]
}

fn main() -> Result<ExitCode> {
    Arguments::parse().run()
}

impl Arguments {
    fn run(self) -> Result<ExitCode> {
        let mut stale_count = 0;
        if let Some(folder) = &self.man {
            let program = weir::command_line().term_width(HELP_WIDTH);
            clap_mangen::generate_to(program, folder)
                .with_context(|| format!("cannot write to {}", folder.display()))?;
        }
        let study_pages = lab::study::KINDS.iter().flat_map(|kind| kind.pages);
        let pages = PAGES.iter().chain(study_pages);
        let pages = self
            .dir
            .iter()
            .flat_map(|dir| pages.clone().map(|(name, generate)| (dir.join(name), generate())));
        let deployed_files = self.deploy.iter().flat_map(|deploy| {
            render_deployed_files(&self.runbook_url).map(|(name, text)| (deploy.join(name), text))
        });
        for (file, text) in pages.chain(deployed_files) {
            if std::fs::read_to_string(&file).is_ok_and(|current| current == text) {
                continue;
            }
            if self.check {
                stale_count += 1;
                eprintln!("{} is stale: run cargo xtask generate", file.display());
                continue;
            }
            std::fs::write(&file, text)
                .with_context(|| format!("cannot write {}", file.display()))?;
            println!("wrote {}", file.display());
        }
        Ok(if stale_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Returns the text of `docs/metrics.md`: the gateway's metrics, then those of a load test.
fn render_metrics_page() -> String {
    gateway::admin::metrics::render_reference() + &lab::export::reference()
}

/// Width of the help texts in characters.
const HELP_WIDTH: usize = 100;

/// Returns the text of `docs/cli.md`: every visible command's `--help`.
fn render_cli_page() -> String {
    let mut program = weir::command_line().term_width(HELP_WIDTH);
    program.build();
    let mut text = String::from(
        "# Commands\n\n<!-- Printed by `cargo xtask generate` from the types in crates/weir/src. \
         Do not edit. -->\n\nEach command prints this text with `--help`.\n",
    );
    push_help(&mut text, "weir", &mut program);
    text
}

/// Appends the help of a command and of its subcommands.
fn push_help(text: &mut String, heading: &str, command: &mut clap::Command) {
    let help = command.render_long_help().to_string();
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## `{heading}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    for subcommand in command.get_subcommands_mut().filter(|subcommand| !subcommand.is_hide_set()) {
        if subcommand.get_name() != "help" {
            push_help(text, &format!("{heading} {}", subcommand.get_name()), subcommand);
        }
    }
}
