//! The stringprep profile of iSCSI names (RFC 3722): one spelling for texts that look alike, and the characters that no
//! name has. Its tables are those of Unicode 3.2 (RFC 3454), for ever.
//!
//! Not here: the forms of names, their length, and who is held to what.

use stringprep::tables;
use unicode_normalization::UnicodeNormalization;

/// Maps a text as clauses 3 and 4 say: what is not seen goes, case is folded, and compatible characters become one
/// (Normalization Form KC, which is also Form C).
pub(super) fn map(text: &str) -> String {
    text.chars()
        .filter(|&character| !tables::commonly_mapped_to_nothing(character))
        .flat_map(tables::case_fold_for_nfkc)
        .nfkc()
        .collect()
}

/// True for characters that are not seen or only change what others look like: mapped to nothing, or of Unicode's
/// category Cf, also where that is younger than Unicode 3.2. Two names can look alike because of them, and those that
/// turn the direction of writing rearrange whatever they are shown in.
pub(super) fn is_unseen(character: char) -> bool {
    tables::commonly_mapped_to_nothing(character)
        || matches!(
            character,
            '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{2064}'
                | '\u{2066}'..='\u{2069}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
        )
}

/// True for characters beyond ASCII that clause 5 forbids in what comes out of [`map`].
pub(super) fn is_prohibited(character: char) -> bool {
    // Ideographic full stop: it looks like the dot between the parts of a name.
    character == '\u{3002}'
        || tables::non_ascii_space_character(character)
        || tables::non_ascii_control_character(character)
        || tables::private_use(character)
        || tables::non_character_code_point(character)
        || tables::inappropriate_for_plain_text(character)
        || tables::inappropriate_for_canonical_representation(character)
        || tables::change_display_properties_or_deprecated(character)
        || tables::tagging_character(character)
}

/// True for what may not stand in a name that is to last: code points that Unicode 3.2 had not assigned, whose case and
/// composition the profile does not know; and letters that are written from right to left, since every name begins with
/// one that is not (RFC 3454, 6).
pub(super) fn is_unfit_to_keep(character: char) -> bool {
    tables::unassigned_code_point(character) || tables::bidi_r_or_al(character)
}
