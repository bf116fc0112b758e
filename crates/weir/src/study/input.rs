//! The formats of the variants' files. An option such as `--csv` applies to the variants after it,
//! so variants of one study may come from files of different formats.

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use lab::study::read::Form;
use lab_model::results::study::Source;

/// Id of the argument that has the variants.
const VARIANTS: &str = "given";

/// Heading of the options in the help text. The variants stand under the heading of arguments.
const HEADING: &str = "Input";

#[derive(Args)]
struct FormatArgs {
    /// The variants after this option are log files of nodes: pocketcoin (debug.log with
    /// debug=stat), geth, or bitcoind (debug.log)
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "KIND",
        value_parser = PossibleValuesParser::new(Form::log_names())
    )]
    log: Vec<String>,

    /// The variants after this option are CSV files with a header: time (or seconds), height, and
    /// columns of the page cache (docs/studies.md)
    #[arg(long, help_heading = HEADING)]
    csv: bool,

    /// The variants after this option are JSON lines, as `weir index sync --samples` writes them
    #[arg(long, help_heading = HEADING)]
    samples: bool,

    /// The variants are running nodes; Weir polls their heights
    #[arg(long, help_heading = HEADING, conflicts_with_all = ["log", "csv", "samples"])]
    rpc: bool,
}

/// An option that sets the format of the variants after it.
#[derive(Clone, Copy)]
struct FormatOption {
    name: &'static str,
    form: Form,
    source: Source,
}

/// The variants' formats, with the order of options and variants on the command line.
pub(super) struct InputArgs {
    /// True if the variants are running nodes.
    pub(super) rpc: bool,
    /// The options, each with its place on the command line.
    options: Vec<(usize, FormatOption)>,
    /// The places of the variants.
    variants: Vec<usize>,
}

impl InputArgs {
    /// Returns the format of each variant; `None` if they are not files.
    ///
    /// # Errors
    /// Describes a variant without a format, or an option without a variant.
    pub(super) fn formats(&self) -> Result<Option<Vec<(Form, Source)>>, String> {
        let format = |option: &FormatOption| (option.form, option.source);
        match self.options.as_slice() {
            [] => return Ok(None),
            [(_, only)] => return Ok(Some(vec![format(only); self.variants.len()])),
            _ => {}
        }
        let mut used = vec![false; self.options.len()];
        let mut formats = Vec::with_capacity(self.variants.len());
        for variant in &self.variants {
            let Some(last) = self.options.iter().rposition(|(place, _)| place < variant) else {
                return Err("with several of --log, --csv and --samples, each variant must stand \
                            after the option of its file"
                    .to_owned());
            };
            used[last] = true;
            formats.push(format(&self.options[last].1));
        }
        match used.iter().position(|used| !used) {
            Some(unused) => {
                let name = self.options[unused].1.name;
                Err(format!("no variant stands after {name}; place its files behind it"))
            }
            None => Ok(Some(formats)),
        }
    }

    fn read(args: FormatArgs, (logs, csv, samples, variants): Places) -> InputArgs {
        let option = |name, form, source| FormatOption { name, form, source };
        let log = |(place, name): (usize, String)| {
            Some((place, option("--log", Form::log(&name)?, Source::Logs)))
        };
        let mut options: Vec<(usize, FormatOption)> =
            logs.into_iter().zip(args.log).filter_map(log).collect();
        options.extend(csv.map(|place| (place, option("--csv", Form::Table, Source::Tables))));
        let of_samples = option("--samples", Form::Samples, Source::Samples);
        options.extend(samples.map(|place| (place, of_samples)));
        options.sort_by_key(|(place, _)| *place);
        InputArgs { rpc: args.rpc, options, variants }
    }
}

/// The places of `--log`, `--csv`, `--samples` and of the variants on the command line.
type Places = (Vec<usize>, Option<usize>, Option<usize>, Vec<usize>);

fn places(matches: &ArgMatches) -> Places {
    let places_of = |id: &str| -> Vec<usize> {
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        matches.indices_of(id).filter(|_| is_given).into_iter().flatten().collect()
    };
    let place_of = |id: &str| places_of(id).first().copied();
    (places_of("log"), place_of("csv"), place_of("samples"), places_of(VARIANTS))
}

impl FromArgMatches for InputArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<InputArgs, clap::Error> {
        let places = places(matches);
        Ok(InputArgs::read(FormatArgs::from_arg_matches(matches)?, places))
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<InputArgs, clap::Error> {
        let places = places(matches);
        Ok(InputArgs::read(FormatArgs::from_arg_matches_mut(matches)?, places))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = InputArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for InputArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        FormatArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        FormatArgs::augment_args_for_update(command)
    }
}
