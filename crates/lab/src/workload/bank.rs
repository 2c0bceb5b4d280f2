//! Transfers between accounts: whatever happens, the sum stays.
//!
//! An account is a record with an 8-byte balance (little-endian, signed). A
//! transfer moves an amount from one account to another and is refused, as a
//! rollback, when it would overdraw the first.

use crate::random::Random;

/// The balance that every account begins with.
pub const OPENING_BALANCE: i64 = 1_000;

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The account that gives.
    pub from: u64,
    /// The account that receives; another one.
    pub to: u64,
    /// How much, at least 1.
    pub amount: i64,
}

/// A balance as bytes.
pub fn encode(balance: i64) -> [u8; 8] {
    balance.to_le_bytes()
}

/// Bytes as a balance; `None` if they are not eight.
pub fn decode(value: &[u8]) -> Option<i64> {
    value.try_into().ok().map(i64::from_le_bytes)
}

impl Transfer {
    /// The two balances afterwards, or `None` if the first would be overdrawn.
    pub fn apply(&self, from: i64, to: i64) -> Option<(i64, i64)> {
        let left = from - self.amount;
        (left >= 0).then(|| (left, to + self.amount))
    }
}

/// The generator of one worker's transfers.
#[derive(Debug)]
pub struct Transfers {
    accounts: u64,
    random: Random,
}

impl Transfers {
    /// Transfers between the accounts `0..accounts`.
    ///
    /// # Panics
    /// When there are fewer than two accounts.
    pub fn new(accounts: u64, seed: u64, worker: usize) -> Transfers {
        assert!(accounts >= 2, "a transfer needs two accounts");
        Transfers { accounts, random: Random::for_thread(seed, worker) }
    }

    /// The next transfer.
    pub fn draw(&mut self) -> Transfer {
        let from = self.random.below(self.accounts);
        let to = (from + 1 + self.random.below(self.accounts - 1)) % self.accounts;
        Transfer { from, to, amount: 1 + self.random.below(100) as i64 }
    }
}

/// Checks that the money is all there.
///
/// # Errors
/// What is wrong: an account missing or overdrawn, money made or lost.
pub fn check(balances: &[i64]) -> Result<(), String> {
    if let Some(account) = balances.iter().position(|&b| b < 0) {
        return Err(format!("account {account} is overdrawn: {}", balances[account]));
    }
    let (sum, expected) = (balances.iter().sum::<i64>(), OPENING_BALANCE * balances.len() as i64);
    if sum == expected {
        Ok(())
    } else {
        Err(format!("{} accounts hold {sum}, must hold {expected}", balances.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_keep_the_sum() {
        let mut balances = vec![OPENING_BALANCE; 10];
        let mut transfers = Transfers::new(10, 3, 0);
        let mut refused = 0;
        for _ in 0..10_000 {
            let t = transfers.draw();
            assert_ne!(t.from, t.to);
            match t.apply(balances[t.from as usize], balances[t.to as usize]) {
                Some((from, to)) => {
                    balances[t.from as usize] = from;
                    balances[t.to as usize] = to;
                }
                None => refused += 1,
            }
        }
        assert!(refused > 0, "some transfer must overdraw, or rollback is never tried");
        assert_eq!(check(&balances), Ok(()));
        balances[0] += 1;
        assert!(check(&balances).is_err());
    }

    #[test]
    fn balances_survive_their_bytes() {
        assert_eq!(decode(&encode(-7)), Some(-7));
        assert_eq!(decode(b"short"), None);
    }
}
