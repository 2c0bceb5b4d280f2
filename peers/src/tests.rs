use stillpoint_lab::peers::Setup;

use super::*;

#[test]
fn each_store_updates_all_keys_or_none_and_two_sessions_lose_nothing() {
    for row in rows() {
        for is_durable in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let setup = Setup { dir: dir.path().to_owned(), is_durable, data_bytes: 1 << 20 };
            let store = (row.open)(&setup).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            let key = |number: u64| number.to_be_bytes();
            let records: Vec<_> = (0..20).map(|number| (key(number), vec![0; 100])).collect();
            store.session().expect("a session").load(&records).expect("loads");
            let missing = [key(1), key(99)];
            let mut session = store.session().expect("a session");
            let refused = session.update(&missing, &mut |value| value[0] = 99);
            assert!(refused.is_err_and(|why| why.contains("no value")), "{}", row.name);
            drop(session);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut session = store.session().expect("a session");
                        for turn in 0..20 {
                            let keys = [key(turn % 5), key(5 + turn % 5)];
                            session.update(&keys, &mut |value| value[0] += 1).expect("commits");
                        }
                    });
                }
            });
            let mut session = store.session().expect("a session");
            let mut sum = 0;
            for number in 0..20 {
                session.read(key(number), &mut |value| sum += u32::from(value[0])).expect("reads");
            }
            assert_eq!(sum, 80, "{}, durable: {is_durable}", row.name);
            assert!(session.read(key(99), &mut |_| ()).is_err(), "{}", row.name);
        }
    }
}
