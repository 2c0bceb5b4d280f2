use super::super::tags::tests::content;
use super::*;
use crate::keyspace::kinds::Kind;

#[test]
fn members_of_one_tag_and_score_and_of_a_divided_score_are_whole() {
    let set = Elements::stored(Kind::SORTED_SET, vec![0; 5]).expect("an empty one");
    let hashes = set.member_hashes();
    let all: Vec<Vec<u8>> =
        (0..2_000_u32).map(|i| content(f64::from(i % 3), &i.to_be_bytes())).collect();
    let all: Vec<&[u8]> = all.iter().map(|content| &content[..]).collect();
    let two = *content(2.0, b"").first_chunk().expect("a score");
    let elements = index_elements(&hashes, &[two], &all);
    assert_eq!(elements.len(), all.len());
    let short: Vec<(u32, Score)> = elements.iter().filter_map(short_parts).collect();
    assert!(!short.is_empty() && short.iter().all(|(_, score)| *score != two));
    for (tag, score) in short {
        let of_tag = |content: &&&[u8]| hashes.of(content) == hashes_of(tag);
        assert_eq!(all.iter().filter(of_tag).filter(|it| it.starts_with(&score)).count(), 1);
    }
}
