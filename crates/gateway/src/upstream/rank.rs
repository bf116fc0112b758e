//! Ranks the attempts of a call. The client gets the payload of the best one.

use crate::call::Payload;
use crate::policy::classify::{Fault, Verdict};
use crate::upstream::send::Attempt;

/// Returns the attempt whose payload is more useful to the client. If both are equally useful,
/// returns the first.
pub(super) fn pick_better(best: Option<Attempt>, attempt: Attempt) -> Attempt {
    match best {
        Some(best) if rank(&best) >= rank(&attempt) => best,
        _ => attempt,
    }
}

/// Ranks an attempt by how useful its payload is to the client, from 0 to 5. Also returns the
/// number of items in a doubtful result, which decides between attempts of equal rank.
fn rank(attempt: &Attempt) -> (u8, usize) {
    let items = attempt.doubted_response.map_or(0, |response| response.items);
    let rank = match attempt.verdict {
        _ if attempt.payload.is_none() => 0,
        Verdict::RateLimited { .. } => 1,
        Verdict::Unsupported | Verdict::UpstreamFault(Fault::Internal | Fault::Refused) => 2,
        // An error with another fault.
        Verdict::UnknownError => 3,
        Verdict::UpstreamFault(_) if !matches!(attempt.payload, Some(Payload::Result(_))) => 3,
        // A result with a fault.
        Verdict::UpstreamFault(_) => 4,
        Verdict::Response
        | Verdict::DeterministicError
        | Verdict::AlreadyKnown
        | Verdict::NonceTooLow => 5,
    };
    (rank, items)
}
