//! Variable-length integers (LEB128): seven bits a byte, lowest first. The highest bit of a byte
//! is set if another byte follows.

/// Bits of a number in one byte.
const BITS_PER_BYTE: u32 = 7;
/// The bit that is set if another byte follows.
const CONTINUATION_BIT: u8 = 0x80;

/// The reason why bytes do not decode as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leb128Error {
    /// The bytes end too early.
    Truncated,
    /// The number has more than 64 bits.
    TooLarge,
}

/// Appends a number.
#[inline]
pub fn write(buffer: &mut Vec<u8>, mut number: u64) {
    while number >= u64::from(CONTINUATION_BIT) {
        buffer.push(number.to_le_bytes()[0] | CONTINUATION_BIT);
        number >>= BITS_PER_BYTE;
    }
    buffer.push(number.to_le_bytes()[0]);
}

/// Reads a number and advances `bytes` past it.
///
/// # Errors
/// [`Leb128Error`] if `bytes` do not begin with a number.
#[inline]
pub fn read(bytes: &mut &[u8]) -> Result<u64, Leb128Error> {
    // Most numbers have one byte.
    if let Some((byte, rest)) = bytes.split_first()
        && byte & CONTINUATION_BIT == 0
    {
        *bytes = rest;
        return Ok(u64::from(*byte));
    }
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(BITS_PER_BYTE as usize) {
        let (byte, rest) = bytes.split_first().ok_or(Leb128Error::Truncated)?;
        *bytes = rest;
        let bits = u64::from(byte & !CONTINUATION_BIT);
        if bits.leading_zeros() < shift {
            break;
        }
        number |= bits << shift;
        if byte & CONTINUATION_BIT == 0 {
            return Ok(number);
        }
    }
    Err(Leb128Error::TooLarge)
}

/// Appends the length of `bytes` and then the bytes.
#[inline]
pub fn write_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    write(buffer, bytes.len() as u64);
    buffer.extend_from_slice(bytes);
}

/// Reads bytes that follow their length, and advances `bytes` past them.
///
/// # Errors
/// [`Leb128Error`] if `bytes` do not begin with a number, or are shorter than that number.
#[inline]
pub fn read_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Leb128Error> {
    let length = usize::try_from(read(bytes)?).map_err(|_| Leb128Error::TooLarge)?;
    let (value, rest) = bytes
        .split_at_checked(length)
        .ok_or(Leb128Error::Truncated)?;
    *bytes = rest;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_round_trip(number: u64, following in prop::collection::vec(any::<u8>(), 0..4)) {
            let number = number >> (number % 64);
            let mut bytes = Vec::new();
            write(&mut bytes, number);
            for cut in 0..bytes.len() {
                prop_assert_eq!(read(&mut &bytes[..cut]), Err(Leb128Error::Truncated));
            }
            bytes.extend_from_slice(&following);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(read(&mut rest), Ok(number));
            prop_assert_eq!(rest, following.as_slice());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_too_large() {
        let largest = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(read(&mut largest.as_slice()), Ok(u64::MAX));
        let larger = [&[0xff; 9][..], &[2]].concat();
        assert_eq!(read(&mut larger.as_slice()), Err(Leb128Error::TooLarge));
        assert_eq!(read(&mut [0x80; 11].as_slice()), Err(Leb128Error::TooLarge));
    }
}
