//! Stores that are written for C: RocksDB with locks, and WiredTiger with snapshots. Each has a file in `c`
//! with the functions of `c/peer.h`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use stillpoint_lab::peers::{Embedded, EmbeddedSession, Setup};

use crate::{absent, said};

/// `PEER_WHY_BYTES` of `peer.h`.
const WHY_BYTES: usize = 256;
const OK: c_int = 0;
const ABSENT: c_int = 1;
const CONFLICT: c_int = 2;

type Why = *mut c_char;

/// `struct peer_functions` of `peer.h`.
#[repr(C)]
struct Functions {
    open: unsafe extern "C" fn(*const c_char, c_int, u64, Why) -> *mut c_void,
    close: unsafe extern "C" fn(*mut c_void),
    session: unsafe extern "C" fn(*mut c_void, Why) -> *mut c_void,
    end_session: unsafe extern "C" fn(*mut c_void),
    begin: unsafe extern "C" fn(*mut c_void, Why) -> c_int,
    get: unsafe extern "C" fn(
        *mut c_void,
        *const u8,
        usize,
        *mut *const u8,
        *mut usize,
        Why,
    ) -> c_int,
    put: unsafe extern "C" fn(*mut c_void, *const u8, usize, *const u8, usize, Why) -> c_int,
    commit: unsafe extern "C" fn(*mut c_void, Why) -> c_int,
    rollback: unsafe extern "C" fn(*mut c_void, Why) -> c_int,
}

unsafe extern "C" {
    #[cfg(feature = "rocksdb")]
    safe static peer_rocksdb: Functions;
    #[cfg(feature = "wiredtiger")]
    safe static peer_wiredtiger: Functions;
}

/// Opens RocksDB.
#[cfg(feature = "rocksdb")]
pub(crate) fn rocksdb(setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    open(&peer_rocksdb, setup)
}

/// Opens WiredTiger.
#[cfg(feature = "wiredtiger")]
pub(crate) fn wiredtiger(setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    open(&peer_wiredtiger, setup)
}

/// The words that a failed call has left.
struct Words([c_char; WHY_BYTES]);

impl Words {
    fn new() -> Words {
        Words([0; WHY_BYTES])
    }

    fn said(&self) -> String {
        // SAFETY: the functions end what they write with a zero byte, and it was all zeros before.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }.to_string_lossy().into_owned()
    }
}

struct Store {
    functions: &'static Functions,
    store: NonNull<c_void>,
}

// SAFETY: both stores may be used by several threads at a time. Only their sessions may not.
unsafe impl Sync for Store {}

fn open(functions: &'static Functions, setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    let dir = CString::new(setup.dir.as_os_str().as_encoded_bytes()).map_err(said)?;
    let cache_bytes = (setup.data_bytes * 2).max(64 << 20);
    let mut why = Words::new();
    let is_durable = c_int::from(setup.is_durable);
    // SAFETY: the path ends with a zero byte, and the words have their length.
    let store =
        unsafe { (functions.open)(dir.as_ptr(), is_durable, cache_bytes, why.0.as_mut_ptr()) };
    let store = NonNull::new(store).ok_or_else(|| why.said())?;
    Ok(Box::new(Store { functions, store }))
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the store, so none is left.
        unsafe { (self.functions.close)(self.store.as_ptr()) }
    }
}

impl Embedded for Store {
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String> {
        let mut why = Words::new();
        // SAFETY: the store is open.
        let session = unsafe { (self.functions.session)(self.store.as_ptr(), why.0.as_mut_ptr()) };
        let session = NonNull::new(session).ok_or_else(|| why.said())?;
        Ok(Box::new(Session { functions: self.functions, session, _store: self }))
    }
}

struct Session<'a> {
    functions: &'static Functions,
    session: NonNull<c_void>,
    _store: &'a Store,
}

/// The end of a call that did not succeed.
enum Ended {
    Absent,
    Conflict,
    Failed(String),
}

impl Session<'_> {
    fn call(
        &mut self,
        of: impl FnOnce(&Functions, *mut c_void, Why) -> c_int,
    ) -> Result<(), Ended> {
        let mut why = Words::new();
        match of(self.functions, self.session.as_ptr(), why.0.as_mut_ptr()) {
            OK => Ok(()),
            ABSENT => Err(Ended::Absent),
            CONFLICT => Err(Ended::Conflict),
            _ => Err(Ended::Failed(why.said())),
        }
    }

    /// The value of a key, until the next call.
    fn get(&mut self, key: &[u8]) -> Result<&[u8], Ended> {
        let (mut value, mut bytes) = (std::ptr::null(), 0);
        self.call(|it, session, why| {
            // SAFETY: the session is open, and the pointers are to live memory of these lengths.
            unsafe { (it.get)(session, key.as_ptr(), key.len(), &mut value, &mut bytes, why) }
        })?;
        // SAFETY: a call that succeeds leaves a value of these bytes, which stays until the next call, and
        // that borrows the session mutably.
        Ok(unsafe { std::slice::from_raw_parts(value, bytes) })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Ended> {
        self.call(|it, session, why| {
            // SAFETY: the session is open, and the pointers are to live memory of these lengths.
            unsafe { (it.put)(session, key.as_ptr(), key.len(), value.as_ptr(), value.len(), why) }
        })
    }

    /// Runs `body` in a transaction, again if it conflicts with another.
    fn transact(
        &mut self,
        body: &mut dyn FnMut(&mut Self) -> Result<(), (Ended, Option<[u8; 8]>)>,
    ) -> Result<(), String> {
        loop {
            // SAFETY: the session is open.
            let begun = self.call(|it, session, why| unsafe { (it.begin)(session, why) });
            let ended = begun.map_err(|ended| (ended, None)).and_then(|()| body(self));
            let ended = match ended {
                // SAFETY: the session has a transaction.
                Ok(()) => {
                    match self.call(|it, session, why| unsafe { (it.commit)(session, why) }) {
                        Ok(()) => return Ok(()),
                        // Both stores have rolled a failed commit back.
                        Err(ended) => (ended, None),
                    }
                }
                Err(ended) => {
                    // SAFETY: the session has a transaction.
                    let undone =
                        self.call(|it, session, why| unsafe { (it.rollback)(session, why) });
                    if let Err(Ended::Failed(why)) = undone {
                        return Err(why);
                    }
                    ended
                }
            };
            match ended {
                (Ended::Conflict, _) => {}
                (Ended::Absent, Some(key)) => return Err(absent(key)),
                (Ended::Absent, None) => return Err("a key has no value".to_owned()),
                (Ended::Failed(why), _) => return Err(why),
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: the session is open, and nobody uses it again.
        unsafe { (self.functions.end_session)(self.session.as_ptr()) }
    }
}

impl EmbeddedSession for Session<'_> {
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String> {
        self.transact(&mut |session| {
            let put = |(key, value): &([u8; 8], Vec<u8>)| {
                session.put(key, value).map_err(|ended| (ended, Some(*key)))
            };
            records.iter().try_for_each(put)
        })
    }

    fn update(
        &mut self,
        keys: &[[u8; 8]],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), String> {
        self.transact(&mut |session| {
            for key in keys {
                let of_key = |ended| (ended, Some(*key));
                let mut value = session.get(key).map_err(of_key)?.to_vec();
                change(&mut value);
                session.put(key, &value).map_err(of_key)?;
            }
            Ok(())
        })
    }

    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        match self.get(&key) {
            Ok(value) => {
                see(value);
                Ok(())
            }
            Err(Ended::Absent) => Err(absent(key)),
            Err(Ended::Conflict) => Err("a read conflicts".to_owned()),
            Err(Ended::Failed(why)) => Err(why),
        }
    }
}
