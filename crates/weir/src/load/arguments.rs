//! Command-line arguments of a load test: a URL with options, or a plan.

use anyhow::{Result, anyhow};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lab::run::{RunFault, open_files};
use lab::target::{self, Reason};
use lab_model::plan::line::UrlOptions;
use lab_model::plan::{self, Plan};

/// URL options that also apply to a plan.
const OPTIONS_OF_PLANS: [&str; 2] = ["--seed", "--insecure"];
/// URL options that a capacity search sets itself.
const OPTIONS_SET_BY_SEARCH: [&str; 4] = ["-d", "-n", "-r", "--warmup"];

/// The options of a target that is given as a URL.
#[derive(Debug)]
struct UrlArgs {
    options: UrlOptions,
    /// Flags of the options that the command line sets, such as `-r`.
    set_flags: Vec<String>,
}

impl UrlArgs {
    /// Returns the first flag on the command line that `matches` accepts.
    fn find_set_flag(&self, matches: impl Fn(&str) -> bool) -> Option<&str> {
        self.set_flags.iter().map(String::as_str).find(|option| matches(option))
    }
}

impl Args for UrlArgs {
    fn augment_args(command: Command) -> Command {
        UrlOptions::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        UrlOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for UrlArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<UrlArgs, clap::Error> {
        let command = UrlOptions::augment_args(Command::new("URL"));
        let set_options = command.get_arguments().filter(|option| {
            matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
        });
        let flag_of = |option: &clap::Arg| match (option.get_short(), option.get_long()) {
            (Some(short), _) => format!("-{short}"),
            (None, long) => format!("--{}", long.unwrap_or_default()),
        };
        let set_flags = set_options.map(flag_of).collect();
        Ok(UrlArgs { options: UrlOptions::from_arg_matches(matches)?, set_flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = UrlArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The target of a load test, and the options of its load.
#[derive(Args, Debug)]
pub(crate) struct TargetArgs {
    /// URL of the target (http://, https://, ws:// or wss://), or a load plan
    #[arg(value_name = "URL|PLAN.TOML")]
    url_or_plan: String,

    /// Set a variable of the plan; may be repeated
    #[arg(long, value_name = "NAME=NUMBER", value_parser = plan::line::parse_variable)]
    set: Vec<(String, f64)>,

    /// Load-test this URL instead of the plan's target
    #[arg(long = "target", value_name = "URL")]
    plan_target: Option<String>,

    #[command(flatten)]
    url_args: UrlArgs,
}

impl TargetArgs {
    /// Builds the plan. The outer error is a failure such as an unreachable target. The inner error
    /// describes a fault in the arguments or the plan.
    pub(crate) fn build_plan(&self) -> Result<Result<Plan, String>> {
        if self.is_url() { self.build_plan_from_url() } else { Ok(self.read_plan()) }
    }

    /// Builds the plan of a capacity search, which sets rate and duration itself. `rate` is the
    /// first rate for a URL, and `workers` its default concurrency.
    pub(crate) fn build_search_plan(
        &mut self,
        rate: f64,
        workers: u64,
    ) -> Result<Result<Plan, String>> {
        if !self.is_url() {
            return Ok(self.read_plan());
        }
        if let Some(option) =
            self.url_args.find_set_flag(|option| OPTIONS_SET_BY_SEARCH.contains(&option))
        {
            let message = format!(
                "{option} cannot be used with a search, which sets rate and time itself: see --rate-start, \
                 --rate-max, --probe and --probe-warmup"
            );
            return Ok(Err(message));
        }
        let options = &mut self.url_args.options;
        options.rate = Some(rate.to_string());
        options.concurrency = options.concurrency.or(Some(workers));
        let plan = self.build_plan_from_url()?;
        Ok(plan.map(|mut plan| {
            plan.capacity.rate_start = rate;
            plan
        }))
    }

    /// Returns the error of a run that failed. If the plan needs more open files than the system
    /// allows, the error states which load fits.
    pub(crate) fn explain(&self, fault: RunFault) -> anyhow::Error {
        let name = &self.url_or_plan;
        let text = std::fs::read_to_string(name).unwrap_or_default();
        match open_files::advice(&fault, &text, name, &self.set) {
            Some(advice) => anyhow!("{fault}; {advice}"),
            None => fault.into(),
        }
    }

    fn is_url(&self) -> bool {
        self.url_or_plan.contains("://")
    }

    /// Builds the plan of a URL. Calls the target to detect its family of chains.
    fn build_plan_from_url(&self) -> Result<Result<Plan, String>> {
        if self.plan_target.is_some() {
            return Ok(Err("--target cannot be used with a URL, which is the target".to_owned()));
        }
        if !self.set.is_empty() {
            return Ok(
                Err("--set cannot be used with a URL: only plans have variables".to_owned()),
            );
        }
        let options = &self.url_args.options;
        let plan = options.plan(&self.url_or_plan, |target, tls| {
            match target::detect_family(target, tls) {
                Ok(family) => Ok(Some(family)),
                // If the options set the requests, the plan needs no family.
                Err(fault) if options.sets_requests() && is_undetected_family(&fault.reason) => {
                    Ok(None)
                }
                Err(fault) => Err(fault),
            }
        })?;
        Ok(plan.map_err(|faults| faults.to_string()))
    }

    /// Reads the plan, and applies the options that also apply to a plan.
    fn read_plan(&self) -> Result<Plan, String> {
        let name = &self.url_or_plan;
        if let Some(option) =
            self.url_args.find_set_flag(|option| !OPTIONS_OF_PLANS.contains(&option))
        {
            return Err(format!("{option} cannot be used with a plan: set it in {name}"));
        }
        let text = std::fs::read_to_string(name).map_err(|error| {
            let hint = "a URL begins with http://, https://, ws:// or wss://";
            format!("cannot read the plan {name}: {error} ({hint})")
        })?;
        let mut plan = plan::read(&text, name, &self.set).map_err(|faults| faults.to_string())?;
        if let Some(url) = &self.plan_target {
            plan.point_at(url).map_err(|fault| format!("--target: {fault}"))?;
        }
        plan.seed = self.url_args.options.seed.unwrap_or(plan.seed);
        plan.connections.tls.insecure |= self.url_args.options.insecure;
        Ok(plan)
    }
}

/// Returns true if the target responds, but its family of chains cannot be detected, for example
/// because it rejects calls over a rate limit.
fn is_undetected_family(reason: &Reason) -> bool {
    matches!(reason, Reason::NoFamily { .. } | Reason::NotJsonRpc { .. } | Reason::Limited { .. })
}
