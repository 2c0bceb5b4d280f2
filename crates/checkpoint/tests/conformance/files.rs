//! Part files: what is written is read back, and damage is reported and never returned.

use crate::model::assert_same;
use crate::world::World;
use stillpoint_checkpoint::registry;
use stillpoint_store::TableId;

#[test]
fn values_of_all_sizes_come_back() {
    for row in registry::REGISTRY
        .iter()
        .filter(|row| row.capabilities.takes_checkpoints())
    {
        let world = World::new(row, 1);
        let mut worker = world.worker(0);
        let sizes = [
            0,
            1,
            7,
            8,
            100,
            2044,
            2045,
            16384,
            16385,
            70_000,
            1 << 20,
            (1 << 20) + 1,
            3_500_000,
        ];
        for (at, &len) in sizes.iter().enumerate() {
            let value: Vec<u8> = (0..len).map(|i| (i * 31 + at) as u8).collect();
            let key = vec![b'a' + at as u8; [0, 1, 9, 3000, 65_536][at % 5]];
            worker
                .transact(|tx| tx.put(TableId(2), &key, at as u8, &value))
                .expect("memory");
        }
        for i in 0..5000u32 {
            let key = i.to_be_bytes();
            worker
                .transact(|tx| tx.put(TableId(0), &key, 0, &[i as u8; 100]))
                .expect("memory");
        }
        for _ in 0..3 {
            let (epoch, state) = world.take_and_load();
            assert_same(&state, &world.history.state_before(epoch), row.name);
            worker
                .transact(|tx| tx.put(TableId(0), b"more", 1, b"12345678"))
                .expect("memory");
        }
        drop(worker);
        assert_eq!(world.unmarked(), 0);
        assert_same(&world.live(), &world.history.state(), row.name);
    }
}
