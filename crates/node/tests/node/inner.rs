//! Tests of inner nodes under splits and merges of their children, in comparison with a list.

use stillpoint_format::node::NODE_BYTES_MAX;
use stillpoint_node::{Child, Node, NodeError, NodeKind};
use stillpoint_sync::atomic::Ordering::Relaxed;

use crate::common::{PAGES, below, fences_of, key, page, run};

/// The children with the lower fence of each.
type Model = Vec<(Vec<u8>, Child)>;

fn check(node: &Node<'_>, model: &Model) {
    node.check().expect("a sound node");
    assert_eq!(node.child_count(), model.len());
    let mut before = 0;
    for (position, (lower, child)) in model.iter().enumerate() {
        assert_eq!(node.child(position), *child);
        assert_eq!(node.child_of(lower), position);
        assert_eq!(node.child_below(lower), position.saturating_sub(1));
        assert_eq!(node.records_before(position), before);
        if child.records > 0 {
            assert_eq!(node.child_at_record(before), Some((position, before)));
            let last = before + child.records - 1;
            assert_eq!(node.child_at_record(last), Some((position, before)));
        }
        before += child.records;
    }
    assert_eq!(node.records(), before);
    assert_eq!(node.child_at_record(before), None);
}

/// Splits the node in two and merges both again.
fn split_and_merge(node: &Node<'_>, model: &Model, pending: &[u8]) {
    let words = page(node.page_bytes());
    let right = Node::new(&words);
    let split = node.split_for(pending);
    node.split(&split, &right);
    let at =
        model.iter().position(|(lower, _)| *lower == split.separator).expect("a child's fence");
    let (left_model, right_model) = model.split_at(at);
    check(node, &left_model.to_vec());
    check(&right, &right_model.to_vec());
    assert_eq!(fences_of(node).1.as_ref(), Some(&split.separator));
    assert_eq!(fences_of(&right).0, split.separator);
    node.merge(&right).expect("both were one page");
}

#[test]
fn inner_nodes_hold_what_a_list_holds() {
    run(60, |random| {
        let page_bytes = PAGES[below(random, PAGES.len())];
        let kind = [NodeKind::Inner, NodeKind::CountedInner][below(random, 2)];
        let words = page(page_bytes);
        let node = Node::new(&words);
        node.init(kind, 1, b"", None);
        let fresh = |number: u64| Child {
            at: number,
            records: if kind == NodeKind::CountedInner { number % 5 } else { 0 },
        };
        node.set_only_child(fresh(1));
        let mut model: Model = vec![(Vec::new(), fresh(1))];
        for step in 0..600 {
            let separator = key(random, page_bytes);
            let position = node.child_of(&separator);
            if below(random, 3) > 0 && model[position].0 != separator {
                let (left, right) = (fresh(step * 2 + 2), fresh(step * 2 + 3));
                match node.insert_child(&separator, left, right) {
                    Ok(()) => {
                        model[position].1 = left;
                        model.insert(position + 1, (separator, right));
                    }
                    Err(NodeError::Full { .. }) => {
                        let lower = separator;
                        check(&node, &model);
                        split_and_merge(&node, &model, &lower);
                    }
                    Err(error) => panic!("{error}"),
                }
            } else if model.len() > 1 {
                let separator = below(random, model.len() - 1);
                let merged = fresh(step * 2 + 2);
                node.merge_children(separator, merged);
                model.remove(separator + 1);
                model[separator].1 = merged;
            }
            if step % 50 == 0 {
                check(&node, &model);
            }
        }
        check(&node, &model);
    });
}

#[test]
fn counts_are_added_in_place() {
    let words = page(NODE_BYTES_MAX);
    let node = Node::new(&words);
    node.init(NodeKind::CountedInner, 2, b"", None);
    node.set_only_child(Child { at: 5, records: 10 });
    node.insert_child(b"m", Child { at: 6, records: 4 }, Child { at: 7, records: 6 })
        .expect("room");
    node.child_records(0).fetch_add(1, Relaxed);
    node.child_records(1).fetch_sub(2, Relaxed);
    assert_eq!((node.child(0).records, node.child(1).records), (5, 4));
    assert_eq!(node.records(), 9);
}
