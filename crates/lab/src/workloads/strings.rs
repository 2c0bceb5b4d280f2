//! GET and SET of strings, with keys named as in redis-benchmark. A value tells its key and the
//! write that made it.
//!
//! A key is `key:` and twelve digits. A value consists of the key's twelve digits, a colon, sixteen
//! hexadecimal digits of the write's stamp, a colon, and a padding of `x`. Values too short for
//! that are all `x`.

/// Bytes of a key: `key:` and twelve digits.
pub(crate) const KEY_BYTES: usize = 16;
/// Values shorter than this carry no key and no stamp.
pub(crate) const STAMPED_BYTES_MIN: usize = 30;

const DIGITS: usize = 12;
const STAMP_AT: usize = DIGITS + 1;
const STAMP_DIGITS: usize = 16;

/// Ready-made GET and SET requests (RESP2) into which key and stamp are written.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    get: Vec<u8>,
    set: Vec<u8>,
    key_at: usize,
    value_at: usize,
    value_bytes: usize,
}

impl Requests {
    /// Requests for values of this many bytes.
    pub(crate) fn new(value_bytes: usize) -> Requests {
        let get = format!("*2\r\n$3\r\nGET\r\n${KEY_BYTES}\r\nkey:000000000000\r\n").into_bytes();
        let head =
            format!("*3\r\n$3\r\nSET\r\n${KEY_BYTES}\r\nkey:000000000000\r\n${value_bytes}\r\n");
        let value_at = head.len();
        let mut set = head.into_bytes();
        set.extend(value(0, 0, value_bytes));
        set.extend(b"\r\n");
        Requests {
            get,
            set,
            key_at: b"*2\r\n$3\r\nGET\r\n$16\r\nkey:".len(),
            value_at,
            value_bytes,
        }
    }

    /// Appends a GET of key number `key`.
    pub(crate) fn get(&self, out: &mut Vec<u8>, key: u64) {
        let start = out.len();
        out.extend_from_slice(&self.get);
        write_digits(&mut out[start + self.key_at..], key);
    }

    /// Appends a SET of key number `key` with this stamp.
    pub(crate) fn set(&self, out: &mut Vec<u8>, key: u64, stamp: u64) {
        let start = out.len();
        out.extend_from_slice(&self.set);
        write_digits(&mut out[start + self.key_at..], key);
        if self.value_bytes >= STAMPED_BYTES_MIN {
            write_digits(&mut out[start + self.value_at..], key);
            write_stamp(&mut out[start + self.value_at + STAMP_AT..], stamp);
        }
    }
}

fn write_digits(out: &mut [u8], mut number: u64) {
    for place in out[..DIGITS].iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn write_stamp(out: &mut [u8], mut stamp: u64) {
    for place in out[..STAMP_DIGITS].iter_mut().rev() {
        *place = b"0123456789abcdef"[(stamp & 15) as usize];
        stamp >>= 4;
    }
}

/// The name of key number `key`.
pub(crate) fn key(key: u64) -> Vec<u8> {
    format!("key:{key:012}").into_bytes()
}

/// The value that a write with this stamp gives to a key.
pub(crate) fn value(key: u64, stamp: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![b'x'; bytes];
    if bytes >= STAMPED_BYTES_MIN {
        write_digits(&mut value, key);
        value[DIGITS] = b':';
        write_stamp(&mut value[STAMP_AT..], stamp);
        value[STAMP_AT + STAMP_DIGITS] = b':';
    }
    value
}

/// Checks that some write gave this value to this key. Returns that write's stamp, or 0 for values
/// too short to carry one.
///
/// # Errors
/// What is wrong with the value.
pub(crate) fn check(key: u64, found: &[u8], bytes: usize) -> Result<u64, String> {
    let stamp = if found.len() == bytes && bytes >= STAMPED_BYTES_MIN {
        std::str::from_utf8(&found[STAMP_AT..STAMP_AT + STAMP_DIGITS])
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or_else(|| format!("the value of key {key} has no stamp"))?
    } else {
        0
    };
    if found == value(key, stamp, bytes) {
        Ok(stamp)
    } else {
        Err(format!("key {key} holds {} bytes that no write of this run gave it", found.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_a_client_would_send() {
        let requests = Requests::new(3);
        let mut out = Vec::new();
        requests.get(&mut out, 42);
        requests.set(&mut out, 7, 9);
        let text = String::from_utf8(out).expect("ascii");
        assert_eq!(
            text,
            "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n\
             *3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$3\r\nxxx\r\n"
        );
    }

    #[test]
    fn values_name_their_key_and_their_write() {
        let requests = Requests::new(100);
        let mut out = Vec::new();
        requests.set(&mut out, 123_456, 0xabcd);
        let body = &out[out.len() - 102..out.len() - 2];
        assert_eq!(body, value(123_456, 0xabcd, 100));
        assert_eq!(check(123_456, body, 100), Ok(0xabcd));
        assert!(check(123_457, body, 100).is_err(), "another key's value");
        assert!(check(123_456, &body[1..], 100).is_err(), "a byte is missing");
        let mut flipped = body.to_vec();
        flipped[80] ^= 1;
        assert!(check(123_456, &flipped, 100).is_err());
        assert_eq!(check(5, b"xxx", 3), Ok(0), "too short to carry a stamp");
        assert_eq!(key(123_456), b"key:000000123456");
    }
}
