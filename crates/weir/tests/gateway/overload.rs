//! Goal: nodes that are asked for three times what they carry go on giving nearly all they can, calls
//! of the better class hardly notice, memory stays flat, and who is turned away is told so at once.
//! Method: the whole of it once with real processes and open-loop load (`load`), coarse because tests
//! share their machine (`cargo xtask bench overload` is the fine one); and what single clients see
//! (`answers`), and nodes that become slow while they have room (`slower`). The judge of the first is shown a gateway without the limit, which it must condemn.

mod answers;
mod load;
mod slower;
