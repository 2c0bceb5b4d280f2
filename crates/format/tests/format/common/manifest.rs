//! A sample manifest.

use stillpoint_format::LogGsn;
use stillpoint_format::manifest::{
    CheckpointEntry, CheckpointKind, Codec, IncarnationEntry, LogPositions, LogTail, Manifest,
    PartEntry, TableEntry, TableGeneration, TableRecords,
};

use super::STORE;

/// A store in its third incarnation with a full checkpoint and two partial ones on it.
pub(crate) fn manifest() -> Manifest {
    Manifest {
        store: STORE,
        hash_seed: 0x0123_4567_89AB_CDEF,
        created_ms: 1_790_000_000_000,
        next_epoch: 10,
        next_serial: 100,
        tables: vec![TableEntry::new(0, "default", 4), TableEntry::new(7, "accounts \"é\"", 0)],
        kinds: Vec::new(),
        checkpoints: vec![checkpoint(5, None), checkpoint(7, Some(5)), checkpoint(9, Some(7))],
        incarnations: vec![
            IncarnationEntry {
                number: 1,
                gsn_floor: 0,
                logs: 3,
                cut: Some(positions(&[(0, 900), (1, 880)])),
                calls: false,
                tails: vec![LogTail { log: 1, made_by: 2, first_batch: 40, first_gsn: 870 }],
                scheme: None,
            },
            IncarnationEntry {
                number: 2,
                gsn_floor: 1000,
                logs: 0,
                cut: Some(vec![]),
                calls: false,
                tails: vec![],
                scheme: None,
            },
            IncarnationEntry {
                number: 3,
                gsn_floor: 5000,
                logs: 2,
                cut: None,
                calls: false,
                tails: vec![],
                scheme: None,
            },
        ],
        clean_shutdown: None,
    }
}

pub(crate) fn positions(list: &[(u8, u64)]) -> Vec<LogGsn> {
    list.iter().map(|&(log, gsn)| LogGsn { log, gsn }).collect()
}

pub(crate) fn checkpoint(epoch: u64, base: Option<u64>) -> CheckpointEntry {
    let part = |n: u32| PartEntry {
        file: stillpoint_format::names::part_name(n),
        bytes: 8192 * (u64::from(n) + 1),
        records: 50,
        crc: 0xCAFE_0000 + n,
    };
    CheckpointEntry {
        epoch,
        serial: 2 * epoch + u64::from(base.is_some()),
        kind: if base.is_some() { CheckpointKind::Partial } else { CheckpointKind::Full },
        base,
        scheme: "calc".into(),
        private: None,
        fuzzy: false,
        active: Vec::new(),
        codec: Codec::Lz4,
        partitions_log2: 6,
        records: 100,
        table_records: vec![
            TableRecords { table: 0, records: 99 },
            TableRecords { table: 7, records: 1 },
        ],
        value_bytes: 12_345,
        parts: vec![part(0), part(1)],
        generations: vec![TableGeneration { table: 0, generation: 4 }],
        positions: vec![LogPositions { incarnation: 3, logs: positions(&[(0, 6000), (1, 5990)]) }],
        gsn_floor: 6000,
        started_ms: 1_790_000_100_000,
        finished_ms: 1_790_000_101_000,
    }
}
