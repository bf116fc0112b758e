//! Goal: each piece of the picture has its column of the terminal. Method: one line with two
//! colours and a gap.

use super::{split_pieces, svg_attributes};

#[test]
fn pieces_keep_their_columns_and_colours() {
    let pieces = split_pieces("  name \x1b[32m     0\x1b[0m  two words");
    let parsed: Vec<_> =
        pieces.iter().map(|piece| (piece.column, piece.style, piece.text)).collect();
    let plain = svg_attributes("0");
    assert_eq!(
        parsed,
        [(2, plain, "name"), (12, svg_attributes("32"), "0"), (15, plain, "two words")]
    );
}
