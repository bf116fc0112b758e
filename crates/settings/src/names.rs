//! Finds the known name that a misspelt name is nearest to.

/// Returns the nearest name by edit distance. Returns `None` if there are no names, if more than a
/// third of the letters differ, or if `written` is too long for a comparison.
pub fn find_nearest_name<'n>(written: &str, names: &[&'n str]) -> Option<&'n str> {
    /// Maximum length of a compared name. The cost grows with the square of the length.
    const NAME_BYTES_MAX: usize = 64;
    if written.len() > NAME_BYTES_MAX {
        return None;
    }
    let distance = |name: &str| strsim::osa_distance(&written.to_lowercase(), &name.to_lowercase());
    let (nearest_distance, nearest_name) =
        names.iter().map(|name| (distance(name), *name)).min_by_key(|(distance, _)| *distance)?;
    let distance_max = (nearest_name.len().max(written.len()) / 3).max(1);
    // If the distance is the whole length, the names have no letter in common.
    (nearest_distance <= distance_max && nearest_distance < written.len()).then_some(nearest_name)
}

/// Returns the message and the allowed values for a name that does not exist. `kind` is the kind of
/// the name, such as "chain".
pub fn not_found_message(kind: &str, name: &str, known: &[&str]) -> (String, String) {
    let message = match find_nearest_name(name, known) {
        Some(nearest_name) => format!("there is no such {kind}; did you mean {nearest_name}?"),
        None => format!("there is no such {kind}"),
    };
    let allowed = if known.is_empty() { format!("no {kind} is defined") } else { known.join(", ") };
    (message, allowed)
}
