//! Sections that several kinds of documents share: lists of sentences, the first bottleneck, and
//! the origin of the numbers. `text![…]` joins texts.

use lab_model::results::{Finding, Fingerprint, PlanFacts, TargetFacts};

use super::document::{Block, List, Section, Start, Text, bold, code, text};
use crate::wording::number::{bytes, clock, count, plural, short, span};

/// Length in bytes from which the text of a plan is collapsed on the page.
const COLLAPSED_BYTES_MIN: usize = 2000;

/// Formats a value, or returns a dash for `None`.
pub(crate) fn or_dash<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), format)
}

/// Returns a section with a list of sentences, or `None` if the list is empty.
pub(crate) fn sentences(title: &str, list: List) -> Option<Section> {
    let id = title.to_lowercase().replace(' ', "-");
    let section = Section::new(id, title).start(Start::NextLine);
    (!list.items.is_empty()).then(|| section.add(Block::List(list)))
}

/// Returns a section with warnings, or `None` if there is no warning. The terminal shows at most
/// `terminal_max` warnings.
pub(crate) fn warnings(warnings: &[String], terminal_max: usize) -> Option<Section> {
    let name = Some("warning");
    let list = List { name, terminal_max, noun: "warning", ..List::of(warnings) };
    sentences("Warnings", list)
}

/// Returns the runs that the analysis leaves out, or `None` if there is no such run. `variants` has
/// the name of each variant and its left-out runs with reasons.
pub(crate) fn left_out<'a>(
    variants: impl Iterator<Item = (&'a String, &'a Vec<String>)>,
) -> Option<Section> {
    let left_out = variants.flat_map(|(variant, runs_left_out)| {
        runs_left_out.iter().map(move |run| format!("{variant}, {run}"))
    });
    sentences("Left out", List { prefix: "left out: ", ..List::of(left_out) })
}

/// Returns the section of the first bottleneck for the page.
pub(crate) fn bottleneck(finding: &Finding) -> Section {
    let began = finding.at.map(|began| format!(" · began at {}", clock(began))).unwrap_or_default();
    let confidence = finding.confidence.as_str();
    let note = Text::marked(&format!("[Confidence](first bottleneck) {confidence}{began}"));
    let cause = bold(format!("{}.", finding.cause.as_str()));
    let card = [
        Some(Block::Paragraph(text![cause, " ", &finding.sentence])),
        (!finding.evidence.is_empty()).then(|| Block::List(List::of(&finding.evidence))),
        Some(Block::Note(note)),
    ];
    let section = Section::new("bottleneck", "First bottleneck").nav("First bottleneck");
    section.add(Block::Card(card.into_iter().flatten().collect()))
}

/// Returns the evidence of the first bottleneck for Markdown, or `None` if there is none. The
/// bottleneck itself is a fact of the summary.
pub(crate) fn evidence(finding: Option<&Finding>) -> Option<Section> {
    let finding = finding.filter(|finding| !finding.evidence.is_empty())?;
    let section = Section::new("", "Evidence of the first bottleneck").detail();
    Some(section.add(Block::List(List::of(&finding.evidence))))
}

/// Creates a name with its value. The name is marked text (see [`Text::marked`]).
pub(crate) fn fact(name: &str, value: impl Into<Text>) -> (Text, Text) {
    (Text::marked(name), value.into())
}

/// Returns the target, the plan, and the generator's machine.
pub(crate) fn origin(
    (weir, schema, started): (&str, &str, &str),
    plan: &PlanFacts,
    target: &TargetFacts,
    machine: &Fingerprint,
) -> Section {
    let optional_fact = |name, value: &Option<String>| value.as_ref().map(|text| fact(name, text));
    let head = target.head_start.map(|head| {
        let head_end_text =
            target.head_end.map(|head_end| format!(" to {}", count(head_end))).unwrap_or_default();
        fact("Head", format!("{}{head_end_text}", count(head)))
    });
    let limit = machine.cpu_limit.map(|limit| format!(", limited to {}", short(limit)));
    let cores = format!("{}{}", machine.cores, limit.unwrap_or_default());
    let is_local = if machine.target_local { "yes" } else { "no" };
    let run_facts = [
        Some(fact("Target", &target.url)),
        Some(fact("Family", &target.family)),
        optional_fact("Client", &target.client),
        optional_fact("Chain", &target.chain_id),
        head,
        Some(fact("Plan", &plan.name)),
        Some(fact("[Plan hash](plan hash)", code(&plan.hash))),
        Some(fact("[Seed](seed)", plan.seed.to_string())),
        Some(fact("Warm-up", span(plan.warmup))),
        Some(fact("Written by", format!("weir {weir}, schema {schema}"))),
        Some(fact("Started", started)),
        Some(fact("Engine", plural(plan.threads as u64, "thread"))),
    ];
    let machine_facts = [
        Some(fact("[Generator](fingerprint)", &machine.host)),
        Some(fact("CPU", &machine.cpu)),
        Some(fact("Cores", cores)),
        Some(fact("Memory", bytes(machine.memory_bytes as f64))),
        Some(fact("Kernel", &machine.kernel)),
        optional_fact("Governor", &machine.governor),
        optional_fact("Congestion control", &machine.congestion),
        Some(fact("Target on this host", is_local)),
    ];
    let run_facts = Block::Facts(run_facts.into_iter().flatten().collect());
    let machine_facts = Block::Facts(machine_facts.into_iter().flatten().collect());
    Section::new("origin", "How it was measured")
        .nav("How it was measured")
        .detail()
        .intro(
            "Two results are comparable if these values are equal; `weir compare` lists \
             mismatches.",
        )
        .add(Block::Columns(vec![run_facts, machine_facts]))
}

/// Returns the command that repeats the run, and the plan's text. `command` is the subcommand, such
/// as `load`. If the URL has a masked secret, the command reads the URL from the environment
/// variable `TARGET`.
pub(crate) fn repeat(plan: &PlanFacts, target: &TargetFacts, command: &str) -> Section {
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
        .add(Block::Subheading("Repeat this run".to_owned()))
        .add(Block::Paragraph(Text::marked("Save the plan below as `plan.toml`, then:")))
        .add(Block::Code(command_line))
        .add(is_masked.then(secret_note))
        .add(Block::Fold { summary, open, blocks: plan_text })
}
