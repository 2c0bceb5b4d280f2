//! Code shared by the fuzzers and the seeded loops of the tests. The code feeds hostile bytes to
//! the parser and to whole connections, and checks the results.

mod alone;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod drafts;
#[cfg(test)]
mod logged;
#[cfg(test)]
mod members;
mod replies;
mod samples;
#[cfg(test)]
mod tests;

use crate::resp::{Args, Limits, Parser, ProtocolError};

pub use alone::Alone;
pub use replies::check_replies;
pub use samples::sample_stream;

/// Result of parsing: the requests, the error that ended them, and the remaining bytes.
pub type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>, usize);

/// Parses `stream`, which arrives in pieces that end at `cuts`.
pub fn parse_in_pieces(stream: &[u8], cuts: &[usize], limits: &Limits) -> Outcome {
    let mut parser = Parser::default();
    let (mut requests, mut buf, mut taken) = (Vec::new(), Vec::new(), 0);
    let mut ends: Vec<usize> = cuts.iter().map(|c| c % (stream.len() + 1)).collect();
    ends.push(stream.len());
    ends.sort_unstable();
    let mut from = 0;
    for end in ends {
        buf.extend_from_slice(&stream[from..end]);
        from = end;
        loop {
            match parser.next(&mut buf[taken..], limits) {
                Ok(Some(used)) => {
                    let args = Args::new(&buf[taken..], parser.spans());
                    requests.push(args.from(0).map(<[u8]>::to_vec).collect());
                    taken += used;
                    assert!(used > 0, "a request of no bytes");
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error), 0),
            }
        }
    }
    (requests, None, stream.len() - taken)
}

/// Checks that the parser finds the same requests and the same error in `stream` whole, cut at
/// `cuts`, and cut at every byte.
///
/// # Panics
/// If the results differ.
pub fn cut_anywhere(stream: &[u8], cuts: &[usize], authenticated: bool) {
    let limits = if authenticated { Limits::authenticated(64) } else { Limits::UNAUTHENTICATED };
    let whole = parse_in_pieces(stream, &[], &limits);
    assert_eq!(whole, parse_in_pieces(stream, cuts, &limits), "cut at {cuts:?}");
    let every: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(whole, parse_in_pieces(stream, &every, &limits), "cut at every byte");
}
