//! Sections that several kinds of documents share: lists of sentences, the first bottleneck, and
//! the origin of the numbers. `text![…]` joins texts.

use lab_model::results::{Finding, Fingerprint, PlanFacts, TargetFacts};

use super::document::{
    Block, Formats, List, MARKDOWN, PAGE, Section, TERMINAL, Text, bold, code, text,
};
use crate::wording::number::{bytes, clock, count, plural, short, span};

/// Length in bytes from which the text of a plan is collapsed on the page.
const COLLAPSED_BYTES_MIN: usize = 2000;

/// Formats a value, or returns a dash for `None`.
pub(super) fn or_dash<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), format)
}

/// Returns a section with a list of sentences, or `None` if the list is empty.
pub(super) fn sentences(title: &str, list: List, formats: Formats) -> Option<Section> {
    let id = title.to_lowercase().replace(' ', "-");
    let section = Section { tight: true, ..Section::new(id, title) };
    (!list.items.is_empty()).then(|| section.on(formats, Block::List(list)))
}

/// Returns a section with warnings, or `None` if there is no warning. The terminal shows at most
/// `terminal_max` warnings.
pub(super) fn warnings(
    warnings: &[String],
    terminal_max: usize,
    formats: Formats,
) -> Option<Section> {
    let name = Some("warning");
    let list = List { name, terminal_max, noun: "warning", ..List::of(warnings) };
    sentences("Warnings", list, formats)
}

/// Returns the runs that the analysis leaves out, or `None` if there is no such run. `variants` has
/// the name of each variant and its left-out runs with reasons.
pub(super) fn left_out<'a>(
    variants: impl Iterator<Item = (&'a String, &'a Vec<String>)>,
    formats: Formats,
) -> Option<Section> {
    let left_out = variants.flat_map(|(variant, runs_left_out)| {
        runs_left_out.iter().map(move |run| format!("{variant}, {run}"))
    });
    sentences("Left out", List { prefix: "left out: ", ..List::of(left_out) }, formats)
}

/// Returns the section of the first bottleneck with its evidence, or `None` if there is no finding.
/// If `formats` is [`PAGE`], the section is a card. Otherwise it has a paragraph for Markdown, and
/// a line for the terminal if `formats` includes the terminal.
pub(super) fn bottleneck(finding: Option<&Finding>, formats: Formats) -> Option<Section> {
    let finding = finding?;
    let evidence = || Block::List(List::of(&finding.evidence));
    let began = finding.at.map(|began| format!(" · began at {}", clock(began))).unwrap_or_default();
    let confidence = finding.confidence.as_str();
    let note = Text::marked(&format!("[Confidence](first bottleneck) {confidence}{began}"));
    let cause = bold(format!("{}. ", finding.cause.as_str()));
    let card = [
        Some(Block::Paragraph(text![cause, &finding.sentence])),
        (!finding.evidence.is_empty()).then(evidence),
        Some(Block::Note(note)),
    ];
    let section = Section::new("bottleneck", "First bottleneck");
    Some(match formats {
        PAGE => {
            let card = card.into_iter().flatten().collect();
            section.nav("First bottleneck").on(PAGE, Block::Card(card))
        }
        _ => Section { tight: true, ..section }
            .on(TERMINAL, formats.has(TERMINAL).then(|| line("bottleneck", &finding.sentence)))
            .on(MARKDOWN, Block::Paragraph(Text::from(&finding.sentence)))
            .on(MARKDOWN, evidence()),
    })
}

/// Creates a line for the terminal with a name and a text.
pub(super) fn line(name: &'static str, text: impl Into<Text>) -> Block {
    Block::Line(name, text.into())
}

/// Returns the target, the plan, and the generator's machine.
pub(super) fn origin(plan: &PlanFacts, target: &TargetFacts, machine: &Fingerprint) -> Section {
    let fact = |name: &str, value: Text| (Text::marked(name), value);
    let optional_fact =
        |name, value: &Option<String>| value.as_ref().map(|text| fact(name, text.into()));
    let head = target.head_start.map(|head| {
        let head_end_text =
            target.head_end.map(|head_end| format!(" to {}", count(head_end))).unwrap_or_default();
        fact("Head", format!("{}{head_end_text}", count(head)).into())
    });
    let limit = machine.cpu_limit.map(|limit| format!(", limited to {}", short(limit)));
    let cores = format!("{}{}", machine.cores, limit.unwrap_or_default());
    let is_local = if machine.target_local { "yes" } else { "no" };
    let run_facts = [
        Some(fact("Target", (&target.url).into())),
        Some(fact("Family", (&target.family).into())),
        optional_fact("Client", &target.client),
        optional_fact("Chain", &target.chain_id),
        head,
        Some(fact("Plan", (&plan.name).into())),
        Some(fact("[Plan hash](plan hash)", code(&plan.hash))),
        Some(fact("[Seed](seed)", plan.seed.to_string().into())),
        Some(fact("Warm-up", span(plan.warmup).into())),
        Some(fact("Engine", plural(plan.threads as u64, "thread").into())),
    ];
    let machine_facts = [
        Some(fact("[Generator](fingerprint)", (&machine.host).into())),
        Some(fact("CPU", (&machine.cpu).into())),
        Some(fact("Cores", cores.into())),
        Some(fact("Memory", bytes(machine.memory_bytes as f64).into())),
        Some(fact("Kernel", (&machine.kernel).into())),
        optional_fact("Governor", &machine.governor),
        optional_fact("Congestion control", &machine.congestion),
        Some(fact("Target on this host", is_local.into())),
    ];
    let run_facts = Block::Facts(run_facts.into_iter().flatten().collect());
    let machine_facts = Block::Facts(machine_facts.into_iter().flatten().collect());
    Section::new("origin", "How it was measured")
        .nav("How it was measured")
        .intro(
            "Two results are comparable if these values are equal; `weir compare` lists \
             mismatches.",
        )
        .on(PAGE, Block::Columns(vec![run_facts, machine_facts]))
}

/// Returns the command that repeats the run, and the plan's text. `command` is the subcommand, such
/// as `load`. If the URL has a masked secret, the command reads the URL from the environment
/// variable `TARGET`.
pub(super) fn repeat(
    plan: &PlanFacts,
    target: &TargetFacts,
    command: &str,
    (version, schema): (&str, &str),
) -> Section {
    let is_masked = target.url.contains(settings::MASK);
    let url = if is_masked { "\"$TARGET\"" } else { &target.url };
    let insecure = if plan.insecure { " --insecure" } else { "" };
    let command_line =
        format!("weir {command} plan.toml --target {url} --seed {}{insecure}", plan.seed);
    let secret_note =
        || Block::Note(Text::marked("The URL contains a secret: set `TARGET` to it first."));
    let summary = "Text of the plan".to_owned();
    let plan_text = vec![Block::Code(plan.text.clone())];
    let open = plan.text.len() < COLLAPSED_BYTES_MIN;
    Section::default()
        .on(PAGE, Block::Subheading("Repeat this run".to_owned()))
        .on(PAGE, Block::Paragraph(Text::marked("Save the plan below as `plan.toml`, then:")))
        .on(PAGE, Block::Code(command_line))
        .on(PAGE, is_masked.then(secret_note))
        .on(PAGE, Block::Note(format!("Written by weir {version}, schema {schema}.").into()))
        .on(PAGE, Block::Fold { summary, open, blocks: plan_text })
}

/// Returns version, start, plan and seed for Markdown.
pub(super) fn plan_in_short(weir: &str, started: &str, plan: &PlanFacts) -> Text {
    let hash = plan.hash.get(..12).unwrap_or(&plan.hash);
    text![format!("weir {weir}, {started}, plan "), code(hash), format!(" seed {}", plan.seed)]
}
