//! The formats of the variants' files. An option such as `--csv` applies to the variants after it,
//! so variants of one study may come from files of different formats.

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use lab::study::read::FileFormat;
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
        value_parser = PossibleValuesParser::new(FileFormat::log_names())
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
    /// The option's flag, such as `--csv`.
    name: &'static str,
    /// The format in which the files are read.
    format: FileFormat,
    /// The kind of the files, as the result names it.
    source: Source,
}

/// The variants' formats, with the positions of options and variants on the command line.
pub(super) struct InputArgs {
    /// True if the variants are running nodes.
    pub(super) rpc: bool,
    /// The format options with their positions, in the order of the command line.
    options: Vec<(usize, FormatOption)>,
    /// The positions of the variants.
    variants: Vec<usize>,
}

impl InputArgs {
    /// Returns the format and the source of each variant. Returns `None` if there is no format
    /// option: then the arguments are nodes or a study file.
    ///
    /// # Errors
    /// Describes a variant without a format, or an option without a variant.
    pub(super) fn formats(&self) -> Result<Option<Vec<(FileFormat, Source)>>, String> {
        let format_of = |option: &FormatOption| (option.format, option.source);
        match self.options.as_slice() {
            [] => return Ok(None),
            [(_, single_option)] => {
                return Ok(Some(vec![format_of(single_option); self.variants.len()]));
            }
            _ => {}
        }
        let mut used = vec![false; self.options.len()];
        let mut formats = Vec::with_capacity(self.variants.len());
        for variant in &self.variants {
            let preceding = self.options.iter().rposition(|(position, _)| position < variant);
            let Some(option_index) = preceding else {
                return Err("with several of --log, --csv and --samples, each variant must stand \
                            after the option of its file"
                    .to_owned());
            };
            used[option_index] = true;
            formats.push(format_of(&self.options[option_index].1));
        }
        match used.iter().position(|used| !used) {
            Some(unused) => {
                let name = self.options[unused].1.name;
                Err(format!("no variant stands after {name}; place its files behind it"))
            }
            None => Ok(Some(formats)),
        }
    }

    fn new(args: FormatArgs, positions: Positions) -> InputArgs {
        let option = |name, format, source| FormatOption { name, format, source };
        let log_option = |(position, name): (usize, String)| {
            Some((position, option("--log", FileFormat::log(&name)?, Source::Logs)))
        };
        let mut options: Vec<(usize, FormatOption)> =
            positions.logs.into_iter().zip(args.log).filter_map(log_option).collect();
        let csv_option = option("--csv", FileFormat::Table, Source::Tables);
        options.extend(positions.csv.map(|position| (position, csv_option)));
        let samples_option = option("--samples", FileFormat::Samples, Source::Samples);
        options.extend(positions.samples.map(|position| (position, samples_option)));
        options.sort_by_key(|(position, _)| *position);
        InputArgs { rpc: args.rpc, options, variants: positions.variants }
    }
}

/// Positions of options and variants on the command line.
struct Positions {
    /// Positions of the values of `--log`.
    logs: Vec<usize>,
    csv: Option<usize>,
    samples: Option<usize>,
    variants: Vec<usize>,
}

impl Positions {
    fn new(matches: &ArgMatches) -> Positions {
        let positions_of = |id: &str| -> Vec<usize> {
            let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
            matches.indices_of(id).filter(|_| is_given).into_iter().flatten().collect()
        };
        let first_position_of = |id: &str| positions_of(id).first().copied();
        Positions {
            logs: positions_of("log"),
            csv: first_position_of("csv"),
            samples: first_position_of("samples"),
            variants: positions_of(VARIANTS),
        }
    }
}

impl FromArgMatches for InputArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<InputArgs, clap::Error> {
        let positions = Positions::new(matches);
        Ok(InputArgs::new(FormatArgs::from_arg_matches(matches)?, positions))
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<InputArgs, clap::Error> {
        let positions = Positions::new(matches);
        Ok(InputArgs::new(FormatArgs::from_arg_matches_mut(matches)?, positions))
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
