//! Whole numbers as bytes (LEB128): seven bits in each, the lowest first; the highest bit says that
//! another byte follows.

/// Bits of a number in one byte, and the bit that says that another byte follows.
const BITS: u32 = 7;
const MORE: u8 = 0x80;

/// Why bytes are no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoNumber {
    /// They end too early.
    Cut,
    /// It has more than 64 bits.
    TooLarge,
}

/// Appends a number.
#[inline]
pub fn write(to: &mut Vec<u8>, mut number: u64) {
    while number >= u64::from(MORE) {
        to.push(number.to_le_bytes()[0] | MORE);
        number >>= BITS;
    }
    to.push(number.to_le_bytes()[0]);
}

/// Takes a number off the front of some bytes.
///
/// # Errors
/// [`NoNumber`] if they do not begin with one.
#[inline]
pub fn read(bytes: &mut &[u8]) -> Result<u64, NoNumber> {
    // Most numbers have one byte.
    if let Some((byte, rest)) = bytes.split_first()
        && byte & MORE == 0
    {
        *bytes = rest;
        return Ok(u64::from(*byte));
    }
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(BITS as usize) {
        let (byte, rest) = bytes.split_first().ok_or(NoNumber::Cut)?;
        *bytes = rest;
        let bits = u64::from(byte & !MORE);
        if bits.leading_zeros() < shift {
            break;
        }
        number |= bits << shift;
        if byte & MORE == 0 {
            return Ok(number);
        }
    }
    Err(NoNumber::TooLarge)
}

/// Appends bytes, with their number before them.
#[inline]
pub fn write_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    write(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// Takes bytes with their number before them off the front of others.
///
/// # Errors
/// [`NoNumber`] if they do not begin with a number, or end before that many bytes have come.
#[inline]
pub fn read_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], NoNumber> {
    let length = usize::try_from(read(bytes)?).map_err(|_| NoNumber::TooLarge)?;
    let (value, rest) = bytes.split_at_checked(length).ok_or(NoNumber::Cut)?;
    *bytes = rest;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(number: u64, more in prop::collection::vec(any::<u8>(), 0..4)) {
            let number = number >> (number % 64);
            let mut bytes = Vec::new();
            write(&mut bytes, number);
            for cut in 0..bytes.len() {
                prop_assert_eq!(read(&mut &bytes[..cut]), Err(NoNumber::Cut));
            }
            bytes.extend_from_slice(&more);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(read(&mut rest), Ok(number));
            prop_assert_eq!(rest, more.as_slice());
        }
    }

    #[test]
    fn more_than_64_bits_are_too_many() {
        let largest = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(read(&mut largest.as_slice()), Ok(u64::MAX));
        let larger = [&[0xff; 9][..], &[2]].concat();
        assert_eq!(read(&mut larger.as_slice()), Err(NoNumber::TooLarge));
        assert_eq!(read(&mut [0x80; 11].as_slice()), Err(NoNumber::TooLarge));
    }
}
