//! Goal: nodes that are asked for three times what they carry go on giving nearly all they can, calls
//! of the better class hardly notice, memory stays flat, and who is turned away is told so at once.
//! Method: the whole of it once with real processes and open-loop load (`load`), coarse because tests
//! share their machine (`cargo xtask bench overload` is the fine one); and what single clients see
//! (`answers`), and nodes that become slow while they have room (`slower`). The judge of the first is shown a gateway without the limit, which it must condemn.

#![allow(clippy::unwrap_used)]

#[path = "support/raw.rs"]
mod raw;
#[path = "support/running.rs"]
mod running;
#[path = "serving/scene.rs"]
#[allow(dead_code)] // A part of it is used here.
mod scene;
#[path = "support/stalls.rs"]
mod stalls;

#[path = "overload/answers.rs"]
mod answers;
#[path = "overload/load.rs"]
mod load;
#[path = "overload/slower.rs"]
mod slower;
